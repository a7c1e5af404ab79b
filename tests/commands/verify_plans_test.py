"""`equitile verify`: every planner on every number of ranks against one rank."""
import json
import os
import shutil
import subprocess

import numpy as np
import pytest

KEYS = ["planner", "ranks", "comm", "promise", "ok", "max_error", "bound"]
SMALL = ["--synthetic", "wan,heads=3,blocks=7,density=0.5,block=32", "--head-dim", "16"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]


def test_all_planners_keep_their_promise(equitile):
    outcome = equitile("verify", "--ranks", "1,2,3", *SMALL, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said["ok"] is True and list(said) == ["ok", "cases"]
    for case in said["cases"]:
        assert list(case) == KEYS and case["ok"]
        if case["promise"] == "same_bits":
            assert case["max_error"] == 0 and case["bound"] == 0
        else:
            assert case["max_error"] <= case["bound"] < 1e-3
    promise = {(case["planner"], case["ranks"]): case["promise"] for case in said["cases"]}
    for ranks in (1, 2, 3):
        assert promise["fractional", ranks] == promise["ulysses", ranks] == "same_bits"
    assert promise["ring", 3] == promise["dbsp:1x3", 3] == "bound"
    assert ("dbsp:auto", 3) in promise
    assert promise["reference", 1] == "bound"


@pytest.mark.parametrize("compute, bound", [("int16", 0.01), ("int8", 0.13)])
def test_integers_keep_their_promise(equitile, compute, bound):
    outcome = equitile("verify", "--ranks", "1,2,3", *SMALL, "--compute", compute, "--json")
    assert outcome.code == 0, outcome.err
    reference, *cases = json.loads(outcome.out)["cases"]
    assert reference["planner"] == "reference" and reference["max_error"] > 1e-5  # not f32
    for case in cases:
        assert case["ok"] and case["bound"] <= bound and (case["bound"] == 0) == (case["promise"] == "same_bits")
    assert any(case["promise"] == "bound" and case["max_error"] > 1e-5 for case in cases)
    equitile("verify", "--golden", "x", "--compute", compute).must_be_refused("--compute", "--golden")


def test_one_line_per_case(equitile):
    outcome = equitile("verify", "--ranks", "2", "--planner", "fractional,ring", *SMALL)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert len(lines) == 4 and "reference" in lines[0] and lines[3] == "3 checks passed"
    assert "fractional" in lines[1] and "same bits" in lines[1]
    assert "ring" in lines[2] and "within the bound" in lines[2]


def test_a_mask_with_orders_and_empty_rows(equitile, tmp_path):
    mask = np.random.default_rng(1).random((4, 5, 5)) < 0.4
    mask[1, 2] = False
    np.save(tmp_path / "mask.npy", mask)
    (tmp_path / "mask.json").write_text(json.dumps({
        "version": 1, "batch": 2, "heads": 2, "block": 32, "q_tokens": 154, "kv_tokens": 154, "grid": [3, 10, 5],
        "text": {"before": 3, "after": 1}, "orders": ["fhw", "hwf", "wfh", "fhw"]}))
    outcome = equitile("verify", "--mask", str(tmp_path / "mask.npy"), "--ranks", "1,3,4", "--head-dim", "8")
    assert outcome.code == 0, outcome.err + outcome.out


@pytest.mark.parametrize("flags, words", [
    (["--planner", "usp:2x2", "--ranks", "3"], "usp:2x2"),
    (["--ranks", "0"], "--ranks"),
    (["--head-dim", "12"], "--head-dim 12"),
    (["--planner", "magic"], "unknown planner 'magic'"),
    (["--mask", "nowhere.npy"], "nowhere.npy"),
])
def test_what_cannot_be_used(equitile, flags, words):
    outcome = equitile("verify", *flags)
    assert outcome.code == 2 and words in outcome.err


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_processes_against_one(ranks):
    run = subprocess.run([*MPIRUN, "-n", str(ranks), os.environ["EQUITILE"], "verify", *SMALL, "--json"], timeout=60,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["ok"] and {case["ranks"] for case in said["cases"] if case["planner"] != "reference"} == {ranks}
    assert all(case["comm"] == "mpi" for case in said["cases"] if case["planner"] != "reference")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_ranks_are_the_launchers(tmp_path):
    run = subprocess.run([*MPIRUN, "-n", "2", os.environ["EQUITILE"], "verify", "--ranks", "2"], timeout=60,
                         capture_output=True, text=True)
    assert run.returncode == 2 and "--ranks" in run.stderr
