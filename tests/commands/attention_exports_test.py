"""What `generate` writes and measures beside the video: masks that give the same bits again, exact masses, the mass that masks hold;
none of it changes a bit."""
import json
import re

import numpy as np
import pytest
import sparse_attention_test as sparse
from made_videos import MINI, THREE_BLOCKS, latents, sha256

FLAGS = [*THREE_BLOCKS, "--steps", 3]
STEPS, LAYERS, LANES = 3, 6, 12


@pytest.fixture
def generate(equitile):
    def run(*args):
        return equitile("generate", *FLAGS, *args, EQUITILE_MODEL=str(MINI))

    return run


def calls(folder):
    """(step, layer) -> (array, description) of all files of a folder."""
    found = {}
    for path in sorted(folder.glob("*.npy")):
        description = json.loads(path.with_suffix(".json").read_text())
        found[description["step"], description["layer"]] = np.load(path), description
    assert sorted(found) == [(s, l) for s in range(STEPS) for l in range(LAYERS)]
    assert len(list(folder.iterdir())) == 2 * len(found)
    return found


@pytest.mark.parametrize("attention", ["observe:mass=0.5", "predict:mass=0.5,tail=none", "window:temporal"])
def test_exported_masks_give_the_same_bits_again(generate, tmp_path, attention):
    plain = latents(generate, tmp_path, "--attention", attention)
    assert latents(generate, tmp_path, "--attention", attention, "--export-masks", "m1") == plain
    assert latents(generate, tmp_path, "--attention", attention, "--export-masks", "m3", "--ranks", 3) == plain
    files = {path.name: path.read_bytes() for path in (tmp_path / "m1").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "m3").iterdir()}
    masks = calls(tmp_path / "m1")
    for (step, _), (mask, description) in masks.items():
        assert mask.shape == (LANES, 3, 3) and description["batch"] == 2 and description["grid"] == [3, 6, 8]
        assert mask.all() == (step == 0)
        assert ("tails" in description) == (attention == "observe:mass=0.5" and step > 0)
        assert (description["orders"] == "fhw") == (attention != "window:temporal" or step == 0)
    for ranks in 1, 3:
        assert latents(generate, tmp_path, "--attention", "mask:m1", "--ranks", ranks) == plain


def test_masks_of_a_run_that_skipped_steps_give_the_same_bits_again(equitile, tmp_path):
    def run(steps, *args):
        outcome = equitile("generate", *FLAGS[:-1], steps, "--save-latents", "a.st", "--perf-dump-path", "perf.json", *args,
                           EQUITILE_MODEL=str(MINI))
        assert outcome.code == 0, outcome.err
        return sha256(tmp_path / "a.st"), json.loads((tmp_path / "perf.json").read_text())["steps_skipped"]

    cache = ["--cache", "easy:0.5"]
    for dense in 5, 1:  # 5: more dense steps than a cache computes anyway
        plain, skipped = run(8, "--attention", "window:temporal", "--dense-steps", dense, *cache, "--export-masks", f"m{dense}")
        assert skipped and min(skipped) > dense
        for ranks in 1, 3:
            assert run(8, "--attention", f"mask:m{dense}", *cache, "--ranks", ranks) == (plain, skipped)
    use = ["generate", *FLAGS[:-1], 8, "--save-latents", "b.st", "--attention", "mask:m1"]
    assert equitile(*use, *cache, "--dry-run", EQUITILE_MODEL=str(MINI)).code == 0
    equitile(*use, EQUITILE_MODEL=str(MINI)).must_be_refused("m1", f"no mask for step {skipped[0] - 1}", "--cache")
    other = equitile(*use, "--cache", "easy:0.0001", EQUITILE_MODEL=str(MINI))
    assert other.code == 2 and "m1: no mask for step" in other.err and "--cache must be" in other.err
    listed = equitile("plan", "--mask", "m1", "--for-ranks", 2, "--planner", "ulysses").out.split("step by step")[1]
    there = [int(step) for row in re.findall(r"^ *(\d+(?:-\d+)?) ", listed, re.M)
             for step in range(int(row.split("-")[0]), int(row.split("-")[-1]) + 1)]
    assert there == [step for step in range(8) if step + 1 not in skipped], listed


def test_masses_are_shares_of_all_attention(generate, tmp_path):
    flags = ["--attention", "predict:mass=0.5"]
    plain = latents(generate, tmp_path, *flags)
    for ranks in 1, 3:
        assert latents(generate, tmp_path, *flags, "--export-masses", f"w{ranks}", "--export-masks", f"m{ranks}", "--ranks", ranks) == plain
    one, three, masks = calls(tmp_path / "w1"), calls(tmp_path / "w3"), calls(tmp_path / "m1")
    for key, (masses, description) in one.items():
        assert masses.dtype == np.float32 and masses.shape == (LANES, 3, 3)
        np.testing.assert_allclose(masses.sum(axis=2), 1, atol=1e-5)  # of all blocks, not only of the kept ones
        np.testing.assert_array_equal(masses, three[key][0])
        assert description["heads"] == 6 and description["orders"] == masks[key][1]["orders"]


def test_measured_mass_is_what_exported_masses_and_masks_say(generate, tmp_path):
    flags = ["--attention", "predict:mass=0.5", "--perf-dump-path", "perf.json"]
    plain = latents(generate, tmp_path, *flags)
    outcome = generate("--save-latents", "a.st", *flags, "--measure-mass=3", "--export-masses", "w", "--export-masks", "m")
    assert outcome.code == 0, outcome.err
    assert sha256(tmp_path / "a.st") == plain
    perf = json.loads((tmp_path / "perf.json").read_text())
    masses, masks = calls(tmp_path / "w"), calls(tmp_path / "m")
    weights = np.array([64, 64, 16]) / 144
    seen = []
    for call in perf["calls"]:
        key = call["step"] - 1, call["layer"]
        if masks[key][0].all():
            assert call["mass_held"] is None
            continue
        held = ((masses[key][0].astype(float) * masks[key][0]).sum(axis=2) * weights).sum(axis=1)
        assert call["mass_held"] == pytest.approx(held.mean(), abs=1e-5)
        assert call["mass_held_p5"] == pytest.approx(np.sort(held)[(LANES - 1) // 20], abs=1e-5)
        seen.extend(held)
    assert 0 < perf["sparsity"]["mass_held"] < 1
    assert perf["sparsity"]["mass_held"] == pytest.approx(np.mean(seen), abs=1e-5)
    assert perf["sparsity"]["mass_held_p5"] == pytest.approx(np.sort(seen)[(len(seen) - 1) // 20], abs=1e-5)
    assert f"mass held {perf['sparsity']['mass_held']:.4f}" in outcome.out, outcome.out
    # A sample: other numbers, but the same ones on any ranks. Four rows unless somebody says: here all.
    assert latents(generate, tmp_path, *flags, "--measure-mass") == plain
    assert json.loads((tmp_path / "perf.json").read_text())["sparsity"]["mass_held"] == perf["sparsity"]["mass_held"]
    numbers = []
    for ranks in 1, 3:
        assert latents(generate, tmp_path, *flags, "--measure-mass=1", "--ranks", ranks) == plain
        numbers.append([c["mass_held"] for c in json.loads((tmp_path / "perf.json").read_text())["calls"]])
    assert numbers[0] == numbers[1] and numbers[0][-1] != perf["calls"][-1]["mass_held"]


def test_looking_on_changes_no_layout(generate, tmp_path):
    """A ring splits rows, whose bits depend on it: looking at masses must not make it another layout."""
    flags = ["--attention", "observe:mass=0.5", "--ranks", 3, "--planner", "ring"]
    plain = latents(generate, tmp_path, *flags)
    assert plain != latents(generate, tmp_path, "--attention", "observe:mass=0.5")
    assert latents(generate, tmp_path, *flags, "--measure-mass", "--export-masses", "w", "--export-masks", "m") == plain


def test_nobody_holds_more_than_the_oracle(generate, tmp_path):
    held = {}
    for attention in "oracle:density=0.5", "sparge", "svg:density=0.5":
        outcome = generate("--save-latents", "a.st", "--attention", attention, "--measure-mass=3", "--perf-dump-path", "perf.json")
        assert outcome.code == 0, outcome.err
        held[attention] = json.loads((tmp_path / "perf.json").read_text())["sparsity"]
    oracle = held.pop("oracle:density=0.5")
    assert oracle["sparse_density"] == pytest.approx(0.5, abs=0.01)
    for other in held.values():
        if other["sparse_density"] <= oracle["sparse_density"]:
            assert other["mass_held"] < oracle["mass_held"]
    assert latents(generate, tmp_path, "--attention", "oracle:density=0.5") == latents(
        generate, tmp_path, "--attention", "oracle:density=0.5", "--ranks", 3)
    assert latents(generate, tmp_path, "--attention", "oracle:density=1") == latents(generate, tmp_path)


def test_folders_that_cannot_be_used_are_refused(generate, tmp_path):
    (tmp_path / "file").write_text("x")
    for flag in "--export-masks", "--export-masses":
        generate("--save-latents", "a.st", flag, "no/such/folder").must_be_refused("no/such/folder")
        generate("--save-latents", "a.st", flag, "file/below").must_be_refused("file")
        generate("--save-latents", "a.st", flag, "file").must_be_refused("file", "not a folder")
    generate("--save-latents", "a.st", "--export-masks", "d", "--export-masses", "d").must_be_refused("d: cannot hold both")
    generate("--save-latents", "a.st", "--measure-mass=0").must_be_refused("--measure-mass 0")
    assert latents(generate, tmp_path, "--export-masks", "used")
    generate("--save-latents", "a.st", "--export-masks", "used").must_be_refused("used", "earlier run", "--resume")
    generate("--save-latents", "a.st", "--attention", "mask:used", "--export-masks", "used").must_be_refused("used", "cannot hold both")
    assert generate("--save-latents", "a.st", "--export-masks", "fresh", "--dry-run").code == 0
    assert not (tmp_path / "fresh").exists()


def test_every_prompt_gets_its_own_folder(generate, equitile, tmp_path):
    (tmp_path / "prompts").write_text("7\ta red circle\n8\ta blue ring\n")
    outcome = equitile("generate", *FLAGS[2:], "--prompts", "prompts", "--save-latents", "a.st", "--export-masks", "m",
                       "--attention", "window:spatial", EQUITILE_MODEL=str(MINI))
    assert outcome.code == 0, outcome.err
    for number in 1, 2:
        calls(tmp_path / f"m-000{number}")


def test_a_run_that_goes_on_completes_its_folder(equitile, tmp_path):
    flags = ["--attention", "observe:mass=0.6", "--export-masks"]

    def run(*args):
        outcome = equitile("generate", *sparse.FLAGS, *args, EQUITILE_MODEL=str(MINI))
        assert outcome.code == 0, outcome.err

    run("--save-latents", "whole.st", *flags, "whole")
    for attempt in range(20):
        if sparse.killed_after(tmp_path, 2, *flags, f"cut{attempt}"):
            break
    run("--save-latents", "c.st", *flags, f"cut{attempt}", "--resume", "--ranks", 2)
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert len(names) == 2 * 5 * LAYERS
    for name in names:
        assert (tmp_path / f"cut{attempt}" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
