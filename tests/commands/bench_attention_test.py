"""`equitile bench attention`: what it says, in which order, and what it refuses. How fast is not tested here."""
import json

import numpy as np
import pytest

KEYS = ["target", "threads", "dtype", "compute", "head_dim", "tokens", "heads", "block", "mask", "density", "kept_blocks", "peak_gflops",
        "gflops", "fraction_of_peak", "seconds", "speedup", "max_error", "tolerance"]
SMALL = ["--heads", "2", "--tokens", "200", "--head-dim", "16", "--threads", "2"]


@pytest.fixture
def bench(equitile):
    """JSON of a small run, with some flags changed."""

    def run(*changed, **environment):
        names = [flag for flag in changed if str(flag).startswith("--")]
        kept = [word for pair in zip(SMALL[::2], SMALL[1::2]) if pair[0] not in names for word in pair]
        outcome = equitile("bench", "attention", *changed, *kept, "--json", **environment)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return run


def test_one_object_with_all_keys(bench):
    said = bench()
    assert list(said) == KEYS
    assert said["threads"] == 2 and said["dtype"] == "f32" and said["head_dim"] == 16 and said["tokens"] == 200
    assert said["heads"] == 2 and said["block"] == 64 and said["mask"] == "random" and said["density"] == 1.0
    assert said["kept_blocks"] == 2 * 4 * 4
    assert said["fraction_of_peak"] == pytest.approx(said["gflops"] / said["peak_gflops"])
    assert said["gflops"] == pytest.approx(4 * 16 * 2 * 200 * 200 / said["seconds"] * 1e-9)
    assert 0 <= said["max_error"] <= said["tolerance"] < 1e-3


def test_density_is_of_every_row(bench):
    said = bench("--density", "0.3", "--tokens", "650", "--block", "16")
    assert said["kept_blocks"] == 2 * 41 * round(0.3 * 41) and said["density"] == 0.3
    assert bench("--density", "0.001")["kept_blocks"] == 2 * 4


def test_one_block_per_row(bench):
    said = bench("--mask", "one")
    assert said["mask"] == "one" and said["kept_blocks"] == 2 * 4 and said["density"] == 0.25


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_dtypes(bench, dtype):
    assert bench("--dtype", dtype)["dtype"] == dtype


def test_lists_give_an_array_with_the_first_flag_slowest(bench):
    said = bench("--density", "1,0.5", "--head-dim", "8,24", "--dtype", "f32,bf16")
    assert [(row["density"], row["head_dim"], row["dtype"]) for row in said] == [
        (d, h, t) for d in (1, 0.5) for h in (8, 24) for t in ("f32", "bf16")]
    said = bench("--head-dim", "8,24", "--density", "1,0.5")
    assert [(row["head_dim"], row["density"]) for row in said] == [(8, 1), (8, 0.5), (24, 1), (24, 0.5)]


def test_arithmetics_of_a_call_are_compared_with_the_first(bench):
    said = bench("--compute", "f32,int16,int8", "--head-dim", "8,24")
    assert [(row["compute"], row["head_dim"]) for row in said] == [(c, h) for c in ("f32", "int16", "int8") for h in (8, 24)]
    assert [row["speedup"] for row in said[:2]] == [1, 1] and all(row["speedup"] > 0 for row in said)
    assert said[0]["peak_gflops"] == said[2]["peak_gflops"] == said[4]["peak_gflops"]  # one run
    assert said[0]["tolerance"] < said[2]["tolerance"] < said[4]["tolerance"]


def test_text_is_a_table(equitile):
    outcome = equitile("bench", "attention", *SMALL, "--density", "1,0.25")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and len(lines) == 3 and "fraction of peak" in lines[0]


def test_forced_target(bench):
    assert bench(EQUITILE_TARGET="portable")["target"] == "portable"


def test_mask_file(bench, equitile, tmp_path):
    mask = np.random.default_rng(1).random((6, 5, 5)) < 0.5
    np.save(tmp_path / "m.npy", mask)
    (tmp_path / "m.json").write_text(json.dumps(
        {"batch": 2, "block": 32, "q_tokens": 149, "kv_tokens": 149, "grid": [5, 4, 7], "text": {"before": 3, "after": 6},
         "orders": ["fhw", "hwf", "whf"] * 2}))
    run = ["bench", "attention", "--head-dim", "16", "--json", "--mask", "m.npy"]
    said = json.loads(equitile(*run).out)
    assert (said["heads"], said["tokens"], said["block"], said["kept_blocks"]) == (3, 149, 32, mask.sum())
    assert said["density"] == pytest.approx(mask.mean()) and said["mask"] == "m.npy"
    assert equitile(*run, "--tokens", "149", "--heads", "3").code == 0
    equitile(*run, "--tokens", "150").must_be_refused("--tokens 150", "149")
    equitile(*run, "--heads", "3,4").must_be_refused("--heads 4", "3")
    equitile(*run, "--layer", "1").must_be_refused("--layer 1", "1 layer")


def test_mask_file_with_layers(bench, equitile, tmp_path):
    masks = np.zeros((2, 1, 3, 3), bool)
    masks[1, 0, 0, 2] = True
    np.save(tmp_path / "m.npy", masks)
    run = ["bench", "attention", "--head-dim", "16", "--json", "--mask", "m.npy"]
    assert json.loads(equitile(*run, "--layer", "1").out)["kept_blocks"] == 1
    assert json.loads(equitile(*run).out)["kept_blocks"] == 0  # nothing to compute is also right


@pytest.mark.parametrize("args, mention", [
    (["--head-dim", "12"], "--head-dim 12: must be a multiple of 8"), (["--head-dim", "520"], "--head-dim 520"),
    (["--head-dim", "0"], "--head-dim 0"), (["--block", "8"], "--block 8: must be a multiple of 16"),
    (["--block", "272"], "--block 272"), (["--density", "1.5"], "--density 1.5: must be above 0 and at most 1"),
    (["--density", "0"], "--density 0"), (["--density", "0.5,-1"], "--density -1"), (["--density", "nan"], "--density nan"),
    (["--threads", "0"], "--threads 0"), (["--heads", "0"], "--heads 0"), (["--tokens", "0"], "--tokens 0"),
    (["--tokens", "64,"], "--tokens"), (["--dtype", "f64"], "--dtype f64"), (["--mask", "no-such-file.npy"], "no-such-file.npy"),
    (["--mask", "ones"], "ones"), (["--seed", "-1"], "--seed -1"), (["--tokenz", "64"], "--tokens"),
])
def test_refused(equitile, args, mention):
    equitile("bench", "attention", *args).must_be_refused(mention)


def test_a_broken_mask_file_is_refused(equitile, tmp_path):
    np.save(tmp_path / "flat.npy", np.ones((4, 4), bool))
    np.save(tmp_path / "float.npy", np.ones((1, 4, 4)))
    np.save(tmp_path / "good.npy", np.ones((1, 4, 4), bool))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:-1])
    for name in ["flat.npy", "float.npy", "cut.npy"]:
        equitile("bench", "attention", "--mask", name).must_be_refused(name)
