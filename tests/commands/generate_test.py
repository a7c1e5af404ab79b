"""`equitile generate`: the same bits on any ranks, threads and after any crash; what cannot be used is refused in one line, before
any work. Small videos of wan-mini; nothing here depends on what its weights draw."""
import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import time

import numpy as np
import pytest
from made_videos import MINI, made, sha256

PROMPT = "a red circle bounces on a black background"
TINY = ["-t", 1, "-W", 32, "-H", 32, "--video-frames", 5, "--steps", 1]
SMALL = ["-W", 64, "-H", 48, "--video-frames", 9, "--steps", 4]  # 3 x 3 x 4 tokens


@pytest.fixture
def generate(equitile, tmp_path):
    def run(*args, prompt=PROMPT, **environment):
        return equitile("generate", "-p", prompt, *args, **{"EQUITILE_MODEL": str(MINI), **environment})

    return run


def mpirun(tmp_path, ranks, *args):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), os.environ["EQUITILE"], "generate", "-m", str(MINI)]
    return subprocess.run([*command, *map(str, args)], cwd=tmp_path, capture_output=True, text=True, timeout=120)


def test_same_bits_on_any_ranks_and_threads(generate, tmp_path):
    made(generate("-o", "one.mp4", "--save-latents", "one.safetensors", "-t", 1, *SMALL))
    for name, flags in {"threads": ["-t", 2], "ranks": ["--ranks", 3, "-t", 1], "many": ["--ranks", 5, "--planner", "ulysses"]}.items():
        made(generate("-o", f"{name}.mp4", "--save-latents", f"{name}.safetensors", *flags, *SMALL))
        assert sha256(tmp_path / f"{name}.safetensors") == sha256(tmp_path / "one.safetensors"), name
        assert sha256(tmp_path / f"{name}.mp4") == sha256(tmp_path / "one.mp4"), name


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_same_bits_under_mpirun(generate, tmp_path):
    made(generate("-o", "one.mp4", *SMALL))
    done = mpirun(tmp_path, 2, "-p", PROMPT, "-o", "two.mp4", "-t", 1, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and "\x1b" not in done.stdout + done.stderr  # though ranks may have a terminal of mpirun's
    assert sha256(tmp_path / "one.mp4") == sha256(tmp_path / "two.mp4")


def on_a_terminal(folder, *words, locale="C.UTF-8"):
    """What a terminal of 80 x 24 gets from both streams."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    run = subprocess.Popen([os.environ["EQUITILE"], *map(str, words)], cwd=folder, env={**os.environ, "TERM": "xterm", "LC_ALL": locale},
                           stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(controller, 4096):
            said += part
    os.close(controller)
    assert run.wait() == 0, said
    return said.decode()


def test_a_terminal_sees_what_is_made_a_bar_and_lines_of_their_own(tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n# not this one\na blue ring\n")
    said = on_a_terminal(tmp_path, "generate", "-m", MINI, "--prompts", "p.txt", "-o", "a.mp4", *SMALL)
    assert said.startswith("wan-mini: 2 videos of 9 frames of 64x48, 4 steps, attention dense, ")
    for number in 1, 2:
        assert f"\r\x1b[Kvideo {number}/2: step 0/4 ░░░" in said  # before the first step is done
        assert re.search(rf"(\n|\r\x1b\[K)a-000{number}\.mp4: 9 frames of 64x48, 4 steps, seed {41 + number}: ", said), said
        assert f"\r\x1b[Kvideo {number}/2: decoding frame 0/9 ░░░" in said  # before the first is there
    assert all(len(line) < 80 for line in re.findall(r"\x1b\[K([^\r\n]*)\r\x1b", said))
    plain = on_a_terminal(tmp_path, "generate", "-m", MINI, "-p", PROMPT, "-o", "b.mp4", "--ranks", 2, *SMALL[:-1], 60,
                          "--quality", "draft", "--attention", "predict:error=0.02,refresh=4", locale="C")
    plain = plain[: plain.index("b.mp4: ")]
    assert plain.isascii() and "  rho 1." in plain, plain
    head = plain[: plain.index("\x1b")].splitlines()
    head = [line for line in head if not line.startswith("equitile: ")]
    assert len(head) > 1 and "quality draft, compute int8," in head[0] and all(len(line) < 80 for line in head), head


def test_masks(generate, tmp_path):
    size = ["-W", 256, "-H", 64, "--video-frames", 5, "--steps", 2]  # 2 x 4 x 16 = 128 tokens: two blocks
    heads = json.loads((MINI / "transformer/config.json").read_text())["num_attention_heads"]
    for name, mask in {"all": np.ones((heads, 2, 2), bool), "own": np.tile(np.eye(2, dtype=bool), (heads, 1, 1))}.items():
        np.save(tmp_path / f"{name}.npy", mask)
        for ranks in 1, 3:
            made(generate("--save-latents", f"{name}{ranks}.st", "--attention", f"mask:{name}.npy", "--ranks", ranks, *size))
        assert sha256(tmp_path / f"{name}1.st") == sha256(tmp_path / f"{name}3.st")
    made(generate("--save-latents", "dense.st", *size))
    assert sha256(tmp_path / "all1.st") == sha256(tmp_path / "dense.st")
    assert sha256(tmp_path / "own1.st") != sha256(tmp_path / "dense.st")
    generate("-o", "a.mp4", "--attention", "mask:own.npy", *SMALL).must_be_refused("own.npy", "128 x 128 tokens", "36")
    (tmp_path / "own.npy").write_bytes((tmp_path / "all.npy").read_bytes())
    generate("--from", "own1.st.json", "--save-latents", "again.st").must_be_refused("own1.st.json", "another mask", "own.npy")
    made(generate("--from", "all1.st.json", "--save-latents", "again.st", "--cfg-scale", 1))
    generate("-o", "a.mp4", "--attention", "sparse", *SMALL).must_be_refused("--attention sparse", "must be one of dense, mask:FILE")


def test_layouts_by_degrees_and_a_trace_of_all_ranks(generate, tmp_path):
    made(generate("-o", "one.mp4", *SMALL))
    made(generate("-o", "two.mp4", "--ranks", 2, "--ulysses-degree", 2, "--reuse-threshold", 1.1, "--trace", "trace.json", *SMALL))
    assert sha256(tmp_path / "one.mp4") == sha256(tmp_path / "two.mp4")
    run = json.loads((tmp_path / "two.mp4.json").read_text())["run"]
    assert {layer["planner"] for layer in run["layout"]} == {"usp:2x1"}
    calls = 4 * len(run["layout"])  # steps, layers
    assert run["plans"]["made"] == 1 and run["plans"]["made"] + run["plans"]["kept"] == calls
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    everything = {(step, layer) for step in range(1, 5) for layer in range(len(run["layout"]))}
    for rank in 0, 1:
        spans = [e for e in events if e["pid"] == rank and e["ph"] == "X"]
        for name in "compute", "linear", "norm", "text attention":
            places = {(e["args"]["step"], e["args"].get("layer", -1)) for e in spans if e["name"] == name}
            assert places - {(step, -1) for step in range(1, 5)} == everything, name
        assert {"load", "text", "exchange", "decode"} <= {e["name"] for e in spans}
        assert ({"sample", "write"} <= {e["name"] for e in spans}) == (rank == 0)
        assert sum(e["name"] == "write" for e in spans) > 1 or rank == 1
        # One after the other, or inside each other.
        open_until = []
        for begin, end in sorted(((e["ts"], e["ts"] + e["dur"]) for e in spans), key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert begin >= 0 and (not open_until or end <= open_until[-1] + 1e-3)
            open_until.append(end)


def test_tiles_of_the_vae_change_frames_larger_than_one(generate, tmp_path):
    size = ["-W", 320, "-H", 32, "--video-frames", 1, "--steps", 1]
    for name, flags in {"whole": [], "tiled": ["--vae-tiling"], "ranks": ["--vae-tiling", "--ranks", 2]}.items():
        made(generate("-o", f"{name}.mp4", *flags, *size))
    assert sha256(tmp_path / "whole.mp4") != sha256(tmp_path / "tiled.mp4")
    assert sha256(tmp_path / "tiled.mp4") == sha256(tmp_path / "ranks.mp4")


def test_seed_sampler_and_rng_matter(generate, tmp_path):
    flags = {"base": [], "seed": ["-s", 1], "euler": ["--sampler", "euler"], "b": ["--sampler", "unipc-b"], "philox": ["--rng", "philox"],
             "cfg": ["--cfg-scale", 1], "shift": ["--flow-shift", 5]}
    for name, extra in flags.items():
        made(generate("--save-latents", f"{name}.st", *TINY[:-1], 4, *extra))
    assert len({sha256(tmp_path / f"{name}.st") for name in flags}) == len(flags)


def test_sidecar_repeats_the_run(generate, equitile, tmp_path):
    made(generate("-o", "a.mp4", "-s", 7, "--cfg-scale", 2.5, *SMALL))
    sidecar = json.loads((tmp_path / "a.mp4.json").read_text())
    assert sidecar["parameters"]["prompt"] == PROMPT and sidecar["parameters"]["seed"] == 7
    assert sidecar["run"]["seconds"]["total"] > 0 and len(sidecar["run"]["layout"]) > 0
    assert sidecar["run"]["encoder"] in ("libx264", "mpeg4") and sidecar["run"]["target"] and sidecar["equitile"]
    for recorded in "a.mp4.json", "a.mp4":
        made(equitile("generate", "--from", recorded, "-o", "b.mp4"))
        assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "b.mp4")
    made(equitile("generate", "--from", "a.mp4", "-o", "c.mp4", "-s", 8))
    assert sha256(tmp_path / "a.mp4") != sha256(tmp_path / "c.mp4")
    (tmp_path / "x.json").write_text("{}")
    equitile("generate", "--from", "x.json", "-o", "c.mp4").must_be_refused("x.json", "'parameters' is missing")
    sidecar["parameters"]["model"] = "/none/wan"
    (tmp_path / "d.mp4.json").write_text(json.dumps(sidecar))
    equitile("generate", "--from", "d.mp4.json", "-o", "e.mp4").must_be_refused("the record names the model /none/wan", "-m DIR")
    made(equitile("generate", "--from", "d.mp4.json", "-o=e.mp4", "-m", MINI))
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "e.mp4")
    (tmp_path / "b.mp4.json").unlink()
    equitile("generate", "--from", "b.mp4", "-o", "c.mp4").must_be_refused("there is no b.mp4.json")


def test_a_file_of_somebody_else_is_never_written_over(generate, tmp_path):
    made(generate("-o", "a.gif", *TINY))
    made(generate("-o", "a.webm", *TINY))
    assert {"a.gif.json", "a.webm.json"} <= {file.name for file in tmp_path.iterdir()}
    made(generate("-o", "a.gif", *TINY))  # its own record is replaced
    for text in '{"version": 1}', "", "not JSON":
        (tmp_path / "plan.mp4.json").write_text(text)
        generate("-o", "plan.mp4", *TINY).must_be_refused("plan.mp4.json: is not a record of a video")
        assert (tmp_path / "plan.mp4.json").read_text() == text and not (tmp_path / "plan.mp4").exists()


def test_json_and_preview(generate, tmp_path):
    outcome = made(generate("-o", "a.gif", "--json", "--perf-dump-path", "perf.json", *SMALL))
    assert json.loads(outcome.out)["parameters"]["output"] == "a.gif"
    assert len(json.loads((tmp_path / "perf.json").read_text())["step_seconds"]) == 4
    command = [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", PROMPT, "-o", "b.gif", "--preview", 1, *TINY, "--steps", 1000]
    run = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    preview = tmp_path / "b.gif.preview.png"
    while not preview.exists() and run.poll() is None:
        time.sleep(0.01)
    assert preview.read_bytes().startswith(b"\x89PNG")
    run.terminate()
    run.wait(timeout=60)
    assert preview.exists()
    made(generate("-o", "b.gif", "--preview", 1, *TINY))  # beside a checkpoint or a record it is ours
    assert not preview.exists()  # who wants it when the video is there?


def test_foreign_files_are_never_overwritten(generate, tmp_path):
    for name in "a.mp4.ckpt", "a.mp4.preview.png":
        (tmp_path / name).write_bytes(b"mine")
        generate("-o", "a.mp4", "--preview", 1, *TINY).must_be_refused(name, "move it")
        assert (tmp_path / name).read_bytes() == b"mine" and not (tmp_path / "a.mp4").exists()
        (tmp_path / name).unlink()
    (tmp_path / "a.mp4.ckpt").write_bytes(b"")
    generate("-o", "a.mp4", *TINY).must_be_refused("a.mp4.ckpt")


def test_prompts(equitile, generate, tmp_path):
    (tmp_path / "p.txt").write_text("# colours\na blue ring\n\n5\ta green star\n  # and more\na red circle\n")
    made(equitile("generate", "-m", MINI, "--prompts", "p.txt", "-o", "v.gif", "--perf-dump-path", "p.json", *TINY))
    made(generate("-o", "alone.gif", "-s", 5, *TINY, prompt="a green star"))
    assert (tmp_path / "v-0001.gif").exists() and (tmp_path / "v-0001.gif.json").exists()
    assert sha256(tmp_path / "v-0002.gif") == sha256(tmp_path / "alone.gif")
    seeds = [json.loads((tmp_path / f"v-000{i}.gif.json").read_text())["parameters"]["seed"] for i in (1, 2, 3)]
    assert seeds == [42, 5, 44] and not (tmp_path / "v-0004.gif").exists()
    assert json.loads((tmp_path / "p-0002.json").read_text())["first_step"] == 0


def test_prompts_into_pictures(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a blue ring\na green star\n")
    flags = ["generate", "-m", MINI, "--prompts", "p.txt", *TINY]
    made(equitile(*flags, "-o", "frames/%02d.png", "--dry-run"))
    equitile(*flags, "-o", "frames/%02d.png", "--attention", "mask:none.npy").must_be_refused("none.npy")
    assert [file.name for file in tmp_path.iterdir()] == ["p.txt"]
    (tmp_path / "frames-0002").mkdir()
    made(equitile(*flags, "-o", "frames/%02d.png"))
    names = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*"))
    pictures = [f"frames-000{video}/{frame:02}.png" for video in (1, 2) for frame in range(5)]
    assert names == sorted(["frames-0001", "frames-0002", "frames-0001.json", "frames-0002.json", "p.txt", *pictures])
    made(equitile(*flags, "-o", "%02d.png"))
    assert sha256(tmp_path / "frames-0002/04.png") and not (tmp_path / "00.png").exists()


@pytest.mark.parametrize("content, mentions", [
    (b"five\ta star\n", ["line 1", "'five'", "not a seed"]),
    (b"a star\n\n-5\ta star\n", ["line 3", "'-5'"]),
    (b"9223372036854775808\ta star\n", ["line 1", "not a seed"]),
    (b"a star\n7\t\n", ["line 2", "no prompt"]),
    (b"a star\n\xff\xfe\n", ["line 2", "UTF-8"]),
    (b"\n \t\r\n", ["holds no prompt"]),
    (b"", ["holds no prompt"]),
])
def test_prompts_that_cannot_be_used(equitile, tmp_path, content, mentions):
    (tmp_path / "p.txt").write_bytes(content)
    equitile("generate", "-m", MINI, "--prompts", "p.txt", "-o", "v.gif").must_be_refused("p.txt", *mentions)


def test_prompts_from_other_systems(equitile, tmp_path):
    long = "a star " * 20000
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbf7\ta star\r\n\r\na \xf0\x9f\x8e\x89 ring\r\n" + long.encode())
    made(equitile("generate", "-m", MINI, "--prompts", "p.txt", "--save-latents", "l.st", *TINY))
    parameters = [json.loads((tmp_path / f"l-000{i}.st.json").read_text())["parameters"] for i in (1, 2, 3)]
    assert [(p["prompt"], p["seed"]) for p in parameters] == [("a star", 7), ("a \U0001F389 ring", 43), (long, 44)]


@pytest.mark.parametrize("flags, mentions", [
    (["-o", "a.mp4", "-W", 250], ["width 250", "240 or 256"]),
    (["-o", "a.mp4", "-H", 0], ["height 0", "16"]),
    (["-o", "a.mp4", "--video-frames", 0], ["0 frames", "1 would work"]),
    (["-o", "a.mp4", "--video-frames", 4], ["4 frames", "1 or 5"]),
    (["-o", "a.mp4", "--steps", 0], ["--steps 0"]),
    (["-o", "none/a.mp4"], ["none/a.mp4"]),
    (["-o", "/proc/a.mp4"], ["/proc/a.mp4"]),
    (["-o", "a.xyz"], ["a.xyz"]),
    (["-o", "a.mp4", "--planner", "best"], ["best"]),
    (["-o", "a.mp4", "-m", "/nowhere"], ["/nowhere"]),
    (["-o", "a.mp4", "-m", "/tmp"], ["model_index.json"]),
    (["-o", "a.mp4", "--ranks", 0], ["--ranks 0"]),
    (["-o", "a.mp4", "--perf-dump-path", "none/p.json"], ["none/p.json"]),
    (["-o", "a.mp4", "--trace", "none/t.json"], ["none/t.json"]),
    (["-o", "a.mp4", "--save-latents", "a.mp4"], ["a.mp4", "the video and the latents"]),
    (["-o", "a.mp4", "--save-latents", "a.mp4.json"], ["a.mp4.json", "the latents and the parameters"]),
    (["-o", "a.mp4", "--perf-dump-path", "./a.mp4.json"], ["a.mp4.json", "the parameters of the run and the seconds"]),
    (["-o", "a.mp4", "--trace", "a.mp4.ckpt"], ["a.mp4.ckpt", "the checkpoint and the trace"]),
    (["-o", "a.mp4", "--attention", "mask:"], ["--attention mask:", "FILE is missing"]),
    (["-o", "name"], ["name", ".mp4, .webm or .gif"]),
    (["-o", "a.png"], ["a.png", "one frame", "--video-frames 1", "a/%05d.png"]),
    (["-o", "f/%05d.jpg"], ["f/%05d.jpg", "numbered pictures are .png", "f/%05d.png"]),
    (["-o", "f/%s.png"], ["f/%s.png", "with one number"]),
    (["-o", "a.gif", "--fps", 120], ["a.gif", "120 frames per second", "at most 50"]),
    (["-o", "a.gif", "--crf", 20], ["a.gif", "--crf 20 is for .mp4 and .webm"]),
    (["-o", "a.mp4", "-m", "Wan-AI/Wan2.1"], ["Wan-AI/Wan2.1", "--local-dir Wan2.1"]),
    (["-o", "a.mp4", "-m", "https://huggingface.co/Wan-AI/Wan2.1-T2V-1.3B"], ["--local-dir Wan2.1-T2V-1.3B-Diffusers"]),
    (["-o", "a.mp4", "--width", "abc"], ["--width abc: must be a whole number\n"]),
    (["-o", "a.mp4", "--width", 10 ** 15], ["width 1000000000000000", "multiple of 16"]),
    (["-o", "a.mp4", "--reproducible=maybe"], ["--reproducible maybe: must be true or false"]),
    (["-o", "a.mp4", "--vae-tiling=foo"], ["--vae-tiling foo: must be true or false"]),
    (["-o", "a.mp4", "--no-vae-tiling=1"], ["--no-vae-tiling 1: must be true or false"]),
    (["-o", "a.mp4", "--resume", "y", "z"], ["unexpected argument z"]),
    (["-o", "a.mp4", "--measure-mass", 3, 4], ["unexpected argument 4"]),
    (["-p", "--json"], ["-p", "a value is missing"]),
    ([], ["where shall the video go"]),
])
def test_bad_input_is_refused_before_any_work(generate, tmp_path, flags, mentions):
    generate(*flags).must_be_refused(*mentions)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key, value", [
    ("steps", 0), ("steps", 10 ** 12), ("fps", 0), ("fps", 2.5), ("cfg_scale", 1e9), ("flow_shift", 0), ("seed", -1), ("seed", 1 << 63),
    ("width", -16), ("sampler", "best"), ("rng", 7), ("tokenizer", ""), ("weights", "f64"), ("weights", "f16"), ("attention", "mask:none.npy"),
    ("prompt", None), ("vae_tiling", "yes"), ("model_fingerprint", "12"),
])
def test_what_is_recorded_is_checked_as_flags_are(equitile, generate, tmp_path, key, value):
    made(generate("-o", "a.gif", *TINY))
    record = json.loads((tmp_path / "a.gif.json").read_text())
    record["parameters"][key] = value
    (tmp_path / "b.json").write_text(json.dumps(record))
    outcome = equitile("generate", "--from", "b.json", "-o", "c.gif")
    outcome.must_be_refused(key if not isinstance(value, str) or not value else "")
    assert not (tmp_path / "c.gif").exists()


def test_bad_prompts(equitile, tmp_path):
    equitile("generate", "-o", "a.mp4").must_be_refused("-p PROMPT")
    done = subprocess.run([os.environ["EQUITILE"].encode(), b"generate", b"-p", b"\xff\xfe", b"-o", b"a.mp4"], cwd=tmp_path,
                          capture_output=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"UTF-8" in done.stderr, done.stderr


def copied_model(tmp_path):
    shutil.copytree(MINI, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    return tmp_path / "model"


def change_tensor(path, name, change):
    """Applies change(header entry, data, begin, end) to one tensor of a safetensors file."""
    content = bytearray(path.read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    change(header[name], data, *header[name]["data_offsets"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_broken_models_are_named(equitile, tmp_path):
    model = copied_model(tmp_path)
    weights = model / "transformer/diffusion_pytorch_model.safetensors"
    good = weights.read_bytes()

    def refused(*mentions):
        equitile("generate", "-m", "model", "-p", PROMPT, "-o", "a.mp4", *SMALL).must_be_refused(*mentions)

    def nan(entry, data, begin, end):
        data[begin:begin + 4] = struct.pack("<f", float("nan"))

    change_tensor(weights, "blocks.1.ffn.net.2.weight", nan)
    refused("blocks.1.ffn.net.2.weight", "NaN")
    weights.write_bytes(good)
    change_tensor(weights, "proj_out.bias", lambda entry, *_: entry.update(shape=[4, 16]))
    refused("proj_out.bias", "[4, 16]", "[64]")
    weights.write_bytes(good)
    change_tensor(weights, "proj_out.bias", lambda entry, *_: entry.update(dtype="I32"))
    refused("proj_out.bias", "I32")
    weights.write_bytes(good[:-4])
    refused("diffusion_pytorch_model.safetensors", "truncated")
    weights.write_bytes(struct.pack("<Q", 1 << 63) + good[8:])
    refused("9223372036854775808")
    weights.unlink()
    refused("transformer", "holds no weights")
    weights.write_bytes(good)
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "HunyuanVideoPipeline"}))
    refused("HunyuanVideoPipeline", "WanPipeline")


def test_files_beside_pictures_in_this_folder(generate, tmp_path):
    made(generate("-o", "%02d.png", "--keep-checkpoint", "--preview", 1, *TINY))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "00.png", "01.png", "02.png", "03.png", "04.png", "frames.ckpt", "frames.json"]


def test_what_goes_into_a_pipe_goes_there_alone(tmp_path):
    command = [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", PROMPT, *TINY, "--save-latents"]
    for path in "/dev/stdout", "a.st":
        done = subprocess.run(list(map(str, [*command, path])), cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if path == "/dev/stdout":
            piped = done.stdout
            assert list(tmp_path.iterdir()) == [] and not os.path.exists("/dev/stdout.json")
    assert piped == (tmp_path / "a.st").read_bytes()


def test_dry_run_loads_and_writes_nothing(equitile, generate, tmp_path):
    outcome = made(generate("-o", "a.mp4", "--dry-run", "--json", "--ranks", 3, *SMALL))
    report = json.loads(outcome.out)
    assert report["tokens"] == 36 and report["ranks"] == 3 and report["bytes_per_rank"]["total"] > 0 and report["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "memory per rank" in made(generate("-o", "a.mp4", "--dry-run", *SMALL)).out
    alone = json.loads(made(equitile("generate", "-m", MINI, "--dry-run", "--json", "--ranks", 3, *SMALL)).out)
    assert alone["bytes_per_rank"] == report["bytes_per_rank"] and alone["seconds_decode"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_picture_and_folders_of_pictures(generate, tmp_path):
    made(generate("-o", "new/%05d.png", *TINY))
    assert len(list((tmp_path / "new").glob("*.png"))) == 5 and (tmp_path / "new.json").exists()
    one = [*TINY, "--video-frames", 1]
    for name in "a.png", "a.jpg", "a.webp":
        made(generate("-o", name, *one))
    made(generate("-o", "b/%d.png", *one))
    made(generate("-o", "c/of/d/%d.PNG", *one))
    assert sha256(tmp_path / "a.png") == sha256(tmp_path / "c/of/d/0.PNG")
    assert sha256(tmp_path / "a.png") == sha256(tmp_path / "b/0.png")
    made(generate("-o", "q.mp4", "--crf", 40, *TINY))
    made(generate("-o", "p.mp4", *TINY))
    assert (tmp_path / "q.mp4").stat().st_size < (tmp_path / "p.mp4").stat().st_size
    made(generate("--from", "q.mp4", "-o", "r.mp4"))
    assert sha256(tmp_path / "q.mp4") == sha256(tmp_path / "r.mp4")
    made(generate("--from", "q.mp4", "-o", "r.gif"))  # which has no such quality


def test_pictures_of_a_longer_video_do_not_follow_those_of_a_shorter_one(generate, tmp_path):
    made(generate("-o", "f/%d.png", *TINY, "--video-frames", 9))
    made(generate("-o", "f/%d.png", *TINY))
    assert sorted(file.name for file in (tmp_path / "f").iterdir()) == [f"{i}.png" for i in range(5)]
    (tmp_path / "f/5.png").write_bytes(b"mine")
    (tmp_path / "f.json").unlink()
    generate("-o", "f/%d.png", *TINY).must_be_refused("f/5.png", "would follow the 5 pictures")
    assert (tmp_path / "f/5.png").read_bytes() == b"mine"


def test_what_will_not_be_seen_is_said(generate, tmp_path):
    said = made(generate("-o", "a.mp4", "-n", "a ring", "--cfg-scale", 1, *TINY)).err
    assert said.count("\n") == 1 and "--negative-prompt is ignored" in said
    assert made(generate("-o", "a.mp4", "-n", "a ring", *TINY)).err == ""
    said = made(generate("-o", "a.mp4", *TINY, prompt="a Red cat, bounces")).err
    assert said.count("\n") == 1 and "not taught 'cat';" in said and "circle" in said and len(said) < 240
    said = made(generate("-o", "a.mp4", "--dense-steps", 2, "--share-passes", "--measure-mass", *TINY)).err
    assert said == "equitile: --dense-steps, --share-passes, --measure-mass: without effect, since --attention dense leaves no blocks out\n"
    for flags in ["--quality", "exact"], ["--quality", "high"], ["--attention", "predict", "--dense-steps", 1]:
        assert "without effect" not in made(generate("-o", "a.mp4", *flags, *TINY)).err


def test_the_vocabulary_is_what_was_taught():
    spec = importlib.util.spec_from_file_location("synth", MINI / "training/synth.py")
    synth = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(synth)
    known = set((MINI / "vocabulary.txt").read_text().split())
    assert len(known) < 100
    for said in (synth.COLORS, synth.BACKGROUNDS, synth.SHAPES, synth.MOTIONS, synth.SIZES, *synth.SAID.values()):
        assert {word for text in said for word in text.split()} <= known
    rng = np.random.default_rng(1)
    for _ in range(200):
        spec, prompt = synth.sample_spec(rng)
        assert set(re.findall("[a-z]+", prompt + " " + synth.paraphrase(spec, rng))) <= known


def test_what_cannot_fit_into_memory_is_refused(generate, tmp_path):
    free = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) * 1024
    if free > 150e9:
        pytest.skip("there is memory for everything that the model can make")
    flags = ["-o", "a.mp4", "-W", 4096, "-H", 4096, "--steps", 1]
    generate(*flags, "--video-frames", 1021).must_be_refused("4096x4096", "1021 frames", "GB are free", "--dry-run")
    assert list(tmp_path.iterdir()) == []


def test_dry_run_takes_rates_from_a_file(generate, tmp_path):
    def seconds(peak, threads, gflops=50):
        kernel = [{"head_dim": 32, "block": 64, "dtype": "f32", "gflops": gflops, "row_seconds": 0}]
        (tmp_path / "m.json").write_text(json.dumps({"version": 1, "target": "avx2", "threads": threads, "peak_gflops": peak,
                                                     "pack_bytes_per_second": 1e9, "kernel": kernel, "links": []}))
        report = json.loads(made(generate("-o", "a.mp4", "--dry-run", "--json", "--machine", "m.json", "-t", 2, *SMALL)).out)
        return report["seconds_steps"], report["seconds_decode"]

    steps, decode = seconds(100, 2)
    assert seconds(100, 1, 50) == pytest.approx((steps / 2, decode / 2))  # of half the threads
    assert seconds(200, 2, 100) == pytest.approx((steps / 2, decode / 2))
    faster = seconds(100, 2, 100)  # attention alone
    assert steps / 2 < faster[0] < steps and faster[1] == decode


def test_dry_run_knows_the_memory(generate, tmp_path):
    flags = ["-o", "a.mp4", "-t", 1, "-W", 256, "-H", 256, "--video-frames", 5, "--steps", 1]
    promised = json.loads(made(generate("--dry-run", "--json", *flags)).out)["bytes_per_rank"]["total"]
    process = subprocess.Popen(list(map(str, [os.environ["EQUITILE"], "generate", "-m", MINI, "-p", PROMPT, *flags])), cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert promised == pytest.approx(usage.ru_maxrss * 1024, rel=0.25)
