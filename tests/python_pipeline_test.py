"""equitile.Pipeline beside the command: the same bits, and good manners towards Python."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib

import equitile
import numpy as np
import pytest

MODEL = pathlib.Path(__file__).resolve().parent.parent / "models/wan-mini"
PROMPT = "a red circle moves right"
SMALL = {"width": 64, "height": 48, "video_frames": 5, "steps": 3, "seed": 7}


@pytest.fixture(scope="module")
def pipeline():
    return equitile.Pipeline(MODEL, threads=2)


def png_pixels(path):
    """[height, width, 3] of an 8-bit RGB file without interlacing."""
    data, at, idat = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, bits, colours = struct.unpack_from(">IIBB", body)
            assert (bits, colours) == (8, 2)
        idat += body if kind == b"IDAT" else b""
        at += length + 12
    raw = np.frombuffer(zlib.decompress(idat), np.uint8).reshape(height, 1 + 3 * width)
    out = np.zeros((height + 1, 3 * width + 3), int)
    for y in range(height):
        up, row = out[y], out[y + 1]
        for x in range(3, 3 * width + 3):
            a, b, c = row[x - 3], up[x], up[x - 3]
            pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            paeth = a if pa <= pb and pa <= pc else b if pb <= pc else c
            row[x] = (raw[y, x - 2] + [0, a, b, (a + b) // 2, paeth][raw[y, 0]]) & 255
    return out[1:, 3:].reshape(height, width, 3).astype(np.uint8)


def stored_latents(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + size])["latents"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    return np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])


@pytest.mark.parametrize("said", [{"attention": "dense"}, {"attention": "predict:mass=0.9"}, {"attention": "observe"}, {"quality": "draft", "dense_steps": 1}])
def test_the_same_bits_as_the_command(pipeline, tmp_path, said):
    (tmp_path / "frames").mkdir()
    command = [os.environ["EQUITILE"], "generate", "-m", str(MODEL), "-p", PROMPT, "-o", "frames/%02d.png", "--save-latents", "l.safetensors", "--threads", "1"]
    flags = {"width": "-W", "height": "-H"}
    for key, value in {**SMALL, **said}.items():
        command += [flags.get(key, "--" + key.replace("_", "-")), str(value)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    frames, latents, recipe = pipeline.generate(PROMPT, **SMALL, **said)
    assert np.array_equal(latents, stored_latents(tmp_path / "l.safetensors"))
    pictures = sorted((tmp_path / "frames").glob("*.png"))
    assert frames.dtype == np.uint8 and frames.shape == (5, 48, 64, 3) and len(pictures) == 5
    for frame, picture in zip(frames, pictures):
        assert np.array_equal(frame, png_pixels(picture))
    sidecar = next(p for p in tmp_path.glob("*.json"))
    made = json.loads(sidecar.read_text())["parameters"]
    assert {k: v for k, v in recipe.items() if k not in ("output", "save_latents")} == {
        k: v for k, v in made.items() if k not in ("output", "save_latents")}


def test_videos_of_one_pipeline_do_not_mix(pipeline):
    first = pipeline.generate(PROMPT, **SMALL)
    other = pipeline.generate(PROMPT, **{**SMALL, "seed": 8})
    again = equitile.Pipeline(str(MODEL), threads=1).generate(PROMPT, **SMALL)
    assert np.array_equal(first.frames, again.frames) and np.array_equal(first.latents, again.latents)
    assert not np.array_equal(first.latents, other.latents)


def test_names_of_other_programs(pipeline):
    settings = {"width": 64, "height": 48, "num_frames": 5, "num_inference_steps": 1, "guidance_scale": 1.0, "vae_tiling": False}
    recipe = pipeline.generate(PROMPT, **settings).recipe
    assert (recipe["video_frames"], recipe["steps"], recipe["cfg_scale"], recipe["seed"]) == (5, 1, 1, 42)


def test_callbacks(pipeline):
    steps = []
    pipeline.generate(PROMPT, callback=steps.append, **SMALL)
    assert [(s.done, s.steps, s.skipped) for s in steps] == [(1, 3, False), (2, 3, False), (3, 3, False)]
    assert all(s.seconds > 0 for s in steps)

    def fail(step):
        raise LookupError(f"after {step.done}")

    with pytest.raises(LookupError, match="after 1"):
        pipeline.generate(PROMPT, callback=fail, **SMALL)
    with pytest.raises(RuntimeError, match="one at a time"):
        pipeline.generate(PROMPT, callback=lambda _: pipeline.generate(PROMPT, **SMALL), **SMALL)
    assert pipeline.generate(PROMPT, **SMALL).frames.shape == (5, 48, 64, 3)


def test_other_threads_run_on(pipeline):
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    seen = []
    thread.start()
    pipeline.generate(PROMPT, callback=lambda _: seen.append(counted[0]), **SMALL)
    stop.set()
    thread.join()
    assert seen[0] < seen[1] < seen[2]


def test_a_fork_makes_videos_too(pipeline):
    want = pipeline.generate(PROMPT, **SMALL).frames
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(pipeline.generate(PROMPT, **SMALL).frames, want) else 1)
    deadline = time.monotonic() + 120
    done, status = 0, 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
    if not done:
        os.kill(child, signal.SIGKILL)
    assert done and status == 0


INTERRUPTED = """
import equitile, sys
pipeline = equitile.Pipeline(sys.argv[1], threads=2)
try:
    pipeline.generate("a red circle", width=256, height=256, video_frames=49, steps=1000, callback=lambda s: print(s.done, flush=True))
except KeyboardInterrupt:
    print("stopped", flush=True)
print(pipeline.generate("a red circle", width=64, height=48, video_frames=1, steps=1).frames.shape)
"""


def test_ctrl_c_ends_the_video_and_not_the_pipeline():
    run = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(MODEL)], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "1\n"
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=120)
    assert out.endswith("stopped\n(1, 48, 64, 3)\n") and run.returncode == 0


@pytest.mark.parametrize(
    "settings,kind,word",
    [
        ({"stepz": 3}, TypeError, "stepz"),
        ({"mask_hash": "0"}, TypeError, "mask_hash"),
        ({"output": "x.mp4"}, TypeError, "output"),
        ({"steps": 3, "num_inference_steps": 3}, TypeError, "twice"),
        ({"steps": 0}, ValueError, "steps"),
        ({"steps": "many"}, ValueError, "steps"),
        ({"width": 63}, ValueError, "63"),
        ({"attention": "nothing"}, ValueError, "nothing"),
        ({"quality": "best"}, ValueError, "best"),
        ({"attention": "mask:none.npy"}, ValueError, "none.npy"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(pipeline, settings, kind, word):
    with pytest.raises(kind) as error:
        pipeline.generate(PROMPT, **settings)
    assert word in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_model_is_refused():
    for folder in ("no such folder", os.path.dirname(__file__)):
        with pytest.raises(ValueError) as error:
            equitile.Pipeline(folder)
        assert folder in str(error.value)
    with pytest.raises(ValueError, match="threads"):
        equitile.Pipeline(MODEL, threads=-1)


def test_every_setting_is_explained():
    settings = equitile.Pipeline.settings()
    assert {"seed", "steps", "attention", "cfg_scale", "weights"} <= set(settings) and all(settings.values())


def test_the_module_needs_no_encoder():
    libraries = subprocess.run(["ldd", equitile._core.__file__], check=True, capture_output=True, text=True).stdout
    assert "libstdc++" in libraries
    for name in ("libav", "libsw", "libpng", "libmpi"):
        assert name not in libraries, libraries


def test_videos_become_files(pipeline, tmp_path):
    video = pipeline.generate(PROMPT, **{**SMALL, "steps": 1})
    video.save(tmp_path / "v.npy")
    assert np.array_equal(np.load(tmp_path / "v.npy"), video.frames)
    video.save(tmp_path / "new/frames/%03d.png")
    for i, frame in enumerate(video.frames):
        assert np.array_equal(png_pixels(tmp_path / f"new/frames/{i:03}.png"), frame)
    with pytest.raises(ValueError, match="one frame"):
        video.save(tmp_path / "v.png")
    with pytest.raises(ValueError, match="%05d"):
        video.save(tmp_path / "new/%s%d.png")
    if shutil.which("ffmpeg"):
        video.save(tmp_path / "v.mp4")
        assert_alike(tmp_path / "v.mp4", tmp_path / "new/frames", 30)


def assert_alike(a, b, db):
    command = [os.environ["EQUITILE"], "compare", str(a), str(b), "--json"]
    psnr = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["psnr_mean"]
    assert psnr is None or psnr > db  # None: identical


# Noise fills the table of codes again and again, a plain picture makes the longest ones; of few colours none is lost.
@pytest.mark.parametrize("kind,db", [("video", 30), ("noise", 20), ("plain", 90), ("one pixel", 90), ("few colours", 90)])
def test_gifs_hold_the_frames(pipeline, tmp_path, kind, db):
    rng = np.random.default_rng(5)
    frames = {
        "video": lambda: pipeline.generate(PROMPT, **{**SMALL, "steps": 1}).frames,
        "noise": lambda: rng.integers(0, 256, (3, 67, 101, 3), np.uint8),
        "plain": lambda: np.full((2, 300, 400, 3), 77, np.uint8),
        "one pixel": lambda: np.full((1, 1, 1, 3), 9, np.uint8),
        "few colours": lambda: (rng.integers(0, 4, (4, 50, 70, 3)) * 80).astype(np.uint8),
    }[kind]()
    video = equitile.Video(frames, None, {"fps": 16})
    video.save(tmp_path / "v.gif")
    video.save(tmp_path / "v/%02d.png")
    if kind != "one pixel":  # SSIM wants more
        assert_alike(tmp_path / "v.gif", tmp_path / "v", db)
    inspected = subprocess.run([os.environ["EQUITILE"], "inspect", "v.gif", "--json"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert json.loads(inspected.stdout)["frames"] == len(frames)


def test_gifs_play_at_most_50_frames_per_second(tmp_path):
    with pytest.raises(ValueError, match="50"):
        equitile.Video(np.zeros((1, 2, 2, 3), np.uint8), None, {"fps": 60}).save(tmp_path / "v.gif")
