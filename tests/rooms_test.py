"""Checks the arrows between rooms: who may include whom. The table below is the architecture; a room may include every
room reachable along the arrows, and nothing else."""
import pathlib
import re

ARROWS = {
    "search": ["model"],
    "model": ["exec", "io"],
    "exec": ["plan", "kernel", "comm"],
    "io": ["tensor", "pattern", "plan"],
    "plan": ["pattern"],
    "kernel": ["tensor", "pattern"],
    "comm": ["base"],
    "tensor": ["base"],
    "pattern": ["base"],
    "base": [],
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


def reachable(room):
    """The room itself and all rooms along the arrows."""
    found, queue = set(), [room]
    while queue:
        here = queue.pop()
        if here not in found:
            found.add(here)
            queue += ARROWS[here]
    return found


def include_violation(folder, file, header):
    """Why `file` (relative to the repository, in `folder`) may not include `header`; None if it may."""
    is_test = file.name.endswith(("_test.cc", "_bench.cc", "_testing.h"))
    for pattern, folders in ONLY_IN.items():
        allowed = any(folder == f or folder.startswith(f + "/") for f in folders)
        if re.match(pattern, header) and not allowed:
            return f"only {', '.join(folders)} may include {header}"
    parts = folder.split("/")
    if parts[0] != "equitile" or len(parts) < 2:
        return None
    room = parts[1]
    if room in NEVER_IN and not is_test and re.fullmatch(NEVER_IN[room], header):
        return f"{room} must do without <{header}>"
    if header.startswith("apps/") or (header.startswith("tests/") and not is_test):
        return f"{room} may not include {header}"
    match = re.match(r"equitile/(\w+)/", header)
    if match and match[1] not in reachable(room):
        return f"{room} may include only {', '.join(sorted(reachable(room)))}, not {match[1]}"
    return None


def violations(root):
    """One line per forbidden include: file:line: reason."""
    found = []
    for file in sorted(path for top in ("equitile", "apps", "python") for path in (root / top).rglob("*")):
        if file.suffix not in (".h", ".cc"):
            continue
        relative = file.relative_to(root)
        folder = relative.parent.as_posix()
        if folder.startswith("equitile/") and folder.split("/")[1] not in ARROWS:
            found.append(f"{relative}:1: no such room: {folder}")
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
    for room, targets in ARROWS.items():
        assert all(room not in reachable(target) for target in targets), room


def test_rooms_include_along_the_arrows():
    found = violations(pathlib.Path(__file__).resolve().parent.parent)
    assert not found, "\n" + "\n".join(found)


def test_planted_violations_are_named(tmp_path):
    def plant(name, *lines):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")

    plant("equitile/base/error.h", "#pragma once")
    plant("equitile/kernel/attention.h", '#include "equitile/base/error.h"', "#include <hwy/highway.h>")
    plant("equitile/exec/run.cc", '#include "equitile/kernel/attention.h"')
    assert violations(tmp_path) == []
    plant("equitile/base/bad.cc", "// why", '#  include "equitile/kernel/attention.h"')          # backwards
    plant("equitile/comm/bad.cc", '#include "equitile/kernel/attention.h"')                      # sideways
    plant("equitile/plan/bad.cc", "#include <chrono>", "#include <hwy/highway.h>", "#include <mpi.h>")
    plant("equitile/plan/fine_test.cc", "#include <chrono>")
    plant("equitile/pattern/bad.cc", '#include "error.h"')
    plant("equitile/utils/bad.cc", "")
    assert [line.split(": ")[0] for line in violations(tmp_path)] == [
        "equitile/base/bad.cc:2", "equitile/comm/bad.cc:1", "equitile/pattern/bad.cc:1", "equitile/plan/bad.cc:1",
        "equitile/plan/bad.cc:2", "equitile/plan/bad.cc:3", "equitile/utils/bad.cc:1"]
