"""`equitile bench linear`: what it prints, and what it refuses."""
import json

import pytest

SMALL = ["--tokens", "70", "--in", "24", "--out", "40", "--threads", "2"]
KEYS = ["target", "threads", "tokens", "in", "out", "weights", "compute", "epilogue", "peak_gflops", "gflops", "fraction_of_peak",
        "seconds", "speedup", "max_error", "tolerance"]


def test_one_case_is_one_object(equitile):
    outcome = equitile("bench", "linear", *SMALL, "--json")
    assert outcome.code == 0 and outcome.err == ""
    said = json.loads(outcome.out)
    assert list(said) == KEYS
    assert (said["tokens"], said["in"], said["out"], said["threads"]) == (70, 24, 40, 2)
    assert (said["weights"], said["epilogue"]) == ("f32", "none")
    assert said["gflops"] == pytest.approx(2e-9 * 70 * 24 * 40 / said["seconds"])
    assert said["fraction_of_peak"] == pytest.approx(said["gflops"] / said["peak_gflops"])
    assert 0 < said["max_error"] <= said["tolerance"] < 1e-3


def test_lists_pair_up_and_the_first_flag_is_slowest(equitile):
    outcome = equitile("bench", "linear", "--tokens", "5,9", "--in", "8,16", "--out", "20,3", "--weights", "f32,bf16",
                       "--epilogue", "gelu,gate", "--threads", "1", "--json")
    said = json.loads(outcome.out)
    assert [(row["tokens"], row["in"], row["out"], row["weights"], row["epilogue"]) for row in said] == [
        (tokens, *sizes, weights, epilogue) for tokens in (5, 9) for sizes in ((8, 20), (16, 3))
        for weights in ("f32", "bf16") for epilogue in ("gelu", "gate")]


def test_arithmetics_of_a_layer_are_compared_with_the_first(equitile):
    outcome = equitile("bench", "linear", "--tokens", "9", "--in", "8", "--out", "20", "--compute", "int16,f32,int8", "--epilogue", "bias,none",
                       "--json")
    said = json.loads(outcome.out)
    assert [(row["compute"], row["weights"], row["epilogue"]) for row in said] == [
        (compute, compute, epilogue) for compute in ("int16", "f32", "int8") for epilogue in ("bias", "none")]
    assert [row["speedup"] for row in said[:2]] == [1, 1] and all(row["speedup"] > 0 for row in said)
    assert said[0]["peak_gflops"] == said[2]["peak_gflops"] == said[4]["peak_gflops"]  # one run


def test_text_has_a_line_per_case(equitile):
    outcome = equitile("bench", "linear", "--tokens", "5", "--in", "8", "--out", "20,3", "--threads", "1")
    lines = outcome.out.splitlines()
    assert len(lines) == 3 and "fraction of peak" in lines[0]


def test_the_forced_target_runs(equitile):
    outcome = equitile("bench", "linear", *SMALL, "--json", EQUITILE_TARGET="portable")
    assert json.loads(outcome.out)["target"] == "portable"


@pytest.mark.parametrize("args, mention", [
    (["--in", "1,2", "--out", "1,2,3"], "pair up"), (["--threads", "0"], "--threads 0"), (["--in", "0"], "--in 0"),
    (["--weights", "f16"], "f32 or bf16"), (["--epilogue", "relu"], "--epilogue relu"), (["--tokens", ""], "--tokens"),
])
def test_mistakes(equitile, args, mention):
    equitile("bench", "linear", *args).must_be_refused(mention)
