"""scripts/cluster-sim: the clock means what the platform says, runs repeat, and failures end them."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ["RANKS_PROGRAM_SIM"]
GIGABIT = 1e9 / 8  # bytes per second


def simulate(ranks, *arguments, platform="100g", compute="model"):
    return subprocess.run([ROOT / "scripts/cluster-sim", str(ranks), "--platform", platform, "--compute", compute, "--",
                           PROGRAM, *map(str, arguments)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def seconds(ranks, *arguments, **options):
    run = simulate(ranks, *arguments, **options)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    answer = json.loads(run.stdout)  # nothing but the program's output
    assert (answer["ranks"], answer["sum"]) == (ranks, ranks * (ranks - 1) / 2)
    return answer["seconds"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_work_takes_its_time(ranks):
    assert seconds(ranks, "--rounds", 10, "--work", 0.02) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("platform, bandwidth, latency", [("100g", 100 * GIGABIT, 2e-6), ("10g", 10 * GIGABIT, 20e-6)])
@pytest.mark.parametrize("ranks", [2, 5])
def test_the_network_is_what_the_platform_says(platform, bandwidth, latency, ranks):
    size = 8_000_000
    wanted = 10 * (latency + size / bandwidth)
    assert seconds(ranks, "--rounds", 10, "--work", 0, "--bytes", size, platform=platform) == pytest.approx(wanted, rel=0.01)


def test_transfers_pass_under_work():
    assert seconds(4, "--rounds", 10, "--work", 0.02, "--bytes", 8_000_000) == pytest.approx(0.2, rel=1e-3)


def test_two_nodes_share_one_slow_link():
    size = 8_000_000  # around the ring: one message each way over the slow link
    wanted = 10 * (20e-6 + size / (10 * GIGABIT))
    assert seconds(8, "--rounds", 10, "--work", 0, "--bytes", size, platform="two-nodes") == pytest.approx(wanted, rel=0.01)


def links(ranks, platform):
    run = simulate(ranks, "--links", platform=platform)
    assert run.returncode == 0, run.stderr
    machine = json.loads(run.stdout)
    return machine.get("node_of"), {link["class"]: (link["bytes_per_second"], link["latency_seconds"]) for link in machine["links"]}


def test_calibration_finds_nodes_and_what_their_ranks_share():
    nodes, found = links(7, "two-nodes")
    assert nodes == [0, 0, 0, 0, 1, 1, 1]
    assert found == {"network": pytest.approx((10 * GIGABIT, 20e-6), rel=0.02),
                     "node": pytest.approx((100 * GIGABIT, 2e-6), rel=0.02),
                     "cable": pytest.approx((10 * GIGABIT, 20e-6), rel=0.02)}


def test_calibration_finds_no_cable_where_ranks_share_none(tmp_path):
    # Two nodes of two ranks by name only: every rank has a way of its own.
    platform = tmp_path / "own.xml"
    platform.write_text((ROOT / "bench/platforms/10g.xml").read_text())
    (tmp_path / "own.xml.hosts").write_text("host0 0\nhost1 5\nhost2 0\nhost3 5\n")
    nodes, found = links(4, platform)
    assert nodes == [0, 1, 0, 1]
    assert found == {"network": pytest.approx((10 * GIGABIT, 20e-6), rel=0.02), "node": pytest.approx((10 * GIGABIT, 20e-6), rel=0.02)}
    (tmp_path / "own.xml.hosts").write_text("host0 0\nhost1\nhost2 0\nhost3 5\n")
    assert simulate(4, platform=platform).returncode == 2


@pytest.mark.parametrize("platform, ranks", [("100g", 3), ("two-nodes", 2)])
def test_ranks_without_neighbours_have_one_link(platform, ranks):
    nodes, found = links(ranks, platform)
    assert nodes is None and list(found) == ["network"]


def test_one_slow_rank_takes_twice_as_long():
    assert seconds(3, "--rounds", 10, "--work", 0.02, platform="one-slow") == pytest.approx(0.4, rel=1e-3)


def test_modelled_runs_repeat_exactly():
    runs = {simulate(4, "--rounds", 20, "--work", 0.003, "--bytes", 100_000).stdout for _ in range(3)}
    assert len(runs) == 1


def test_measured_work_is_not_modelled():
    assert seconds(2, "--rounds", 10, "--work", 5, compute="measured") < 5


@pytest.mark.parametrize("fault, code, message", [
    ("throw", 1, "rank 1 (step 5, layer 0, stage 0): the fan broke"),
    ("input", 2, "rank 1 (step 5, layer 0, stage 0): [io] m.npy: no such file"),
    ("differ", 1, "rank 1 has another mask than rank 0"),
])
def test_a_failing_rank_ends_the_run(fault, code, message):
    run = simulate(3, "--fault", fault)
    assert run.returncode == code
    assert run.stdout == ""
    assert message in run.stderr and run.stderr.count("\n") == 1


def test_ranks_and_threads_are_refused():
    for flag in ("--ranks", "--threads"):
        run = simulate(2, flag, 2)
        assert run.returncode == 2 and flag in run.stderr and run.stdout == ""


@pytest.mark.parametrize("arguments", [[], ["0", "--", "x"], ["2"], ["2", "--platform", "nowhere", "--", PROGRAM],
                                       ["2", "--compute", "magic", "--", PROGRAM], ["2", "--", "nowhere"]])
def test_what_cannot_be_used_is_refused(arguments):
    run = subprocess.run([ROOT / "scripts/cluster-sim", *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and run.stderr.startswith("cluster-sim: ") and run.stdout == ""


def test_generate_finds_its_model(tmp_path):
    words = ["-p", "a red circle", "-W", "32", "-H", "32", "--video-frames", "5", "--steps", "1", "--save-latents", "a.safetensors"]
    run = subprocess.run([ROOT / "scripts/cluster-sim", "2", "--", os.environ["EQUITILE_SIM"], "generate", *words], cwd=tmp_path,
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "a.safetensors.json").read_text())["run"]["ranks"] == 2
