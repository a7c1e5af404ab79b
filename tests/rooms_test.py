"""Checks the arrows between rooms and between the sub-folders of a room: who may include whom. The tables below are the
architecture; a folder may include everything reachable along its arrows, and nothing else."""
import pathlib
import re

ARROWS = {
    "search": ["generate"],
    "generate": ["sparsity", "quality"],
    "sparsity": ["exec", "model"],
    "quality": ["io"],
    "model": ["kernel", "comm", "io"],
    "exec": ["plan", "kernel", "comm"],
    "io": ["tensor", "pattern", "plan"],
    "plan": ["pattern"],
    "kernel": ["tensor", "pattern"],
    "comm": ["base"],
    "tensor": ["base"],
    "pattern": ["base"],
    "base": [],
}

# The same inside a room, between its sub-folders; "" is the room's own folder. A room that is not here has none.
PARTS = {
    "apps": {
        "": ["cli"],
        "compare": ["generate"],
        "search": ["generate"],
        "bench": ["plan"],
        "verify": ["generate"],
        "inspect": ["cli"],
        "generate": ["plan"],
        "plan": ["cli"],
        "cli": [],
    },
    "comm": {"mpi": [""], "threads": [""], "solo": [""], "": []},
    "io": {"records": ["arrays"], "arrays": [""], "frames": [""], "": []},
    "kernel": {
        "reference": ["attention", "linear"],
        "attention": ["rows"],
        "linear": ["rows"],
        "conv": ["simd"],
        "rows": ["simd"],
        "simd": [""],
        "": [],
    },
    "model": {
        "golden": ["sampling", "vae"],
        "sampling": ["wan"],
        "wan": [],
        "vae": [],
        "text": [],
    },
    "plan": {
        "planners": ["planners/dbsp", "planners/fractional"],
        "planners/dbsp": ["predict"],
        "planners/fractional": ["predict"],
        "predict": ["core"],
        "core": [],
    },
    "search": {
        "": ["trials", "judge"],
        "trials": ["choice"],
        "judge": ["choice"],
        "choice": ["state"],
        "state": [],
    },
    "sparsity": {
        "": ["files", "published", "balance"],
        "files": ["error"],
        "error": ["mass"],
        "mass": ["source"],
        "published": ["source"],
        "balance": ["source"],
        "source": [],
    },
}

# Headers from outside that only some folders may see.
ONLY_IN = {
    r"hwy/": ["equitile/kernel"],
    r"mpi\.h": ["equitile/comm/mpi"],
    r"CLI/": ["apps"],
    r"png\.h": ["equitile/io"],
    r"lib(av|sw)\w+/": ["equitile/io"],
    r"sentencepiece": ["equitile/model"],
}

# Headers from outside that a room must do without.
NEVER_IN = {
    "plan": r"thread|mutex|atomic|chrono|future|condition_variable|ctime|time\.h|random",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def reachable(start, arrows):
    """The start itself and everything along the arrows."""
    found, queue = set(), [start]
    while queue:
        here = queue.pop()
        if here not in found:
            found.add(here)
            queue += arrows[here]
    return found


def room_and_part(folder):
    """"equitile/plan/core" -> ("plan", "core"), "apps/cli" -> ("apps", "cli"); None outside of both."""
    parts = folder.split("/")
    if parts[0] == "equitile" and len(parts) > 1:
        return parts[1], "/".join(parts[2:])
    return ("apps", "/".join(parts[1:])) if parts[0] == "apps" else None


def part_violation(room, part, header, is_test):
    """Why a file of the room's sub-folder may not include a header of the same room; None if it may. Tests may look around
    in their room."""
    target = room_and_part(str(pathlib.PurePosixPath(header).parent))
    if is_test or room not in PARTS or target is None or target[0] != room or target[1] not in PARTS[room]:
        return None
    allowed = reachable(part, PARTS[room])
    if target[1] in allowed:
        return None
    return f"{room}/{part} may include only {', '.join(sorted(allowed))} of {room}, not {target[1]}"


def include_violation(folder, file, header):
    """Why `file` (relative to the repository, in `folder`) may not include `header`; None if it may."""
    is_test = file.name.endswith(("_test.cc", "_bench.cc", "_testing.h"))
    for pattern, folders in ONLY_IN.items():
        allowed = any(folder == f or folder.startswith(f + "/") for f in folders)
        if re.match(pattern, header) and not allowed:
            return f"only {', '.join(folders)} may include {header}"
    place = room_and_part(folder)
    if place is None:
        return None
    room, part = place
    inside = part_violation(room, part, header, is_test)
    if inside or room == "apps":
        return inside
    if room in NEVER_IN and not is_test and re.fullmatch(NEVER_IN[room], header):
        return f"{room} must do without <{header}>"
    if header.startswith("apps/") or (header.startswith("tests/") and not is_test):
        return f"{room} may not include {header}"
    match = re.match(r"equitile/(\w+)/", header)
    if match and match[1] not in reachable(room, ARROWS):
        return f"{room} may include only {', '.join(sorted(reachable(room, ARROWS)))}, not {match[1]}"
    return None


def violations(root):
    """One line per forbidden include: file:line: reason."""
    found = []
    for file in sorted(path for top in ("equitile", "apps", "python") for path in (root / top).rglob("*")):
        if file.suffix not in (".h", ".cc"):
            continue
        relative = file.relative_to(root)
        folder = relative.parent.as_posix()
        place = room_and_part(folder)
        if place and place[0] not in (*ARROWS, "apps"):
            found.append(f"{relative}:1: no such room: {folder}")
            continue
        if place and place[1] not in PARTS.get(place[0], {"": []}):
            found.append(f"{relative}:1: no such part of {place[0]}: {folder}")
            continue
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            include = INCLUDE.match(line)
            if not include:
                continue
            why = include_violation(folder, relative, include[2])
            outside = any(re.match(pattern, include[2]) for pattern in ONLY_IN)
            if include[1] == '"' and not outside and not (root / include[2]).exists():
                why = f'"{include[2]}" is not written from the top of the repository, or does not exist'
            if why:
                found.append(f"{relative}:{number}: {why}")
    return found


def test_arrows_have_no_cycle():
    for arrows in (ARROWS, *PARTS.values()):
        for start, targets in arrows.items():
            assert all(start not in reachable(target, arrows) for target in targets), start


def test_rooms_include_along_the_arrows():
    found = violations(pathlib.Path(__file__).resolve().parent.parent)
    assert not found, "\n" + "\n".join(found)


def test_planted_violations_are_named(tmp_path):
    def plant(name, *lines):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")

    plant("equitile/base/error.h", "#pragma once")
    plant("equitile/kernel/attention/attention.h", '#include "equitile/base/error.h"', "#include <hwy/highway.h>")
    plant("equitile/exec/run.cc", '#include "equitile/kernel/attention/attention.h"')
    assert violations(tmp_path) == []
    plant("equitile/base/bad.cc", "// why", '#  include "equitile/kernel/attention/attention.h"')          # backwards
    plant("equitile/comm/bad.cc", '#include "equitile/kernel/attention/attention.h"')                      # sideways
    plant("equitile/plan/core/bad.cc", "#include <chrono>", "#include <hwy/highway.h>", "#include <mpi.h>")
    plant("equitile/plan/core/fine_test.cc", "#include <chrono>")
    plant("equitile/pattern/bad.cc", '#include "error.h"')
    plant("equitile/utils/bad.cc", "")
    plant("equitile/plan/predict/score.h", '#include "equitile/plan/core/plan.h"')
    plant("equitile/plan/core/plan.h", '#include "equitile/plan/predict/score.h"')               # backwards, inside a room
    plant("equitile/plan/core/plan_test.cc", '#include "equitile/plan/predict/score.h"')         # a test may
    plant("equitile/plan/planners/dbsp/bad.cc", '#include "equitile/plan/planners/planner.h"')
    plant("equitile/plan/planners/planner.h", "")
    plant("equitile/plan/misc/bad.cc", "")
    plant("equitile/model/text/bad.cc", '#include "equitile/model/vae/vae.h"')                   # sideways, inside a room
    plant("equitile/model/vae/vae.h", "")
    plant("apps/cli/bad.cc", '#include "apps/plan/plan.h"')
    plant("apps/plan/plan.h", "")
    assert [line.split(": ")[0] for line in violations(tmp_path)] == [
        "apps/cli/bad.cc:1", "equitile/base/bad.cc:2", "equitile/comm/bad.cc:1", "equitile/model/text/bad.cc:1",
        "equitile/pattern/bad.cc:1", "equitile/plan/core/bad.cc:1", "equitile/plan/core/bad.cc:2",
        "equitile/plan/core/bad.cc:3", "equitile/plan/core/plan.h:1", "equitile/plan/misc/bad.cc:1",
        "equitile/plan/planners/dbsp/bad.cc:1", "equitile/utils/bad.cc:1"]
