"""What every table of scripts/remake-results needs: the program and what it runs on, rows that are done once, and a word on how
long the rest takes."""
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
MINI = ROOT / "models/wan-mini"
KEPT = ROOT / "build/results"  # checkpoints and finished rows; never part of a page


def digest(files):
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def say(*words):
    print("remake-results:", *words, file=sys.stderr, flush=True)


class Program:
    """`equitile`, and what its results depend on."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.help = {}
        self.known_fingerprint = None

    def run(self, *words, launcher=(), program=None):
        """Standard output of one command; a failure ends everything with what it said."""
        command = [*map(str, launcher), str(program or self.path), *map(str, words)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout

    def json(self, *words, **options):
        return json.loads(self.run(*words, "--json", **options))

    def watched(self, *words):
        """What `--json` says in the end, [(seconds since it began, line)] of what is said on the way, and the seconds of it all."""
        command, lines, begin = [str(self.path), *map(str, words), "--json"], [], time.monotonic()
        with tempfile.TemporaryFile("w+") as said:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.PIPE, text=True) as running:
                for line in running.stderr:
                    lines.append((time.monotonic() - begin, line.rstrip("\n")))
            if running.returncode != 0:
                sys.exit("\n".join([" ".join(command), *(line for _, line in lines)]))
            seconds = time.monotonic() - begin
            said.seek(0)
            return json.load(said), lines, seconds

    def offers(self, command, word):
        """Whether the help of a command mentions a flag or a name."""
        if command not in self.help:
            self.help[command] = self.run(*command.split(), "--help")
        return word in self.help[command]

    def machine(self):
        """{target, threads, peak_gflops}, as measured now."""
        rates = self.json("bench", "machine", "--head-dim", 32)
        return {key: rates[key] for key in ("target", "threads", "peak_gflops")}

    def generate(self, *flags, launcher=(), program=None):
        """{run, parameters} of a video that is not decoded, with what every call of attention took."""
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder)
            self.run("generate", *flags, "--save-latents", at / "x.safetensors", "--perf-dump-path", at / "perf.json",
                     "--checkpoint-every", 1000, launcher=launcher, program=program)
            return {"run": json.loads((at / "perf.json").read_text()),
                    "parameters": json.loads((at / "x.safetensors.json").read_text())["parameters"]}

    def fingerprint(self):
        """Of wan-mini's weights."""
        if self.known_fingerprint is None:
            tiny = ["-m", MINI, "-p", "star", "-W", 32, "-H", 32, "--video-frames", 1, "--steps", 1]
            self.known_fingerprint = self.generate(*tiny)["parameters"]["model_fingerprint"]
        return self.known_fingerprint


@dataclasses.dataclass
class Row:
    """A part of a table that is made in one go."""
    key: str
    work: float  # in steps of wan-mini's 49 frames of 256x256, dense
    make: typing.Callable[[], dict]


class State:
    """Finished rows of one table, in a file: {key: {"row", "seconds"}}. Of another program or other weights: forgotten."""

    def __init__(self, path, identity):
        self.path, self.identity, self.rows = path, identity, {}
        if path.exists():
            known = json.loads(path.read_text())
            if known["identity"] == identity:
                self.rows = known["rows"]
            else:
                say(f"{path.name}: rows of another program or other weights are forgotten")

    def add(self, key, row, seconds):
        self.rows[key] = {"row": row, "seconds": seconds}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps({"identity": self.identity, "rows": self.rows}))
        os.replace(whole, self.path)


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class Worker:
    """Makes rows that are not there yet and says how long the others will take."""

    def __init__(self, program, folder, step_seconds):
        self.program, self.folder, self.step_seconds, self.states, self.lock = program, folder, step_seconds, {}, threading.Lock()

    def state(self, table, identity):
        if table not in self.states:
            self.states[table] = State(self.folder / f"{table}.json", identity)
        return self.states[table]

    def left(self, rows, state):
        """Seconds, from rows that are done, else from the time of a step."""
        done = [row for row in rows if row.key in state.rows]
        rate = self.step_seconds
        if done:
            rate = sum(state.rows[row.key]["seconds"] for row in done) / sum(row.work for row in done)
        return rate * sum(row.work for row in rows if row.key not in state.rows)

    def finish(self, table, rows, identity, at_once=1):
        """{key: row} of all rows, those that were done before included; several at a time only where no row is a time."""
        state, failed = self.state(table, identity), threading.Event()

        def make(numbered):
            if failed.is_set():  # the others end with the first one that fails
                return
            number, row = numbered
            say(f"{table}: row {number + 1} of {len(rows)}, {row.key}; about {minutes(self.left(rows, state))} left of this table")
            begin = time.monotonic()
            try:
                made = row.make() | {"machine": self.program.machine()}
            except BaseException:
                failed.set()
                raise
            with self.lock:
                state.add(row.key, made, (time.monotonic() - begin) / at_once)

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for _ in pool.map(make, [numbered for numbered in enumerate(rows) if numbered[1].key not in state.rows]):
                pass
        return self.finished(table, rows, identity)

    def finished(self, table, rows, identity):
        """{key: row} of rows that are done."""
        state = self.state(table, identity)
        return {row.key: state.rows[row.key]["row"] for row in rows if row.key in state.rows}
