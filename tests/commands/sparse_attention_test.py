"""Masks that are predicted or observed while a video is made: the same bits on any ranks, threads and after a crash; dense where
nothing may be left out; what cannot work is refused before any work."""
import json
import os
import re
import shutil
import struct
import subprocess
import time

import pytest
from generate_test import change_tensor, copied_model
from made_videos import MINI, THREE_BLOCKS, latents, made, sha256

FLAGS = [*THREE_BLOCKS, "--steps", 5]
SOURCES = ["predict:mass=0.6", "predict:mass=0.5,min=0.1,tail=none", "predict:mass=0.6,refresh=2", "observe:mass=0.6",
           "observe:mass=0.5,tail=none,at=1,refresh=2", "pattern:p.json", "pattern+predict:p.json,mass=0.4", "svg", "radial", "sta",
           "sparge", "window:spatial", "window:temporal", "predict:mass=0.4,guard=0.5", "oracle:density=0.4",
           "predict:p.json,mass=0.5", "observe:p.json,mass=0.5", "predict:error=0.05,refresh=2", "observe:error=0.1,orders=hwf+tiles:2x3x4",
           "predict:w.json,error=0.05", "observe:w.json,error=0.1", "pattern+predict:w.json,error=0.2,refresh=2"]
MORE_RANKS = {"predict:mass=0.6", "svg", "observe:error=0.1,orders=hwf+tiles:2x3x4", "pattern+predict:w.json,error=0.2,refresh=2"}  # than three blocks
MODES = [{"mode": "full"}, {"mode": "skip"}, {"mode": "diagonal", "size": 0.3, "p": 0.6, "theta": 0.7},
         {"mode": "multi-diagonal", "size": 6}, {"mode": "stripes", "columns": [[0, 30], [100, 101]]}, {"mode": "mean"}]


def pattern_file(equitile, tmp_path, **changes):
    """A pattern of all modes in every layer, other ones at low noise."""
    made(equitile("generate", *FLAGS, "-o", "any.mp4", EQUITILE_MODEL=str(MINI)))
    model = json.loads((tmp_path / "any.mp4.json").read_text())["parameters"]["model_fingerprint"]
    heads = [{"density": 0.5, "error": 0.0, **mode} for mode in MODES]
    file = {"version": 1, "kind": "pattern", "model": model, "grid": [3, 6, 8], "text": {"before": 0, "after": 0}, "block": 64,
            "home_order": "fhw", "layers": 6, "heads": 6, "calibration": {"prompts": [], "seeds": []}, "objective": "budget",
            "dials": {}, "totals": {"density": 0.5, "predicted_speedup": 1.3}, "measured": {},
            "ranges": [{"sigma": [0.5, 1], "layers": [heads[i:] + heads[:i] for i in range(6)]},
                       {"sigma": [0, 0.5], "layers": [heads[::-1]] * 6}]}
    (tmp_path / "p.json").write_text(json.dumps({**file, **changes}))
    weights = [{"sigma": [0.7, 1], "layers": [1, 2, 0.5, 1, 0.1, 3]}, {"sigma": [0, 0.7], "layers": [2, 1, 0, 1, 1, 0.5]}]
    (tmp_path / "w.json").write_text(json.dumps({**file, "version": 2, "error_weights": weights, **changes}))


@pytest.fixture
def generate(equitile, tmp_path):
    def run(*args):
        return equitile("generate", *FLAGS, *args, EQUITILE_MODEL=str(MINI))

    return run


@pytest.mark.parametrize("compute", ["int16", "int8"])
@pytest.mark.parametrize("attention", ["predict:error=0.1", "observe:error=0.1", "svg", "pattern+predict:w.json,error=0.2"])
def test_integers_give_the_same_bits_on_any_ranks(equitile, tmp_path, attention, compute):
    """Latents, frames and file, with every kind of source that looks at tokens."""
    if ".json" in attention:
        pattern_file(equitile, tmp_path)
    outcome = equitile("verify", *FLAGS[:-1], 3, "--dense-steps", 1, "--attention", attention, "--compute", compute, "--ranks", "1,2,3,5,8",
                       "--json", EQUITILE_MODEL=str(MINI))
    assert outcome.code == 0, outcome.err
    cases = json.loads(outcome.out)["cases"]
    assert [case["ranks"] for case in cases if case["what"] == "latents"] == [1, 2, 3, 5, 8]
    assert all(case["promise"] == "same_bits" and case["different"] == 0 for case in cases)


@pytest.mark.parametrize("attention", SOURCES)
def test_same_bits_on_any_ranks_and_threads(equitile, generate, tmp_path, attention):
    if ".json" in attention:
        pattern_file(equitile, tmp_path)
    one = latents(generate, tmp_path, "--attention", attention, "-t", 1)
    if attention != "sta":  # whose windows of tiles are larger than this video
        assert one != latents(generate, tmp_path)
    many = [["--ranks", 8, "-t", 1]] if attention in MORE_RANKS else []
    for flags in ["-t", 2], ["--ranks", 2], ["--ranks", 3, "--planner", "ulysses"], ["--ranks", 5, "-t", 1], *many:
        assert latents(generate, tmp_path, "--attention", attention, *flags) == one, flags


def test_heads_and_layers_that_attend_to_nothing(equitile, generate, tmp_path):
    head = {"density": 0.5, "error": 0.0}
    full, skip = {**head, "mode": "full"}, {**head, "mode": "skip"}
    layers = [[skip] * 6, [full] * 6, [skip] + [full] * 5, [full] * 5 + [skip], [skip, full] * 3, [full] * 6]
    pattern_file(equitile, tmp_path, ranges=[{"sigma": [0, 1], "layers": layers}])
    flags = ["--attention", "pattern:p.json", "--perf-dump-path", "perf.json"]
    one = latents(generate, tmp_path, *flags)
    calls = [call for call in json.loads((tmp_path / "perf.json").read_text())["calls"] if call["step"] == 2]
    assert [round(call["density"], 3) for call in calls] == [0, 1, 0.833, 0.833, 0.5, 1]
    assert calls[0]["planner"] == "none"
    for more in ["--ranks", 3], ["--ranks", 5, "--planner", "ulysses"], ["--ranks", 2, "--planner", "fractional"]:
        assert latents(generate, tmp_path, *flags, *more) == one, more


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_same_bits_under_mpirun(generate, tmp_path):
    one = latents(generate, tmp_path, "--attention", "observe:mass=0.6", "--cache", "easy:0.2")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", os.environ["EQUITILE"], "generate", "-m", MINI, *FLAGS,
               "--attention", "observe:mass=0.6", "--cache", "easy:0.2", "--save-latents", "b.st"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sha256(tmp_path / "b.st") == one


def test_all_of_the_mass_is_dense_bit_for_bit(generate, tmp_path):
    dense = latents(generate, tmp_path)
    assert latents(generate, tmp_path, "--attention", "predict:mass=1") == dense
    assert latents(generate, tmp_path, "--attention", "observe:mass=1", "--ranks", 2) == dense
    assert latents(generate, tmp_path, "--attention", "predict:error=0") == dense
    assert latents(generate, tmp_path, "--attention", "predict:mass=0.5", "--dense-steps", "100%") == dense
    assert latents(generate, tmp_path, "--attention", "predict:mass=0.5", "--dense-layers", 6) == dense
    assert latents(generate, tmp_path, "--cache", "easy:1e-9") == dense


def steps_in(checkpoint):
    """Steps that are in a checkpoint; 0 where there is none."""
    try:
        data = checkpoint.read_bytes()
        return int(json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]["step"])
    except OSError:
        return 0


def killed_after(tmp_path, steps, *args):
    """Starts a run and kills it when it has stored so many steps; False where it was faster."""
    (tmp_path / "c.st.ckpt").unlink(missing_ok=True)
    command = [os.environ["EQUITILE"], "generate", "-m", MINI, *FLAGS, *args, "--save-latents", "c.st", "--checkpoint-every", 1]
    run = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while run.poll() is None and steps_in(tmp_path / "c.st.ckpt") < steps:
        time.sleep(0.001)
    run.kill()
    run.wait()
    return steps_in(tmp_path / "c.st.ckpt") == steps


@pytest.mark.parametrize("flags", [["--attention", "observe:mass=0.6", "--cache", "easy:0.5"],
                                   ["--attention", "predict:mass=0.6,refresh=3", "--dense-steps", 1],
                                   ["--attention", "predict:error=0.05,refresh=3", "--dense-steps", 1],
                                   ["--attention", "observe:error=0.05", "--token-order", "hilbert"],
                                   ["--attention", "pattern+predict:w.json,error=0.2,refresh=3", "--dense-steps", 1],
                                   ["--attention", "observe:mass=0.6,at=2,refresh=2", "--share-passes"],
                                   ["--attention", "observe:mass=0.6", "--token-order", "hilbert"],
                                   ["--attention", "predict:mass=0.6,refresh=3", "--token-order", "tiles:2x3x4"]])
def test_goes_on_after_any_step_with_the_same_bits(equitile, generate, tmp_path, flags):
    if ".json" in flags[1]:
        pattern_file(equitile, tmp_path)
    whole = latents(generate, tmp_path, *flags)
    for steps in 1, 2, 3, 4:
        assert any(killed_after(tmp_path, steps, *flags) for _ in range(20)), steps
        outcome = generate("--save-latents", "c.st", *flags, "--resume", "--ranks", 1 + steps % 2)
        assert outcome.code == 0, outcome.err
        assert sha256(tmp_path / "c.st") == whole, steps


def test_a_run_that_goes_on_tells_of_all_its_steps(generate, tmp_path):
    flags = ["--attention", "observe:mass=0.6", "--cache", "easy:0.5", "--dense-steps", 1]

    def told(*more):
        outcome = generate("--save-latents", "c.st", "--perf-dump-path", "perf.json", "--measure-mass=3", *flags, *more)
        assert outcome.code == 0, outcome.err
        perf = json.loads((tmp_path / "perf.json").read_text())
        calls = [[call[key] for key in ("step", "layer", "density", "mass_held", "planner")] for call in perf["calls"]]
        steps = [(step["step"], step["skipped"]) for step in perf["steps"]]
        assert perf["steps_skipped"] == [step for step, skipped in steps if skipped] and len(perf["step_seconds"]) == 5
        for step in perf["steps"]:
            attention = sum(call[part] for call in perf["calls"] if call["step"] == step["step"]
                            for part in ("mask_seconds", "watch_seconds", "plan_seconds", "attention_seconds"))
            assert step["seconds"] == pytest.approx(step["rest_seconds"] + attention) and step["rest_seconds"] > 0
        assert perf["plans"]["made"] + perf["plans"]["kept"] == perf["attention"]["runs"] == len(calls)
        return outcome.out.splitlines()[1:], perf["sparsity"], perf["layout"], calls, steps

    whole = told()
    assert any(skipped for _, skipped in whole[4])
    for steps in 2, 4:
        assert any(killed_after(tmp_path, steps, "--measure-mass=3", *flags) for _ in range(20)), steps
        resumed = told("--resume")
        assert resumed == whole
        assert json.loads((tmp_path / "perf.json").read_text())["first_step"] == steps


def test_says_what_was_left_out(generate, tmp_path):
    outcome = generate("-o", "a.mp4", "--attention", "predict:mass=0.5", "--cache", "easy:0.5", "--perf-dump-path", "perf.json",
                       "--ranks", 3)
    assert outcome.code == 0, outcome.err
    assert "predict:mass=0.5: density 0." in outcome.out and "from step 2 on (sigma 0." in outcome.out, outcome.out
    perf = json.loads((tmp_path / "perf.json").read_text())
    assert perf["steps_skipped"] and f"skipped {len(perf['steps_skipped'])} step" in outcome.out
    assert not {1, 2, 3, 5} & set(perf["steps_skipped"])  # the first three and the last are always computed
    steps = sorted({call["step"] for call in perf["calls"]})
    assert steps == sorted({1, 2, 3, 4, 5} - set(perf["steps_skipped"]))
    for call in perf["calls"]:
        assert call["density"] == 1 if call["step"] == 1 else call["density"] < 1
        assert call["rho_after"] >= 0.999 and call["mask_seconds"] >= 0 and call["planner"]
    assert sum(call["bytes_sent"] for call in perf["calls"]) == perf["attention"]["bytes_sent"] > 0
    plans = perf["plans"]
    assert plans["made"] + plans["kept"] == len(perf["calls"])
    assert re.search(rf"3 ranks: ρ \d\.\d+ \(\d\.\d+ with the plans at hand\), {plans['made']} plans? made, {plans['kept']} kept", outcome.out)
    sidecar = json.loads((tmp_path / "a.mp4.json").read_text())
    assert sidecar["parameters"]["attention"] == "predict:mass=0.5" and sidecar["parameters"]["dense_steps"] == "1"
    again = generate("--from", "a.mp4.json", "--save-latents", "again.st")
    assert again.code == 0, again.err


# On two ranks each has a whole guidance pass: what its masks need is at home.
@pytest.mark.parametrize("attention", ["predict", "predict:mass=0.5", "observe", "svg"])
def test_says_what_was_sent_for_masks(generate, tmp_path, attention):
    for ranks in 2, 3:
        outcome = generate("--save-latents", "a.st", "--attention", attention, "--perf-dump-path", "perf.json", "--ranks", ranks, "-v")
        assert outcome.code == 0, outcome.err
        perf = json.loads((tmp_path / "perf.json").read_text())
        sent = perf["attention"]["mask_bytes_sent"]
        assert (sent > 0) == (ranks == 3) and sent == sum(call["mask_bytes_sent"] for call in perf["calls"]), ranks
        assert f"{1e-6 * sent:.1f} MB sent; attention" in outcome.err, outcome.err


@pytest.mark.parametrize("attention", ["dense", "mask:m", "pattern:p.json", "radial", "sta", "window:spatial", "window:temporal",
                                       "sparge", "predict:mass=0.5", "predict:mass=1", "observe:mass=0.6,refresh=1",
                                       "pattern+predict:p.json,mass=0.4", "oracle:density=0.4", "predict:error=1", "observe:error=1",
                                       "pattern+predict:w.json,error=1", "pattern+predict:w.json,error=0"])
def test_dry_run_knows_the_density_or_its_range(equitile, generate, tmp_path, attention):
    if ".json" in attention:
        pattern_file(equitile, tmp_path)
    if attention == "mask:m":
        assert generate("--save-latents", "a.st", "--attention", "predict:mass=0.5", "--export-masks", "m").code == 0
    flags = ["--save-latents", "a.st", "--attention", attention]
    if attention not in ("dense", "mask:m"):
        flags += ["--dense-steps", 2, "--dense-layers", 1]
    dry = generate(*flags, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    dry = json.loads(dry.out)
    made = generate(*flags, "--perf-dump-path", "perf.json")
    assert made.code == 0, made.err
    density = json.loads((tmp_path / "perf.json").read_text())["sparsity"]["density"]
    low, high = dry["density_low"], dry["density"]
    if attention == "pattern+predict:w.json,error=0":  # all but the skipped heads
        assert low == pytest.approx(high) == pytest.approx(density) == pytest.approx(1 - 15 / 30 / 6)
    elif attention.split(":")[0] in ("predict", "observe", "pattern+predict") and "mass=1" not in attention:
        # One of six heads is skipped by the pattern, and stays so, in the 15 of 30 calls that are not dense.
        most = 1 - 15 / 30 / 6 if attention.startswith("pattern") else 1
        assert low <= density <= high == pytest.approx(most) and low < 0.9
        # Of three blocks one is kept, in five of six layers of the steps 3, 4 and 5; step 4 is observed again.
        sparse_calls = {"predict:mass=0.5": 15 / 30, "observe:mass=0.6,refresh=1": 10 / 30, "predict:error=1": 15 / 30,
                        "observe:error=1": 15 / 30}
        if attention in sparse_calls:
            assert low == pytest.approx(1 - sparse_calls[attention] * 2 / 3)
        if attention == "pattern+predict:w.json,error=1":  # five of six heads, whatever their modes
            assert low == pytest.approx(15 / 30 + 15 / 30 * 5 / 6 / 3)
        assert dry["seconds_low"] < dry["seconds"]
        text = generate(*flags, "--dry-run").out
        assert f"density {low:.3f} to {high:.3f}" in text and " to " in text.split("time")[1], text
    else:
        assert low == high and dry["seconds_low"] == dry["seconds"]
        # The oracle looks at everything first; half of three blocks is one block.
        extra = 0.5 if attention.startswith("oracle") else 0
        assert high - extra == pytest.approx(density, abs=0.1 if attention == "sparge" else 0.02 if extra else 1e-9)


def test_patterns_of_something_else(equitile, generate, tmp_path):
    use = ["--attention", "pattern:p.json", "--save-latents", "a.st"]
    pattern_file(equitile, tmp_path, model="0123456789abcdef")
    generate(*use).must_be_refused("p.json", "model")
    pattern_file(equitile, tmp_path, version=3)
    generate(*use).must_be_refused("p.json", "version")
    pattern_file(equitile, tmp_path, grid=[3, 6, 9])
    for changes, mentions in ({"grid": [3, 6, 9]}, ["3x6x9"]), ({"block": 32}, ["in blocks of 32", "in blocks of 64"]):
        pattern_file(equitile, tmp_path, **changes)
        other = generate(*use)
        warnings = [line for line in other.err.splitlines() if line.startswith("equitile: p.json: ")]  # a slow run has a header line, which names it too
        assert other.code == 0 and len(warnings) == 1 and all(mention in warnings[0] for mention in mentions), other.err


@pytest.mark.parametrize("flags, mentions", [
    (["observe:mass=0.6,at=5"], ["step 5 of 5 is observed", "no step uses"]),
    (["observe:at=4", "--dense-last-step"], ["step 4 of 5 is observed", "no step uses"]),
    (["sta"], ["windows of", "3x6x8 tokens", "dense"]),
    (["observe:at=4"], []), (["window:temporal"], []),
])
def test_what_leaves_nothing_out_says_so(generate, flags, mentions):
    outcome = generate("--save-latents", "a.st", "--attention", *flags, "--dry-run")
    assert outcome.code == 0 and outcome.err.count("\n") == bool(mentions), outcome.err
    assert all(mention in outcome.err for mention in mentions), outcome.err


@pytest.mark.parametrize("attention", ["svg", "sparge", "oracle", "predict", "predict:mass=0.9"])
def test_queries_that_are_not_finite_are_named_with_step_and_layer(equitile, tmp_path, attention):
    model = copied_model(tmp_path)

    def huge(entry, data, begin, end):
        data[begin:end] = struct.pack("<f", 3e38) * ((end - begin) // 4)

    for norm in "norm_q", "norm_k":
        change_tensor(model / "transformer/diffusion_pytorch_model.safetensors", f"blocks.2.attn1.{norm}.weight", huge)
    for ranks in 1, 3:
        outcome = equitile("generate", *FLAGS, "-m", model, "--save-latents", "a.st", "--attention", attention, "--dense-layers", 2,
                           "--dense-steps", 0, "--ranks", ranks)
        assert outcome.code and outcome.err.count("\n") == 1, outcome.err
        assert re.search(r"step 1, layer 2: .*(are not finite|not a number)", outcome.err), outcome.err


def test_weights_of_a_file(equitile, generate, tmp_path):
    pattern_file(equitile, tmp_path)
    file = json.loads((tmp_path / "w.json").read_text())
    ones = {**file, "error_weights": [{"sigma": [0, 1], "layers": [1] * 6}]}
    (tmp_path / "ones.json").write_text(json.dumps(ones))
    plain = latents(generate, tmp_path, "--attention", "predict:error=0.05")
    assert latents(generate, tmp_path, "--attention", "predict:ones.json,error=0.05") == plain
    assert latents(generate, tmp_path, "--attention", "predict:w.json,error=0.05") != plain
    by_mass = latents(generate, tmp_path, "--attention", "predict:p.json,mass=0.95")
    for attention in "predict:p.json", "predict:w.json,mass=0.95":  # an old file, and an old dial
        assert latents(generate, tmp_path, "--attention", attention) == by_mass, attention
    generate("--attention", "predict:p.json,error=0.01", "--save-latents", "a.st").must_be_refused("weights of errors", "equitile search")


def test_a_models_own_pattern(generate, tmp_path):
    used = generate("--attention", "pattern", "--save-latents", "a.st")
    # Searched at another size, where attention is next to nothing: a line each.
    assert used.code == 0 and [line.split("pattern.json: ")[1].split()[0] for line in used.err.splitlines()] == ["was", "saves"], used.err
    bare = tmp_path / "bare"
    bare.mkdir()
    for entry in MINI.iterdir():
        if entry.name != "pattern.json":
            (bare / entry.name).symlink_to(entry)
    generate("-m", bare, "--attention", "pattern", "-o", "a.mp4").must_be_refused("pattern.json", "pattern:FILE", "equitile search")


@pytest.mark.parametrize("flags, mentions", [
    (["--attention", "observe", "--dense-steps", 0], ["--dense-steps 0", "no dense step to observe", "first step's noise"]),
    (["--attention", "observe:mass=0.9", "--dense-steps", 0], ["--dense-steps 0", "no dense step to observe"]),
    (["--attention", "predict:0.5"], ["no file 0.5", "NAME=VALUE", "mass,budget,min"]),
    (["--attention", "predict:mass"], ["no file mass", "error,rows"]),
    (["--attention", "sta:0.5"], ["no file 0.5", "density"]),
    (["--attention", "observe:at=9"], ["step 9 of 5"]),
    (["--attention", "predict:mass=1.5"], ["mass=1.5", "from 0 to 1"]),
    (["--attention", "predict:masss=0.5"], ["masss=0.5", "mass,budget,min"]),
    (["--attention", "predict", "--dense-steps", "120%"], ["--dense-steps 120%"]),
    (["--attention", "predict", "--dense-layers", 7], ["--dense-layers 7", "6 layers"]),
    (["--cache", "hard"], ["--cache hard", "easy"]),
])
def test_what_cannot_work_is_refused(generate, flags, mentions):
    generate("-o", "a.mp4", *flags).must_be_refused(*mentions)
