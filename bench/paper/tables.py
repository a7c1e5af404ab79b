"""What the pages of bench/paper share: a page is a list of tables, each made by one call, kept as data beside the page, and made from rows
that are not made twice, so that a run may be interrupted."""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/results"))

import runs  # noqa: E402

PROFILES = ROOT / "models/profiles"


@dataclasses.dataclass
class Row:
    key: str  # says all that its figures depend on beside the program
    make: typing.Callable[[], dict]


@dataclasses.dataclass
class Table:
    name: str
    title: str
    rows: typing.Callable  # (program, quick) -> [Row]
    text: typing.Callable  # ({key: row}, folder for charts) -> Markdown below the title
    weights: bool = False  # whether figures depend on wan-mini's
    timed: bool = True     # whether a row is a time: then one at a time, whatever is asked for


@dataclasses.dataclass
class Page:
    name: str    # of the page, and of its data
    script: str
    title: str
    intro: str
    tables: list
    outro: str = ""


def markdown(head, rows):
    lines = ["| " + " | ".join(map(str, head)) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def mean(values):
    return statistics.fmean(values)


def percent(value):
    """Two digits, whatever its size."""
    return f"{100 * value:.2g} %" if value < 0.995 else f"{100 * value:.0f} %"


def plan(program, source, ranks, planners, *flags):
    """[{planner: figures}], one for each layer of the mask."""
    what = "--mask" if str(source).endswith(".npy") else "--synthetic"
    said = program.json("plan", what, source, "--for-ranks", ranks, "--planner", ",".join(planners), *flags)
    return [{one["planner"]: one | {"density": layer["mask"]["density"]} for one in layer["plans"]} for layer in said.get("layers", [said])]


def grids(ranks):
    return [f"{ranks // ring}x{ring}" for ring in range(1, ranks + 1) if ranks % ring == 0]


def data_path(page, table, out):
    return out / f"data/{page.name}-{table.name}.json"


def state_of(page, table, options, program):
    folder = options.out / "kept" if options.quick else runs.KEPT / "paper"
    return runs.State(folder / f"{page.name}-{table.name}.json", {"program": runs.digest([program.path])})


def make(page, table, options, program):
    state = state_of(page, table, options, program)
    rows = list(table.rows(program, options.quick))
    lock = threading.Lock()

    def work(numbered):
        number, row = numbered
        print(f"{page.script} {table.name}: {number + 1} of {len(rows)}, {row.key}", file=sys.stderr, flush=True)
        made = row.make()
        with lock:
            state.add(row.key, made, 0)

    left = [(number, row) for number, row in enumerate(rows) if row.key not in state.rows and options.only in row.key]
    with concurrent.futures.ThreadPoolExecutor(1 if table.timed else options.at_once) as pool:
        list(pool.map(work, left))
    if any(row.key not in state.rows for row in rows):
        return
    data = {"quick": options.quick, "fingerprint": program.fingerprint() if table.weights else None,
            "rows": {row.key: state.rows[row.key]["row"] for row in rows}}
    path = data_path(page, table, options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


def section(page, table, data, out):
    said = f"`bench/paper/{page.script} {table.name}`" + (f", weights `{data['fingerprint']}`" if table.weights else "")
    trial = " **Made with `--quick`: proves the path, says nothing.**" if data["quick"] else ""
    return f"## {table.title}\n\n*{said}*{trial}\n\n{table.text(data['rows'], out)}"


def write(page, out):
    """The page from the tables that are there; it names the others."""
    parts = [f"# {page.title}\n", f"Made by `bench/paper/{page.script}`. {page.intro}\n"]
    there = [table for table in page.tables if data_path(page, table, out).exists()]
    parts += [section(page, table, json.loads(data_path(page, table, out).read_text()), out) for table in there]
    missing = [f"{table.title} (`bench/paper/{page.script} {table.name}`)" for table in page.tables if table not in there]
    if missing:
        parts.append(f"*Not made yet: {'; '.join(missing)}.*\n")
    (out / f"{page.name}.md").write_text("\n".join([*parts, page.outro]).rstrip() + "\n")


def parse(page):
    parser = argparse.ArgumentParser(description=f"{page.title}: docs/results/{page.name}.md. Rows that are finished are kept in build/results.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="some of: " + ", ".join(table.name for table in page.tables))
    parser.add_argument("--command", help="the program; default: built from the sources")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the whole way; needs an --out of its own")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name holds this; a table is written when it has all")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="rows side by side, in tables that have no times")
    parser.add_argument("--page", action="store_true", help="only the page, from the data that is there")
    options = parser.parse_args()
    unknown = set(options.tables) - {table.name for table in page.tables}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: tables are {', '.join(table.name for table in page.tables)}")
    if options.quick and options.out.resolve() == (ROOT / "docs/results").resolve():
        parser.error("--quick says nothing: give it an --out of its own")
    return options


def command(options):
    path = options.command or os.environ.get("EQUITILE")
    if not path:
        path = subprocess.run([ROOT / "scripts/run", "--which"], capture_output=True, text=True, check=True).stdout.strip()
    return runs.Program(path)


def main(page):
    options = parse(page)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.page:
        program = command(options)
        for table in page.tables:
            if not options.tables or table.name in options.tables:
                make(page, table, options, program)
                write(page, options.out)
    write(page, options.out)
