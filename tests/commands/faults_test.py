"""Ranks of `verify` and `bench parallel` that die or were given other masks: the job ends soon, says which rank, and leaves no
process behind. tests/ranks/faults_test.py has the other faults, with a program of its own."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

LIMIT = 10  # seconds
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
LONG = ["--synthetic", "wan,heads=12,blocks=64,density=0.5", "--head-dim", "64", "-t", "1", "--watchdog", "2"]
COMMANDS = {
    "verify": ["verify", "--planner", "all", *LONG],
    "bench": ["bench", "parallel", "--planner", "fractional,ring", "--repeat", "10000", "--kernel-gflops", "50", *LONG],
}

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")


def ranks_below(parent):
    """{rank: pid} of the processes that a launcher has started."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [int(word.split(b"=")[1]) for word in environment if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if status[0] != "Z" and int(status[1]) == parent and ranks:
            found[ranks[0]] = int(folder.name)
    return found


def start(*words):
    return subprocess.Popen([*MPIRUN, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def gone(pids):
    deadline = time.monotonic() + 2  # the launcher reaps them a little later
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_rank_that_is_killed(command):
    job = start("-n", 3, os.environ["EQUITILE"], *COMMANDS[command])
    begin = time.monotonic()
    while len(pids := ranks_below(job.pid)) < 3:
        assert time.monotonic() - begin < LIMIT and job.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    out, err = job.communicate(timeout=2 * LIMIT)
    assert time.monotonic() - killed < LIMIT
    assert job.returncode != 0 and "rank 1" in err  # the launcher's own message
    gone(pids.values())


def test_ranks_with_different_masks(tmp_path):
    mask = np.random.default_rng(1).random((3, 8, 8)) < 0.5
    np.save(tmp_path / "one.npy", mask)
    mask[0, 0, 0] ^= True
    np.save(tmp_path / "other.npy", mask)
    words = [os.environ["EQUITILE"], "bench", "parallel", "--planner", "ulysses", "--head-dim", "16", "-t", "1",
             "--kernel-gflops", "50", "--mask"]
    begin = time.monotonic()
    job = start("-n", 2, *words, tmp_path / "one.npy", ":", "-n", 1, *words, tmp_path / "other.npy")
    out, err = job.communicate(timeout=2 * LIMIT)
    assert time.monotonic() - begin < LIMIT
    assert job.returncode != 0 and out == ""
    lines = [line for line in err.splitlines() if line.startswith("equitile: ")]
    assert len(lines) == 1 and "rank 2 has another mask than rank 0" in lines[0], err
