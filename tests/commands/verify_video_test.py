"""`equitile verify -p`: one video on many ranks and threads. Small; nothing here depends on what the weights draw."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

MINI = pathlib.Path(__file__).resolve().parent.parent.parent / "models/wan-mini"
TINY = ["-p", "a red circle", "-m", MINI, "-W", 64, "-H", 48, "--video-frames", 5, "--steps", 2]
KEYS = ["what", "planner", "ranks", "threads", "comm", "promise", "ok", "different", "of", "max_error", "error", "bound"]


def test_same_bits_on_ranks_and_threads(equitile, tmp_path):
    outcome = equitile("verify", *TINY, "--ranks", "1,3", "--threads", "1,2", "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert list(said) == ["ok", "cases"] and said["ok"] is True
    assert [(c["ranks"], c["threads"], c["what"]) for c in said["cases"]] == [
        (ranks, threads, what) for ranks in (1, 3) for threads in (1, 2) for what in ("latents", "frames", "file")]
    for case in said["cases"]:
        assert list(case) == KEYS and case["ok"] and case["different"] == 0 and case["of"] > 0, case
        assert case["comm"] == ("solo" if case["ranks"] == 1 else "threads")
    sizes = {case["what"]: case["of"] for case in said["cases"]}
    assert sizes["latents"] == 16 * 2 * 6 * 8 and sizes["frames"] == 5 * 48 * 64 * 3
    assert list(tmp_path.iterdir()) == []


# 128 tokens are two blocks; ring merges the halves of a row, with other roundings.
SPLIT = ["-p", "a star", "-m", MINI, "-W", 256, "-H", 64, "--video-frames", 5, "--steps", 1, "--cfg-scale", 1, "--ranks", "1,2"]


@pytest.mark.parametrize("flags, bound", [(["--planner", "ring"], 5e-5), (["--planner", "usp:1x2", "--ranks", "2"], 5e-5),
                                          (["--no-reproducible"], 5e-5), (["--wire", "bf16"], 0.1)])
def test_where_bits_are_not_promised_a_bound_is(equitile, flags, bound):
    outcome = equitile("verify", *(SPLIT if "usp:1x2" not in flags else SPLIT[:-2]), *flags, "--json")
    said = json.loads(outcome.out)
    assert outcome.code == 0 and said["ok"] is True, outcome.err
    one = [case for case in said["cases"] if case["ranks"] == 1]
    assert all(case["promise"] == "same_bits" and case["different"] == 0 and case["bound"] == 0 for case in one)
    latents, frames = [case for case in said["cases"] if case["ranks"] == 2]
    assert (latents["what"], frames["what"]) == ("latents", "frames")
    assert latents["promise"] == frames["promise"] == "bound" and latents["bound"] == bound
    assert latents["error"] <= bound and 0 < frames["bound"] and frames["error"] <= frames["bound"]
    if "--no-reproducible" not in flags:  # which may choose a plan that keeps rows
        assert 0 < latents["different"] <= latents["of"] and 0 < latents["error"] and 0 < latents["max_error"]


# Two steps with much guidance, and one without: the bound knows how errors grow between.
@pytest.mark.parametrize("compute, bound", [("int16", 2.4e-3), ("int8", 5.6e-2), ("linear=int8", 5.6e-2), ("attention=int8", 5.6e-2)])
@pytest.mark.parametrize("guidance, growth", [(1, 1), (12, 16.3)])
def test_integers_of_split_rows_have_a_bound_of_their_own(equitile, compute, bound, guidance, growth):
    outcome = equitile("verify", "-p", "star", "-m", MINI, "-W", 256, "-H", 64, "--video-frames", 9, "--steps", 2, "--cfg-scale", guidance,
                       "--ranks", 3, "--planner", "ring", "--compute", compute, "--json")
    assert outcome.code == 0, outcome.err
    latents, frames = json.loads(outcome.out)["cases"]
    assert latents["bound"] == pytest.approx(bound * growth, rel=0.02) and latents["promise"] == "bound"
    assert latents["bound"] / 40 < latents["error"] <= latents["bound"]  # neither missed nor meaningless
    assert 0 < frames["error"] <= frames["bound"]


def test_what_may_be_off_is_told(equitile):
    lines = equitile("verify", *SPLIT, "--planner", "ring").out.splitlines()
    assert len(lines) == 7 and all("same bits" in line for line in lines[1:4]), lines
    assert all("within the bound: off by " in line for line in lines[4:6]) and lines[6] == "5 checks passed", lines
    lines = equitile("verify", *SPLIT, "--planner", "ulysses").out.splitlines()
    assert len(lines) == 8 and all("same bits" in line for line in lines[1:7]) and lines[7] == "6 checks passed", lines
    # Each rank has a pass of its own: nothing is split.
    lines = equitile("verify", *TINY, "--ranks", 2, "--planner", "ring").out.splitlines()
    assert len(lines) == 5 and all("same bits" in line for line in lines[1:4]), lines


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_processes_against_one(tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", os.environ["EQUITILE"], "verify", *map(str, TINY)]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] and [(c["what"], c["ranks"], c["comm"]) for c in said["cases"]] == [
        (what, 2, "mpi") for what in ("latents", "frames", "file")]
    done = subprocess.run([*command, "--ranks", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--ranks" in done.stderr


@pytest.mark.parametrize("flags, mentions", [
    ([*TINY, "--golden", "x"], ["--golden", "not with -p"]),
    ([*TINY, "--head-dim", 64], ["--head-dim"]),
    ([*TINY, "--ranks", "2,x"], ["--ranks x"]),
    ([*TINY, "--threads", "0"], ["--threads 0"]),
    ([*TINY, "--planner", "usp:2x2", "--ranks", "3"], ["usp:2x2"]),
    ([*TINY[:4], "-W", 50], ["width 50"]),
    (["--steps", 3], ["--steps", "only with -p"]),
    (["-m", MINI, "--golden", "x"], ["--model", "only with -p"]),
    (["--threads", "1,2"], ["--threads", "only with -p"]),
    (["--seed", -1], ["--seed -1"]),
])
def test_what_cannot_be_used(equitile, flags, mentions):
    equitile("verify", *flags).must_be_refused(*mentions)
