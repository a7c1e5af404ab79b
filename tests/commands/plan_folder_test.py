"""`equitile plan --mask FOLDER`: a whole run's masks, step by step and in total, against the same masks planned one by one."""
import json

import numpy as np
import pytest

PLANNERS = ["ulysses", "fractional", "dbsp:1x3"]


def write_run(folder, steps, layers, seed=3, **also):
    """Masks of a run: the first step dense, the third as the second. Names that do not sort by step."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    masks = {}
    for step in range(steps):
        for layer in range(layers):
            mask = rng.random((4, 9, 9)) < 0.5 * rng.random((4, 1, 1)) * 2
            masks[step, layer] = masks[1, layer] if step == 2 else mask | (step == 0)
    for i, ((step, layer), mask) in enumerate(sorted(masks.items(), reverse=True)):
        np.save(folder / f"m{i:03}.npy", mask)
        (folder / f"m{i:03}.json").write_text(json.dumps(
            {"version": 1, "batch": 2, "heads": 2, "q_tokens": 570, "kv_tokens": 570, "step": step, "layer": layer, **also}))
    return masks


def plan(equitile, *args):
    outcome = equitile("plan", "--for-ranks", 3, "--json", *args)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    return json.loads(outcome.out)


def test_sums_are_those_of_the_masks_one_by_one(equitile, tmp_path):
    masks = write_run(tmp_path / "run", 4, 2)
    # With threshold 1 every mask that differs is planned anew: as alone.
    got = plan(equitile, "--mask", "run", "--planner", ",".join(PLANNERS), "--reuse-threshold", 1)
    assert got["calls"] == 8 and got["ranks"] == 3 and got["batch"] == 2
    assert [step["step"] for step in got["steps"]] == [0, 1, 2, 3]
    alone = {}
    for i, key in enumerate(sorted(masks, reverse=True)):
        report = plan(equitile, "--mask", f"run/m{i:03}.npy", "--planner", ",".join(PLANNERS))
        alone[key] = {one["planner"]: one for one in report["plans"]}
    for step in got["steps"]:
        assert step["layers"] == 2
        assert step["density"] == pytest.approx(np.mean([masks[step["step"], l].mean() for l in range(2)]))
        for one in step["plans"]:
            same = [alone[step["step"], layer][one["planner"]] for layer in range(2)]
            assert one["rho_mean"] == pytest.approx(np.mean([s["rho"] for s in same]))
            assert one["rho_max"] == pytest.approx(max(s["rho"] for s in same))
            assert one["bytes"] == sum(s["bytes_max"] for s in same)
            assert one["predicted_seconds"] == pytest.approx(sum(s["predicted_seconds"] for s in same))
            if one["planner"] == "fractional":
                assert one["moved_blocks"] is None
            else:
                assert one["moved_blocks"] == pytest.approx(sum(s["moved_q_blocks"] + s["moved_kv_blocks"] for s in same))
    totals = {one["planner"]: one for one in got["summary"]["plans"]}
    for name, total in totals.items():
        parts = [one for step in got["steps"] for one in step["plans"] if one["planner"] == name]
        assert total["rho_mean"] == pytest.approx(np.mean([p["rho_mean"] for p in parts]))
        assert total["rho_max"] == max(p["rho_max"] for p in parts)
        assert total["bytes"] == sum(p["bytes"] for p in parts)
        assert total["plans_made"] + total["plans_kept"] == 8
    seconds = [one["predicted_seconds"] for one in got["summary"]["plans"]]
    assert seconds == sorted(seconds)
    assert got["density"] == pytest.approx(np.mean([m.mean() for m in masks.values()]))


def test_plans_are_kept_while_they_serve(equitile, tmp_path):
    write_run(tmp_path / "run", 4, 2)
    # The first step's layers are both dense and have one plan together; the third step is as the second.
    for threshold, made in (1e6, 1), (1, 5):
        got = plan(equitile, "--mask", "run", "--planner", "fractional", "--reuse-threshold", threshold)
        assert got["summary"]["plans"][0]["plans_made"] == made
    one = plan(equitile, "--mask", "run", "--planner", "fractional", "--layer", 1)
    assert one["calls"] == 4 and all(step["layers"] == 1 for step in one["steps"])


def test_fits_a_terminal(equitile, tmp_path):
    write_run(tmp_path / "run", 5, 3)
    outcome = equitile("plan", "--mask", "run", "--for-ranks", 8)
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80, outcome.out
    assert 0 < outcome.out.index("all 15 calls together") < outcome.out.index("step by step") < outcome.out.index("1-2 ")  # equal steps are one
    assert "moved" not in outcome.out and "moved" in equitile("plan", "--mask", "run", "--for-ranks", 8, "--wide").out
    assert "ulysses" in next(line for line in outcome.out.splitlines() if "usp:8x1" in line)  # the same plan
    assert "over ulysses" in outcome.out.replace("\n", " ")


def test_what_cannot_be_used_is_refused(equitile, tmp_path):
    write_run(tmp_path / "run", 2, 2)
    (tmp_path / "empty").mkdir()
    equitile("plan", "--mask", "empty", "--for-ranks", 2).must_be_refused("empty", "no .npy")
    equitile("plan", "--mask", "run").must_be_refused("--for-ranks")
    equitile("plan", "--mask", "run", "--for-ranks", 2, "--out", "p.json").must_be_refused("--out", "run is a folder")
    equitile("plan", "--mask", "run", "--for-ranks", 2, "--layer", 7).must_be_refused("--layer 7", "run")
    equitile("plan", "--mask", "run", "--for-ranks", 2, "--block", 32).must_be_refused("--block 32", "64")
    equitile("plan", "--mask", "run/m000.npy", "--for-ranks", 2, "--reuse-threshold", 2).must_be_refused("--reuse-threshold")
    np.save(tmp_path / "run" / "other.npy", np.ones((4, 8, 8), bool))
    equitile("plan", "--mask", "run", "--for-ranks", 2).must_be_refused("other.npy")
