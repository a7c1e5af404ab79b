"""A rank fails in the middle: the job ends soon, with one message that names the rank, and leaves no process behind."""
import os
import signal
import subprocess
import time

import pytest

PROGRAM = os.environ["RANKS_PROGRAM"]
MPIEXEC = [os.environ["MPIEXEC"], "--allow-run-as-root", "--oversubscribe"]
LIMIT = 10  # seconds within which a job must end
WATCHDOG = 2


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def read_pids(file):
    return dict(map(int, line.split()) for line in file.read_text().splitlines()) if file.exists() else {}


class Job:
    """mpirun of the program; knows its processes."""

    def __init__(self, folder, ranks, *arguments):
        self.pids_file = folder / "pids"
        self.ranks = ranks
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [*MPIEXEC, "-n", str(ranks), PROGRAM, "--pids", str(self.pids_file), *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def pids(self):
        """{rank: pid}, once all have started."""
        while len(found := read_pids(self.pids_file)) < self.ranks:
            assert time.monotonic() - self.begin < LIMIT
            time.sleep(0.02)
        return found

    def end(self):
        """Exit code, stdout, our lines of stderr."""
        out, err = self.process.communicate(timeout=2 * LIMIT)
        assert time.monotonic() - self.begin < LIMIT, err
        deadline = time.monotonic() + 2  # the launcher reaps them a little later
        while any(map(alive, read_pids(self.pids_file).values())):
            assert time.monotonic() < deadline, "orphans"
            time.sleep(0.05)
        self.err = err
        return self.process.returncode, out, [line for line in err.splitlines() if line.startswith("equitile: ")]


@pytest.mark.parametrize("on", [0, 1, 2])
def test_a_rank_that_throws(tmp_path, on):
    code, out, lines = Job(tmp_path, 3, "--fault", "throw", "--on", on).end()
    assert lines == [f"equitile: rank {on} (step 5, layer 0, stage 0): the fan broke"]
    assert (code, out) == (1, "")


def test_input_that_one_rank_cannot_use(tmp_path):
    code, _, lines = Job(tmp_path, 3, "--fault", "input", "--on", 2).end()
    assert code == 2
    assert lines == ["equitile: rank 2 (step 5, layer 0, stage 0): [io] m.npy: no such file"]


@pytest.mark.parametrize("on", [0, 2])
def test_a_rank_that_sleeps(tmp_path, on):
    code, _, lines = Job(tmp_path, 3, "--fault", "sleep", "--on", on, "--watchdog", WATCHDOG).end()
    assert code == 1 and len(lines) == 1
    assert lines[0].startswith(f"equitile: rank {on} (step ") and "no sign of life for 2 s" in lines[0]


def test_a_rank_that_is_stopped(tmp_path):
    job = Job(tmp_path, 3, "--rounds", 2000, "--watchdog", WATCHDOG)
    pids = job.pids()
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGSTOP)
    code, _, lines = job.end()
    assert code == 1 and len(lines) == 1 and lines[0].startswith("equitile: rank 1 (step ")


def test_a_rank_that_is_killed(tmp_path):
    job = Job(tmp_path, 3, "--rounds", 2000)
    pids = job.pids()
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGKILL)
    code, out, _ = job.end()
    assert code != 0 and out == ""
    assert "rank 1" in job.err  # the launcher's own message


@pytest.mark.parametrize("on", [1, 2])
def test_ranks_with_different_masks(tmp_path, on):
    code, out, lines = Job(tmp_path, 3, "--fault", "differ", "--on", on).end()
    assert (code, out) == (1, "")
    assert len(lines) == 1 and f"rank {on} has another mask than rank 0" in lines[0]


def test_slow_is_not_dead(tmp_path):
    code, out, lines = Job(tmp_path, 3, "--rounds", 1, "--work", 2.5, "--watchdog", 2).end()
    assert (code, lines) == (0, []) and '"sum":3' in out


def run_threads(*arguments):
    begin = time.monotonic()
    run = subprocess.run([PROGRAM, "--ranks", "3", *map(str, arguments)], stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=2 * LIMIT)
    assert time.monotonic() - begin < LIMIT
    return run


def test_threads_that_throw():
    run = run_threads("--fault", "throw")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "equitile: rank 1 (step 5, layer 0, stage 0): the fan broke\n"


def test_threads_that_sleep():
    run = run_threads("--fault", "sleep", "--watchdog", 1)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("equitile: rank 1 (step 5, layer 0, stage 0): [comm] no sign of life")
    assert run.stderr.count("\n") == 1


def test_ranks_are_refused_under_mpirun(tmp_path):
    code, out, lines = Job(tmp_path, 2, "--ranks", 2).end()
    assert (code, out) == (2, "") and len(lines) == 1 and "--ranks 2" in lines[0]
