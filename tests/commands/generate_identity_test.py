"""What decides the bits of a video is recorded, compared and agreed on; what cannot work is said before the first step."""
import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from made_videos import MINI, MPIRUN, made, needs_mpirun, sha256

SMALL = ["-t", 1, "-W", 64, "-H", 48, "--video-frames", 5, "--steps", 2]
GRID = [2, 3, 4]  # of SMALL's tokens: frames, height, width


@pytest.fixture
def generate(equitile):
    return lambda *args, model=MINI: equitile("generate", "-m", model, "-p", "a star", *args)


def write_mask(path, **description):
    heads = json.loads((MINI / "transformer/config.json").read_text())["num_attention_heads"]
    mask = np.ones((heads, 2, 2), bool)
    mask[0, 0, 1] = False
    np.save(path, mask)
    text = {"version": 1, "block": 16, "q_tokens": 24, "kv_tokens": 24, **description}
    path.with_suffix(".json").write_text(json.dumps(text))


def test_masks_of_another_grid_are_refused(generate, tmp_path):
    mask = tmp_path / "m.npy"
    for description, mention in ({"grid": [4, 3, 2], "orders": "hwf"}, "4x3x2"), ({"grid": [1, 3, 4], "text": {"before": 12}}, "text"):
        write_mask(mask, **description)
        generate("--attention", "mask:m.npy", "--save-latents", "a.st", *SMALL).must_be_refused("m.npy", mention)
    write_mask(mask, grid=GRID, orders="hwf")
    made(generate("--attention", "mask:m.npy", "--save-latents", "a.st", *SMALL))


def test_what_is_read_is_never_written_over(generate, tmp_path):
    write_mask(tmp_path / "m.npy", grid=GRID)
    before = (tmp_path / "m.json").read_bytes()
    generate("--attention", "mask:m.npy", "--save-latents", "m", *SMALL).must_be_refused("m.json", "description of the mask")
    assert (tmp_path / "m.json").read_bytes() == before
    (tmp_path / "b.mp4.preview.png").mkdir()
    generate("-o", "b.mp4", "--preview", 1, *SMALL).must_be_refused("b.mp4.preview.png")
    generate("-o", "c.mp4", "--preview", 1, "--save-latents", "c.mp4.preview.png", *SMALL).must_be_refused("the preview")


def test_layouts_that_change_bits_are_repeated(generate, tmp_path):
    made(generate("--save-latents", "one.st", *SMALL))
    made(generate("--save-latents", "ring.st", "--ranks", 3, "--planner", "ring", "--wire", "bf16", *SMALL))
    assert sha256(tmp_path / "ring.st") != sha256(tmp_path / "one.st")
    os.makedirs(tmp_path / "elsewhere")
    done = subprocess.run(list(map(str, [os.environ["EQUITILE"], "generate", "--from", "../ring.st.json", "--save-latents", "b.st", "-t", 1])),
                          cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sha256(tmp_path / "elsewhere/b.st") == sha256(tmp_path / "ring.st")
    # Those that do not leave the choice to the next run.
    made(generate("--save-latents", "two.st", "--ranks", 2, "--planner", "fractional", *SMALL))
    assert json.loads((tmp_path / "two.st.json").read_text())["parameters"]["planner"] is None
    # A run that goes on is held to it as well.
    made(generate("--save-latents", "c.st", "--keep-checkpoint", *SMALL))
    generate("--save-latents", "c.st", "--resume", "--ranks", 3, "--planner", "ring", *SMALL).must_be_refused("layout", "ring")
    made(generate("--save-latents", "c.st", "--resume", "--ranks", 3, "--planner", "ulysses", *SMALL))


def test_masks_and_text_rows_of_a_recorded_run(generate, tmp_path):
    write_mask(tmp_path / "m.npy", grid=GRID)
    model = shutil.copytree(MINI, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    made(generate("--attention", "mask:m.npy", "--save-latents", "a.st", *SMALL, model=model))
    os.makedirs(tmp_path / "elsewhere")

    def again():
        return subprocess.run([os.environ["EQUITILE"], "generate", "--from", "../a.st.json", "--save-latents", "b.st"],
                              cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=60)

    assert again().returncode == 0  # its mask is found from other folders
    assert sha256(tmp_path / "elsewhere/b.st") == sha256(tmp_path / "a.st")
    config = json.loads((model / "generation_config.json").read_text())
    config["max_sequence_length"] += 1
    (model / "generation_config.json").write_text(json.dumps(config))
    refused = again()
    assert refused.returncode == 2 and "rows of text" in refused.stderr, refused.stderr


def test_a_random_seed_is_kept_when_a_run_goes_on(generate, tmp_path):
    made(generate("--save-latents", "a.st", "--keep-checkpoint", "-s", -1, *SMALL))
    first = sha256(tmp_path / "a.st")
    made(generate("--save-latents", "a.st", "--resume", "-s", -1, *SMALL))
    assert sha256(tmp_path / "a.st") == first


def test_what_is_wrong_with_the_vae_is_said_before_the_first_step(generate, tmp_path):
    model = shutil.copytree(MINI, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    config = model / "vae/config.json"
    good = json.loads(config.read_text())
    for change, mention in ({"is_residual": True}, "is_residual"), ({"temperal_downsample": [False, False, True]}, "VAE makes"), \
            ({"base_dim": good["base_dim"] * 2}, "conv_in"):
        config.write_text(json.dumps({**good, **change}))
        generate("-o", "a.mp4", *SMALL, model=model).must_be_refused(mention)
        assert not (tmp_path / "a.mp4.ckpt").exists()


def test_standard_output_holds_the_latents_alone(generate, tmp_path):
    command = list(map(str, [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", "a star", "-o", "a.mp4", "--save-latents", "/dev/stdout", *SMALL]))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0 and b"a.mp4" in done.stderr, done.stderr
    made(generate("--save-latents", "whole.st", *SMALL))
    assert done.stdout == (tmp_path / "whole.st").read_bytes()
    refused = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, timeout=60)
    assert refused.returncode == 2 and b"--json" in refused.stderr and refused.stdout == b""


@needs_mpirun
def test_ranks_with_different_flags_say_so(tmp_path):
    def run(*different):
        base = [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", "a star", "--save-latents", "a.st", *SMALL]
        command = [*MPIRUN, "-n", 1, *base, ":", "-n", 1, *base, *different]
        return subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = run("--cfg-scale", 2)
    assert done.returncode == 2 and "rank 1 has another guidance than rank 0" in done.stderr, done.stderr
    done = run("--attention", "mask:nowhere.npy")
    assert done.returncode == 2 and "equitile: rank 1: " in done.stderr and "nowhere.npy" in done.stderr, done.stderr
    done = run("-s", -1)  # a seed is rank 0's
    assert done.returncode == 0, done.stderr


@needs_mpirun
def test_a_dry_run_is_of_the_ranks_that_were_started(tmp_path):
    command = [*MPIRUN, "-n", 3, os.environ["EQUITILE"], "generate", "-m", MINI, "-p", "a star", "-o", "a.mp4", "--dry-run", "--json",
               "--planner", "usp:3x1", *SMALL]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 3
