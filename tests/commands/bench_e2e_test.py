"""`equitile bench e2e`: what it prints, and what it refuses."""
import json
import pathlib

import pytest

TINY = pathlib.Path(__file__).resolve().parents[1] / "golden/tiny-wan"


def test_parts_add_up(equitile):
    outcome = equitile("bench", "e2e", "-m", TINY, "-W", "48", "-H", "32", "--video-frames", "5", "--threads", "2", "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["tokens"], said["batch"], said["layers"], said["threads"]) == (2 * 2 * 3, 2, 2, 2)
    assert said["attention_seconds"] + said["linear_seconds"] + said["rest_seconds"] == pytest.approx(said["step_seconds"], rel=0.05)
    assert 0 < said["fraction_of_peak"] < 1.2
    assert said["fraction_of_peak"] == pytest.approx(1e-9 * said["flops"] / said["step_seconds"] / said["peak_gflops"])
    assert 0 < said["memory_before_bytes"] <= said["peak_memory_bytes"]


def test_tokens_make_a_grid(equitile):
    for weights in ("f32", "bf16"):
        outcome = equitile("bench", "e2e", "-m", TINY, "--tokens", "90", "--batch", "1", "--weights", weights, "--json")
        said = json.loads(outcome.out)
        assert (said["tokens"], said["batch"], said["weights"]) == (90, 1, weights)


@pytest.mark.parametrize("compute, weights, whole", [
    ("int8", "int8", "attention=int8,linear=int8,vae=int16,text=int16"), ("attention=int16", "f32", "attention=int16,linear=f32,vae=f32,text=f32")])
def test_integers(equitile, compute, weights, whole):
    outcome = equitile("bench", "e2e", "-m", TINY, "--tokens", "90", "--compute", compute, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["weights"], said["compute"]) == (weights, whole)


def test_text_fits_a_terminal(equitile):
    outcome = equitile("bench", "e2e", "-W", "48", "-H", "32", "--video-frames", "5", EQUITILE_MODEL=str(TINY))
    assert outcome.code == 0, outcome.err
    lines = outcome.out.replace(str(TINY), "MODEL").splitlines()
    assert lines[0].startswith("MODEL: 2 layers, f32 weights, 12 tokens, 2 passes") and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:]] == ["part", "attention", "linear", "rest", "step"]


@pytest.mark.parametrize("args, mention", [
    (["-m", "nowhere"], "nowhere"), (["--shape", "wan-2b"], "wan-14b"), (["--shape", "wan-1.3b,layers=0"], "layers=N"),
    (["-m", TINY, "-W", "250"], "250"), (["-m", TINY, "--tokens", "1031"], "1031"), (["-m", TINY, "--weights", "f16"], "f32 or bf16"),
    (["-m", TINY, "--tokens", "0"], "--tokens 0"), (["-m", TINY, "--compute", "int4"], "'int4' is not known"),
    (["-m", TINY, "--compute", "int8", "--weights", "bf16"], "--weights bf16"),
])
def test_mistakes(equitile, args, mention):
    equitile("bench", "e2e", *args).must_be_refused(mention)
