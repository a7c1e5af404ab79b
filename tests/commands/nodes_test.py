"""`scripts/nodes`: machines that are namespaces of this one, joined by cables that can be slow, long or pulled. What is true on
one rank is true there: the same latents from every source of masks, one copy of weights per node, a lost rank named and a run that
goes on, exchanges that take as long as was predicted. Skipped where namespaces are not allowed."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from sparse_attention_test import pattern_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NODES, MINI = ROOT / "scripts/nodes", ROOT / "models/wan-mini"
SIZE = f"-m {MINI} -W 128 -H 96 --video-frames 17 -t 1"  # 5 x 6 x 8 tokens: four blocks, the last one ragged
SHORT = f"{SIZE} --steps 3"
SPARSE = ["predict", "predict:mass=0.5,tail=none", "observe:error=0.05", "observe:mass=0.6", "pattern:p.json", "pattern+predict:p.json,mass=0.4", "svg",
          "radial", "sta", "sparge", "window:spatial", "window:temporal"]
WATCHDOG = 8  # seconds; below the time after which TCP itself gives a pulled cable up, and more than a node is silent on busy cores


@pytest.fixture(scope="module", autouse=True)
def nodes_can_be_made():
    done = subprocess.run([NODES, "--check"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip() or "nodes cannot be made here")


def processes(mark):
    """{pid: environment} of what was started with this mark."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"NODES_TEST={mark}".encode() in words:
            found[int(folder.name)] = words
    return found


def links():
    return {path.name for path in pathlib.Path("/sys/class/net").iterdir()}


@pytest.fixture
def start(tmp_path):
    """start(2, "--rate", "1Gbit", "--", …): the running script. In the end nothing of it may be left: a namespace lives as long as
    its processes, and this machine's own network has nothing to do with it."""
    before = links()

    def run(*words):
        environment = {**os.environ, "NODES_TEST": str(tmp_path), "LC_ALL": "C.UTF-8"}
        return subprocess.Popen([NODES, *map(str, words)], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    yield run
    deadline = time.monotonic() + 5
    while left := processes(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert links() == before


def finish(job, timeout=120):
    out, err = job.communicate(timeout=timeout)
    assert job.returncode == 0, err
    return out


def copies_of_weights(mark):
    """{rank: the file that its weights are mapped from} of running ranks."""
    found = {}
    for pid, words in processes(mark).items():
        rank = [int(word.split(b"=")[1]) for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
        try:
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        if rank and (shared := re.search(r" (\d+) +/memfd:equitile", maps)):
            found[rank[0]] = shared[1]
    return found


def test_every_source_of_masks_and_one_copy_of_weights_per_node(equitile, start, tmp_path):
    pattern_file(equitile, tmp_path, grid=[5, 6, 8])
    np.save(tmp_path / "m.npy", np.random.default_rng(3).random((6, 4, 4)) < 0.6)
    (tmp_path / "m.json").write_text(json.dumps({"version": 1, "heads": 6, "q_tokens": 240, "kv_tokens": 240}))
    (tmp_path / "prompts.txt").write_text("7\ta big red circle bounces on a black background\n")
    ways = [f"{SHORT} --dense-steps 1 --attention {source}" for source in SPARSE]
    ways += [f"{SHORT} --attention mask:m.npy", f"{SHORT} --dense-steps 1 --attention observe:mass=0.6 --cache easy:0.2"]
    command = ["compare", "--prompts", "prompts.txt", "--a", SHORT, *(word for way in ways for word in ("--b", way)), "--json"]
    alone = equitile(*command)
    assert alone.code == 0, alone.err

    job = start(2, "--ranks-per-node", 2, "--", os.environ["EQUITILE"], *command)
    copies = {}
    while len(copies) < 4 and job.poll() is None:
        copies |= copies_of_weights(tmp_path)
        time.sleep(0.02)
    together = json.loads(finish(job))
    assert sorted(copies) == [0, 1, 2, 3]
    assert copies[0] == copies[1] and copies[2] == copies[3] and copies[0] != copies[2], copies

    hashes = lambda said: {one["b"]: (one["prompts"][0]["latents_a"], one["prompts"][0]["latents_b"]) for one in said["comparisons"]}
    one, two = hashes(json.loads(alone.out)), hashes(together)
    assert len(one) == len(ways) and one == two
    same_as_dense = {way for way, (dense, other) in one.items() if dense == other}
    assert all("sta" in way for way in same_as_dense), "windows of tiles alone are larger than this video"


def test_a_pulled_cable_is_named_and_the_run_goes_on(equitile, start, tmp_path):
    flags = ["-p", "a star", "-s", 3, *SIZE.split(), "--steps", 20, "--attention", "observe:mass=0.6"]
    assert equitile("generate", *flags, "--save-latents", "alone.st").code == 0
    cut = ["generate", *flags, "--watchdog", WATCHDOG, "--checkpoint-every", 1, "--save-latents", "cut.st"]
    job = start(2, "--rate", "20Mbit", "--cut-when", "cut.st.ckpt", "--", os.environ["EQUITILE"], *cut)
    while not (tmp_path / "cut.st.ckpt").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)
    pulled = time.monotonic()
    while "no sign of life" not in (line := job.stderr.readline()):
        assert line, "it ended without a word about the lost rank"
    named = time.monotonic() - pulled
    assert re.search(rf"equitile: rank 1\b.*no sign of life for {WATCHDOG} s \(noticed by rank 0\)", line), line
    assert WATCHDOG - 1 < named < WATCHDOG + 15, named
    job.communicate(timeout=60)
    assert job.returncode != 0 and not (tmp_path / "cut.st").exists()
    again = equitile("generate", *flags, "--save-latents", "cut.st", "--resume")
    assert again.code == 0, again.err
    assert (tmp_path / "cut.st").read_bytes() == (tmp_path / "alone.st").read_bytes()


def test_a_long_cable(equitile, start, tmp_path):
    flags = ["-p", "a star", "-s", 3, *SIZE.split(), "--steps", 1]
    assert equitile("generate", *flags, "--save-latents", "alone.st").code == 0
    finish(start(2, "--delay", "5ms", "--", os.environ["EQUITILE"], "generate", *flags, "--save-latents", "far.st"))
    assert (tmp_path / "far.st").read_bytes() == (tmp_path / "alone.st").read_bytes()
    # Two cables each way; none of the six layers can do with less than a way there and a way back.
    assert json.loads((tmp_path / "far.st.json").read_text())["run"]["seconds"]["steps"] > 6 * 2 * 2 * 0.005


def test_exchange_as_predicted(start, tmp_path, capsys):
    """On a network that is slow enough for the exchange to be most of the time, so that busy cores matter little."""
    rates = ["--head-dim", 128, "-t", 1]
    finish(start(2, "--rate", "100Mbit", "--", os.environ["EQUITILE"], "bench", "machine", *rates, "--out", "machine.json"))
    link = next(link for link in json.loads((tmp_path / "machine.json").read_text())["links"])
    assert link["class"] == "network" and 100e6 / 8 / 4 < link["bytes_per_second"] < 100e6 / 8 * 1.2, link
    said = finish(start(2, "--rate", "100Mbit", "--", os.environ["EQUITILE"], "bench", "parallel", "--synthetic",
                        "uniform,heads=4,blocks=16,density=0.05", *rates, "--planner", "ulysses,fractional,ring", "--no-overlap",
                        "--machine", "machine.json", "--repeat", 3, "--json"))
    for plan in json.loads(said)["plans"]:
        ratio = plan["predicted_seconds"] / plan["seconds"]
        with capsys.disabled():
            print(f" {plan['planner']}: predicted / measured {ratio:.2f}, exchange {plan['exchange_exposed'] / plan['seconds']:.2f} of it", end=";")
        assert plan["exchange_exposed"] > 0.3 * plan["seconds"] and 0.25 < ratio < 4, plan


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(start, tmp_path, how):
    job = start(2, "--delay", "1ms", "--", "sh", "-c", "touch running.$OMPI_COMM_WORLD_RANK; exec sleep 1000")
    while len(list(tmp_path.glob("running.*"))) < 2:
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)
    job.send_signal(how)
    job.communicate(timeout=30)
    assert job.returncode != 0


def test_machines_to_whoever_looks(start):
    look = "touch /dev/shm/$(hostname); sleep 0.2; echo $(hostname) $(ls /dev/shm | grep ^node)"
    assert sorted(finish(start(3, "--", "sh", "-c", look)).splitlines()) == ["node0 node0", "node1 node1", "node2 node2"]


@pytest.mark.parametrize("words, mentions", [
    (["0", "--", "true"], "how many"), (["2", "true"], "--"), (["2"], "--"), (["2", "--rate", "fast", "--", "true"], "fast"),
    (["2", "--delay", "1s", "--", "true"], "1s"), (["2", "--ranks-per-node", "0", "--", "true"], "--ranks-per-node"),
])
def test_refusals(start, words, mentions):
    job = start(*words)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 2 and err.startswith("nodes: ") and mentions in err and out == ""
