"""`equitile inspect`: what it says about good masks, and that bad ones are refused in one line."""
import json
import pathlib

import numpy as np
import pytest


def save(path, array, description=None):
    np.save(path, array)
    if description is not None:
        path.with_suffix(".json").write_text(json.dumps(description))
    return path


def random_mask(*shape, seed=1):
    return np.random.default_rng(seed).random(shape) < 0.4


def test_json_agrees_with_numpy(equitile, tmp_path):
    mask = random_mask(6, 13, 71)
    save(tmp_path / "m.npy", mask, {"batch": 2, "q_tokens": 13 * 64 - 5, "kv_tokens": 71 * 64})
    outcome = equitile("inspect", "m.npy", "--json")
    assert outcome.code == 0 and outcome.err == ""
    said = json.loads(outcome.out)
    densities = mask.mean(axis=(1, 2))
    assert (said["batch"], said["heads"], said["q_blocks"], said["kv_blocks"]) == (2, 3, 13, 71)
    assert said["kept_blocks"] == mask.sum()
    assert said["density"] == pytest.approx(mask.mean())
    assert said["densities"] == pytest.approx(densities.tolist())
    assert said["head_density"] == pytest.approx(
        {"min": densities.min(), "median": np.median(densities), "max": densities.max()})
    rows = mask.sum(axis=2)
    assert [row["kept"] for row in said["heaviest_rows"]] == sorted(rows.ravel().tolist(), reverse=True)[:5]
    for row in said["heaviest_rows"]:
        assert rows[row["batch"] * 3 + row["head"], row["q_block"]] == row["kept"]


def test_layers(equitile, tmp_path):
    masks = random_mask(3, 2, 5, 5)
    save(tmp_path / "m.npy", masks.astype(np.uint8))
    assert json.loads(equitile("inspect", "m.npy", "--json").out)["density"] == pytest.approx(masks.mean())
    one = json.loads(equitile("inspect", "m.npy", "--layer", "2", "--json").out)
    assert one["density"] == pytest.approx(masks[2].mean()) and one["layers"] == 3
    equitile("inspect", "m.npy", "--layer", "3").must_be_refused("--layer 3", "3 layers")


def test_text_shows_a_picture_without_escape_codes(equitile, data):
    outcome = equitile("inspect", data / "vectors/wan_h12_b128.mask.npy")
    assert outcome.code == 0 and outcome.err == ""
    assert "density" in outcome.out and "▓" in outcome.out and "\x1b" not in outcome.out
    plain = equitile("inspect", data / "vectors/wan_h12_b128.mask.npy", LC_ALL="C")
    assert plain.out.isascii()


def test_picture_of_one_head(equitile, tmp_path):
    mask = np.zeros((2, 4, 4), bool)
    mask[1] = True
    save(tmp_path / "m.npy", mask)
    assert "████\n████\n" in equitile("inspect", "m.npy", "--head", "1").out
    assert "█" not in equitile("inspect", "m.npy", "--head", "0").out
    equitile("inspect", "m.npy", "--head", "2").must_be_refused("--head 2", "2 heads")


@pytest.mark.parametrize("flags", [[], ["--head", "1"], ["--each-head"], ["--each_head"]])
def test_png(equitile, tmp_path, flags):
    save(tmp_path / "m.npy", random_mask(3, 5, 7))
    assert equitile("inspect", "m.npy", "--png", "out.png", *flags).code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.npy", "out.png"]


MASK_TYPES = "a mask is bool, or uint8 or (little-endian) int64 of 0 and 1"


def test_files_that_only_python_reads(equitile, tmp_path):
    np.savez(tmp_path / "m.npz", mask=random_mask(2, 4, 4))
    for command in ["inspect", "m.npz"], ["plan", "--mask", "m.npz", "--for-ranks", 2]:
        equitile(*command).must_be_refused("m.npz", "numpy.save", "in Python", MASK_TYPES)


def test_steps_and_layers_are_told_apart(equitile, tmp_path):
    masks = random_mask(3, 2, 4, 8, 8)
    save(tmp_path / "m.npy", masks)
    outcome = equitile("inspect", "m.npy")
    assert outcome.code == 0 and "3 steps x 2 layers x 4 heads" in outcome.out, outcome.out
    said = json.loads(equitile("inspect", "m.npy", "--json").out)
    assert (said["steps"], said["layers"]) == (3, 2)
    row = said["heaviest_rows"][0]
    assert row["kept"] == masks[row["step"], row["layer"], row["head"], row["q_block"]].sum()
    equitile("inspect", "m.npy", "--layer", 6).must_be_refused("6 layers in 3 steps")


def test_pictures_are_a_video(equitile, tmp_path):
    assert equitile(*VIDEO, "-o", "new/frames/%05d.png").code == 0
    for path in "new/frames", "new/frames/", "new/frames/00003.png":
        outcome = equitile("inspect", path)
        assert outcome.code == 0 and "a red circle" in outcome.out and "of 48x32" in outcome.out, outcome.out + outcome.err
    assert json.loads(equitile("inspect", "new/frames", "--json").out)["frames"] == 5
    assert equitile("generate", "--from", "new/frames", "-o", "again.mp4").code == 0
    assert equitile(*VIDEO, "-o", "%d.png").code == 0
    assert "a red circle" in equitile("inspect", "0.png").out and "a red circle" in equitile("inspect", "frames.json").out


@pytest.mark.parametrize("record, mention", [
    ('{"parameters": 5, "run": {}}', "parameters"), ('{"parameters": {}, "run": 7}', "run"),
    ('{"parameters": {"video_frames": "x"}, "run": {}}', "video_frames"), ('{"parameters": {}, "run": {"seconds": 3}}', "seconds"),
    ('{"parameters": ', "not JSON: line 1, column"),
])
def test_broken_records_are_refused(equitile, tmp_path, record, mention):
    (tmp_path / "v.mp4.json").write_text(record)
    outcome = equitile("inspect", "v.mp4.json")
    outcome.must_be_refused("v.mp4.json", mention)
    assert "json.exception" not in outcome.err


@pytest.mark.parametrize("array, mention", [
    (np.ones(7, bool), "rank 1"),
    (np.ones((4, 4), bool), "rank 2"),
    (np.ones((1, 1, 1, 2, 2, 2), bool), "rank 6"),
    *[(np.ones((2, 4, 4), dtype), MASK_TYPES) for dtype in ("f2", "f4", "f8", "i1", "i4", ">i8")],
    (np.ones((2, 4, 4), np.float64), "<f8"),
    (np.full((2, 4, 4), 2, np.int64), MASK_TYPES),
    (np.full((2, 4, 4), 2, np.uint8), MASK_TYPES),
    (np.ones((0, 4, 4), bool), "empty"),
    (np.asfortranarray(random_mask(2, 4, 4)), "Fortran"),
])
def test_wrong_arrays_are_refused(equitile, tmp_path, array, mention):
    save(tmp_path / "m.npy", array)
    equitile("inspect", "m.npy", "--png", "out.png").must_be_refused("m.npy", mention)
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("description, mention", [
    ({"heads": 5}, "lanes"), ({"block": 12}, "block"), ({"q_tokens": 7}, "blocks"), ({"colour": 1}, "colour"),
    ({"orders": "hwf"}, "grid"), ({"version": 9}, "version"), ([], "object"),
])
def test_descriptions_that_do_not_fit_are_refused(equitile, tmp_path, description, mention):
    save(tmp_path / "m.npy", random_mask(2, 4, 4), description)
    equitile("inspect", "m.npy").must_be_refused("m.json", mention)


def test_truncated_files_are_refused(equitile, tmp_path):
    whole = save(tmp_path / "m.npy", random_mask(2, 4, 4)).read_bytes()
    for size in [0, 3, 6, 9, 40, 127, 128, len(whole) - 1]:
        (tmp_path / "m.npy").write_bytes(whole[:size])
        equitile("inspect", "m.npy").must_be_refused("m.npy")
    (tmp_path / "m.npy").write_bytes(whole + b"x")
    equitile("inspect", "m.npy").must_be_refused("1 bytes too many")


def test_other_files_are_refused(equitile, tmp_path):
    (tmp_path / "notes.txt").write_text("not a mask")
    equitile("inspect", "notes.txt").must_be_refused("notes.txt", "it takes a mask")
    equitile("inspect", "missing.npy").must_be_refused("missing.npy", "No such file")
    equitile("inspect", "none/m.npy").must_be_refused("none/m.npy", "No such file")
    equitile("inspect", ".").must_be_refused("model_index.json")
    equitile("inspect", "Wan-AI/Wan2.1-T2V-1.3B").must_be_refused("hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
    equitile("bench", "e2e", "-m", "Wan-AI/Wan2.2-T2V-A14B-Diffusers").must_be_refused("Wan2.2 is not supported")


def test_output_that_cannot_be_written(equitile, tmp_path):
    save(tmp_path / "m.npy", random_mask(2, 4, 4))
    equitile("inspect", "m.npy", "--png", "nowhere/out.png").must_be_refused("nowhere/out.png")
    equitile("inspect", "m.npy", "--png", ".").must_be_refused("cannot be written")
    assert [file.name for file in tmp_path.iterdir()] == ["m.npy"]


MINI = pathlib.Path(__file__).resolve().parent.parent.parent / "models/wan-mini"
VIDEO = ["generate", "-m", MINI, "-p", "a red circle", "-t", 1, "-W", 48, "-H", 32, "--video-frames", 5, "--steps", 1]


def test_a_video_and_its_record(equitile, tmp_path):
    assert equitile(*VIDEO, "-o", "a.mp4", "--fps", 10).code == 0
    outcome = equitile("inspect", "a.mp4")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.startswith("a.mp4: 5 frames of 48x32, 10 frames per second") and "a red circle" in outcome.out
    record = equitile("inspect", "a.mp4.json").out
    assert "5 frames of 48x32" in record and "a red circle" in record and "--from a.mp4.json" in record
    said = json.loads(equitile("inspect", "a.mp4", "--json").out)
    assert (said["frames"], said["width"], said["height"], said["fps"]) == (5, 48, 32, 10)
    assert said["record"] == json.loads(equitile("inspect", "a.mp4.json", "--json").out) == json.loads((tmp_path / "a.mp4.json").read_text())
    (tmp_path / "a.mp4.json").unlink()
    assert equitile("inspect", "a.mp4").out.count("\n") == 1
    (tmp_path / "b.mp4").write_text("no video")
    equitile("inspect", "b.mp4").must_be_refused("b.mp4: not a file that inspect knows")
