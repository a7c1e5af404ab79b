"""--compute: what it refuses, that it is recorded and compared, and that integers give the same bits on any ranks and threads and
through --resume, close to f32's."""
import json
import math
import os
import shutil
import subprocess
import time

import numpy as np
import pytest
from made_videos import MINI, made, sha256

SMALL = ["-W", 64, "-H", 48, "--video-frames", 5]
INTEGERS = ["attention=int16,linear=int16,vae=int16,text=int16", "attention=int8,linear=int8,vae=int16,text=int16"]  # int16, int8


@pytest.fixture
def generate(equitile):
    return lambda *args, steps=2: equitile("generate", "-m", MINI, "-p", "a star", *SMALL, "--steps", steps, *args)


def latents(path):
    """The numbers of the one tensor of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    tensor, = (value for key, value in header.items() if key != "__metadata__")
    begin, end = tensor["data_offsets"]
    return np.frombuffer(data[8 + length + begin:8 + length + end], np.float32).astype(np.float64)


def decibels(a, b):
    """Of b beside a, whose range is the peak."""
    return 10 * math.log10(np.ptp(a) ** 2 / np.mean((a - b) ** 2))


@pytest.mark.parametrize("given, mention", [
    (["--compute", "int4"], "'int4' is not known"), (["--compute", "lineal=int8"], "no part 'lineal'"),
    (["--compute", "vae=int8"], "the VAE computes in f32 or int16"), (["--compute", "linear=int16,linear=int8"], "comes twice"),
    (["--compute", "linear=int16", "--weights", "bf16"], "--weights bf16"), (["--weights", "int16"], "--weights int16"),
    (["--compute", "linear=int8", "--weights", "int16"], "--weights int16"),
    (["--compute", "int16", "--wire", "int8"], "--wire int8"), (["--compute", "int16", "--wire", "f32"], "--wire f32"),
    (["--compute", "linear=int16", "--wire", "int16"], "--wire int16"),
    (["--compute", "int8,text=f32,"], "a comma without a part"), (["--compute", "int8,,text=f32"], "a comma without a part")])
def test_what_does_not_fit_is_refused(generate, given, mention):
    generate("--save-latents", "a.st", *given).must_be_refused(mention)


@pytest.mark.parametrize("compute", INTEGERS)
def test_the_same_bits_on_ranks_and_threads_and_from_a_record(generate, tmp_path, compute):
    word = compute.split(",")[1].removeprefix("linear=")
    said = made(generate("--compute", word, "--save-latents", "a.st", "-t", 1))
    assert f"attention in {word}: " in said.err and f"linear layers in {word}: " in said.err and "× f32 on this CPU" in said.err
    record = json.loads((tmp_path / "a.st.json").read_text())["parameters"]
    assert (record["compute"], record["weights"]) == (compute, word)
    first = sha256(tmp_path / "a.st")
    for flags in (["-t", 3], ["--ranks", 2, "-t", 1], ["--ranks", 3, "-t", 1]):
        made(generate("--compute", compute, "--save-latents", "b.st", *flags))
        assert sha256(tmp_path / "b.st") == first, flags
    made(generate("--from", "a.st.json", "--save-latents", "c.st", "-t", 1))
    assert sha256(tmp_path / "c.st") == first


def test_the_wire_follows_the_arithmetic(generate, tmp_path):
    """The equal word is accepted; a record's wire and its arithmetic part ways; what travels is said."""
    many = ["--ranks", 3, "--planner", "ring", "--cfg-scale", 1, "-t", 1]
    made(generate("--save-latents", "f32.st", "--wire", "bf16", *many, steps=1))
    parameters = lambda name: json.loads((tmp_path / f"{name}.st.json").read_text())["parameters"]
    assert parameters("f32")["wire"] == "bf16"
    made(generate("--from", "f32.st.json", "--save-latents", "a.st", "--compute", "int8", steps=1))
    made(generate("--save-latents", "b.st", "--compute", "int8", "--wire", "int8", "--perf-dump-path", "perf.json", *many, steps=1))
    assert sha256(tmp_path / "a.st") == sha256(tmp_path / "b.st")
    assert parameters("a")["wire"] == parameters("b")["wire"] == "int8"
    assert json.loads((tmp_path / "perf.json").read_text())["wire"] == json.loads((tmp_path / "b.st.json").read_text())["run"]["wire"] == "int8"
    made(generate("--from", "b.st.json", "--save-latents", "c.st", "--compute", "f32", steps=1))
    assert parameters("c")["wire"] == "f32"
    generate("--from", "b.st.json", "--save-latents", "d.st", "--wire", "bf16", steps=1).must_be_refused("--wire bf16", "int8")


def test_parts_alone_change_nothing_else(generate, tmp_path):
    said = lambda *flags: json.loads(made(generate("-o", "a.mp4", "--dry-run", "--json", *flags)).out)["compute"]
    draft = "attention=int8,linear=int8,vae=int16,text=int16"
    assert said("--quality", "draft") == draft
    assert said("--quality", "draft", "--compute", "attention=int16") == draft.replace("attention=int8", "attention=int16")
    assert said("--quality", "draft", "--compute", "f32") == "f32" and said("--compute", "attention=f32") == "f32"
    made(generate("--compute", "int16", "--save-latents", "a.st", steps=1))
    changed = said("--from", "a.st.json", "--compute", "linear=int8,text=f32")
    assert changed == "attention=int16,linear=int8,vae=int16,text=f32"


@pytest.fixture
def planted(tmp_path):
    """wan-mini in which a layer's inputs are smaller by 64 in one channel, and its weights for them larger: the same videos in f32."""
    folder = tmp_path / "planted"
    shutil.copytree(MINI, folder)
    path, = (folder / "transformer").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    for name, rows, power in ("to_v.weight", np.s_[70, :], -6), ("to_v.bias", np.s_[70], -6), ("to_out.0.weight", np.s_[:, 70], 6):
        entry = header[f"blocks.2.attn1.{name}"]
        assert entry["dtype"] in ("BF16", "F32")
        kind, bits = (np.uint16, 7) if entry["dtype"] == "BF16" else (np.uint32, 23)
        begin, end = (8 + length + at for at in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], kind).reshape(entry["shape"]).copy()
        values[rows] = np.where(values[rows] & ~kind(1 << 8 * kind().itemsize - 1), values[rows].astype(np.int64) + (power << bits), values[rows])
        data[begin:end] = values.tobytes()
    path.write_bytes(data)
    return folder


def test_layers_that_lose_by_int8_stay_int16(equitile, generate, planted, tmp_path):
    run = lambda *flags: made(equitile("generate", "-m", planted, "-p", "a star", *SMALL, "--steps", 2, "-t", 1, *flags))
    layer, stays = "blocks.2.attn1.to_out.0", "1 of 42 layers stay int16: blocks.2.attn1.to_out.0"
    made(generate("--save-latents", "f32.st", "-t", 1))
    run("--save-latents", "same.st")
    assert sha256(tmp_path / "same.st") == sha256(tmp_path / "f32.st")
    said = run("--compute", "int8", "--save-latents", "a.st")
    assert stays in said.err
    assert json.loads((tmp_path / "a.st.json").read_text())["parameters"]["int16_layers"] == layer
    run("--compute", "int8", "--save-latents", "b.st", "--ranks", 3)
    made(equitile("generate", "--from", "a.st.json", "--save-latents", "c.st", "-t", 2))
    assert sha256(tmp_path / "a.st") == sha256(tmp_path / "b.st") == sha256(tmp_path / "c.st")
    assert stays not in run("--compute", "int16", "--save-latents", "d.st").err
    dry = json.loads(run("--compute", "int8", "-o", "a.mp4", "--dry-run", "--json").out)
    usual = json.loads(made(generate("--compute", "int8", "-o", "a.mp4", "--dry-run", "--json")).out)
    assert dry["int16_layers"] == [layer] and usual["int16_layers"] == []
    more = dry["bytes_per_rank"]["weights_per_node"] - usual["bytes_per_rank"]["weights_per_node"]
    assert more == pytest.approx(192 * 192, rel=0.05)  # a byte per weight
    f32 = latents(tmp_path / "f32.st")
    made(generate("--compute", "int8", "--save-latents", "usual.st", "-t", 1))
    assert decibels(f32, latents(tmp_path / "a.st")) > decibels(f32, latents(tmp_path / "usual.st")) - 3


def test_integers_are_close_to_f32_and_int16_is_closer(generate, tmp_path):
    made(generate("--save-latents", "f32.st", "-t", 1))
    for name, compute in ("int16", INTEGERS[0]), ("int8", INTEGERS[1]):
        made(generate("--compute", compute, "--save-latents", f"{name}.st", "-t", 1))
    f32 = latents(tmp_path / "f32.st")
    fine, coarse = (decibels(f32, latents(tmp_path / f"{name}.st")) for name in ("int16", "int8"))
    assert 55 < fine < 100 and 25 < coarse < fine - 15, (fine, coarse)


def test_a_run_goes_on_only_in_its_own_arithmetic(generate, tmp_path):
    flags = ["--compute", "int8", "--save-latents", "a.st", "--checkpoint-every", 1, "-t", 1]
    made(generate("--compute", "int8", "--save-latents", "whole.st", "-t", 1, steps=25))
    for _ in range(10):  # until one is killed in a step
        command = [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", "a star", *SMALL, "--steps", 25, *flags]
        process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "a.st.ckpt").exists():
            time.sleep(0.002)
        process.kill()
        process.wait()
        if not (tmp_path / "a.st").exists():
            break
        (tmp_path / "a.st").unlink()
    for other in ["--compute", "int16", *flags[2:]], flags[2:]:
        generate(*other, "--resume", steps=25).must_be_refused("another run", "arithmetic is")
    made(generate(*flags, "--ranks", 2, "--resume", steps=25))
    assert json.loads((tmp_path / "a.st.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.st") == sha256(tmp_path / "whole.st")


def test_dry_run_counts_buffers_and_decoding_in_integers(generate):
    said = {compute: json.loads(made(generate("--compute", compute, "-o", "a.mp4", "--ranks", 3, "--dry-run", "--json", "-W", 256, "-H", 128)).out)
            for compute in ("f32", "attention=int8", "vae=int16")}
    attention = {key: value["bytes_per_rank"]["attention"] for key, value in said.items()}
    assert attention["attention=int8"] < 0.7 * attention["f32"] == 0.7 * attention["vae=int16"]
    assert said["vae=int16"]["int16_layers"] == []


def test_dry_run_knows_memory_and_gain(generate):
    said = {compute: json.loads(made(generate("--compute", compute, "-o", "a.mp4", "--dry-run", "--json")).out)
            for compute in ("f32", "linear=int16", "linear=int8")}
    weights = {key: value["bytes_per_rank"]["weights_per_node"] for key, value in said.items()}
    assert weights["linear=int8"] < weights["linear=int16"] < weights["f32"]
    assert said["f32"]["linear_gain"] == 1 and said["linear=int16"]["linear_gain"] > 0.5
    assert said["linear=int16"]["attention_gain"] == 1
    assert said["linear=int16"]["compute"] == "attention=f32,linear=int16,vae=f32,text=f32"
