"""`equitile generate`: the same bits on any ranks, threads and after any crash; what cannot be used is refused in one line, before
any work. Small videos of wan-mini; nothing here depends on what its weights draw."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINI = ROOT / "models/wan-mini"
PROMPT = "a red circle bounces on a black background"
SMALL = ["-W", 64, "-H", 48, "--video-frames", 9, "--steps", 4]  # 3 x 3 x 4 tokens


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


@pytest.fixture
def generate(equitile, tmp_path):
    def run(*args, prompt=PROMPT, **environment):
        return equitile("generate", "-p", prompt, *args, **{"EQUITILE_MODEL": str(MINI), **environment})

    return run


def made(outcome):
    assert outcome.code == 0, outcome.err
    return outcome


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
    assert done.stdout.count("\n") == 1
    assert sha256(tmp_path / "one.mp4") == sha256(tmp_path / "two.mp4")


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
    generate("-o", "a.mp4", "--attention", "sparse", *SMALL).must_be_refused("--attention sparse", "dense or mask:FILE")


def test_layouts_by_degrees_and_a_trace_of_all_ranks(generate, tmp_path):
    made(generate("-o", "one.mp4", *SMALL))
    made(generate("-o", "two.mp4", "--ranks", 2, "--ulysses-degree", 2, "--reuse-threshold", 1.1, "--trace", "trace.json", *SMALL))
    assert sha256(tmp_path / "one.mp4") == sha256(tmp_path / "two.mp4")
    run = json.loads((tmp_path / "two.json").read_text())["run"]
    assert {layer["planner"] for layer in run["layout"]} == {"usp:2x1"}
    calls = 4 * len(run["layout"])  # steps, layers
    assert run["plans"]["made"] == 1 and run["plans"]["made"] + run["plans"]["kept"] == calls
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    for rank in 0, 1:
        computed = {(e["args"]["step"], e["args"]["layer"]) for e in events if e["pid"] == rank and e["name"] == "compute"}
        assert computed == {(step, layer) for step in range(1, 5) for layer in range(len(run["layout"]))}


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
        made(generate("--save-latents", f"{name}.st", *SMALL, *extra))
    assert len({sha256(tmp_path / f"{name}.st") for name in flags}) == len(flags)


def test_sidecar_repeats_the_run(generate, equitile, tmp_path):
    made(generate("-o", "a.mp4", "-s", 7, "--cfg-scale", 2.5, *SMALL))
    sidecar = json.loads((tmp_path / "a.json").read_text())
    assert sidecar["parameters"]["prompt"] == PROMPT and sidecar["parameters"]["seed"] == 7
    assert sidecar["run"]["seconds"]["total"] > 0 and len(sidecar["run"]["layout"]) > 0
    made(equitile("generate", "--from", "a.json", "-o", "b.mp4"))
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "b.mp4")
    made(equitile("generate", "--from", "a.json", "-o", "c.mp4", "-s", 8))
    assert sha256(tmp_path / "a.mp4") != sha256(tmp_path / "c.mp4")
    (tmp_path / "x.json").write_text("{}")
    equitile("generate", "--from", "x.json", "-o", "c.mp4").must_be_refused("x.json", "'parameters' is missing")


def test_json_and_preview(generate, tmp_path):
    outcome = made(generate("-o", "a.gif", "--json", "--preview", 2, "--perf-dump-path", "perf.json", *SMALL))
    assert json.loads(outcome.out)["parameters"]["output"] == "a.gif"
    assert (tmp_path / "a.gif.preview.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "perf.json").read_text())["step_seconds"]) == 4


def test_prompts(equitile, generate, tmp_path):
    (tmp_path / "p.txt").write_text("a blue ring\n\n5\ta green star\n")
    made(equitile("generate", "-m", MINI, "--prompts", "p.txt", "-o", "v.gif", *SMALL))
    made(generate("-o", "alone.gif", "-s", 5, *SMALL, prompt="a green star"))
    assert (tmp_path / "v-0001.gif").exists() and (tmp_path / "v-0001.json").exists()
    assert sha256(tmp_path / "v-0002.gif") == sha256(tmp_path / "alone.gif")
    (tmp_path / "bad.txt").write_text("five\ta star\n")
    equitile("generate", "-m", MINI, "--prompts", "bad.txt", "-o", "v.gif").must_be_refused("bad.txt, line 1")
    (tmp_path / "none.txt").write_text("\n")
    equitile("generate", "-m", MINI, "--prompts", "none.txt", "-o", "v.gif").must_be_refused("none.txt", "no prompt")


def start(tmp_path, *args):
    command = [os.environ["EQUITILE"], "generate", "-m", str(MINI), "-p", PROMPT, *map(str, args)]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, process, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, "no checkpoint"
        time.sleep(0.005)


LONG = ["-W", 128, "-H", 128, "--video-frames", 17, "--steps", 40, "--checkpoint-every", 1, "-s", 3]


def test_survives_kill_and_resumes_to_the_same_bits(generate, tmp_path):
    made(generate("-o", "whole.mp4", *LONG))
    process = start(tmp_path, "-o", "a.mp4", *LONG)
    wait_for(tmp_path / "a.mp4.ckpt", process)
    process.kill()
    process.wait()
    assert not (tmp_path / "a.mp4").exists()
    # Any other parameter: refused, and the checkpoint stays.
    generate("-o", "a.mp4", "--resume", *LONG[:-1], 4).must_be_refused("a.mp4.ckpt", "another run", "seed is '3', not '4'")
    generate("-o", "a.mp4", "--resume", *LONG, prompt="a star").must_be_refused("another run", "prompt")
    made(generate("-o", "a.mp4", "--resume", "--ranks", 2, *LONG))
    assert json.loads((tmp_path / "a.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")
    assert not (tmp_path / "a.mp4.ckpt").exists()


def test_interrupt_writes_a_checkpoint_and_says_how_to_go_on(generate, tmp_path):
    flags = ["-W", 128, "-H", 128, "--video-frames", 17, "--steps", 60, "-s", 3]
    process = start(tmp_path, "-o", "a b.mp4", *flags, "--checkpoint-every", 1)
    wait_for(tmp_path / "a b.mp4.ckpt", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    assert "interrupted after step" in err and err.strip().endswith("--resume"), err
    command = err.strip().splitlines()[-1].split("go on with: ")[1]
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made(generate("-o", "whole.mp4", *flags))
    assert sha256(tmp_path / "a b.mp4") == sha256(tmp_path / "whole.mp4")


def test_checkpoints_that_cannot_be_used(generate, tmp_path):
    made(generate("--save-latents", "a.st", "--keep-checkpoint", *SMALL))
    good = (tmp_path / "a.st.ckpt").read_bytes()
    damaged = bytearray(good)
    damaged[-5] ^= 1
    for content, mention in (bytes(damaged), "damaged"), (good[:-9], "truncated"), (b"", "too short"), (b"x" * 100, "header"):
        (tmp_path / "a.st.ckpt").write_bytes(content)
        generate("--save-latents", "a.st", "--resume", *SMALL).must_be_refused("a.st.ckpt", mention)
    shutil.copy(ROOT / "tests/golden/noise.safetensors", tmp_path / "f.ckpt")
    generate("--save-latents", "a.st", "--resume", "f.ckpt", *SMALL).must_be_refused("f.ckpt", "not a checkpoint")
    generate("--save-latents", "b.st", "--resume", *SMALL).must_be_refused("no checkpoint", "b.st.ckpt")
    # One of a finished run goes straight to its files.
    (tmp_path / "a.st.ckpt").write_bytes(good)
    first = sha256(tmp_path / "a.st")
    (tmp_path / "a.st").unlink()
    made(generate("--save-latents", "a.st", "--resume", *SMALL))
    assert sha256(tmp_path / "a.st") == first


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
    ([], ["where shall the video go"]),
])
def test_bad_input_is_refused_before_any_work(generate, tmp_path, flags, mentions):
    generate(*flags).must_be_refused(*mentions)
    assert list(tmp_path.iterdir()) == []


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


def test_full_devices(generate, tmp_path):
    outcome = generate("--save-latents", "/dev/full", *SMALL)
    assert outcome.code == 1 and "/dev/full" in outcome.err and outcome.out == "", outcome.err


def test_dry_run_loads_and_writes_nothing(generate, tmp_path):
    outcome = made(generate("-o", "a.mp4", "--dry-run", "--json", "--ranks", 3, *SMALL))
    report = json.loads(outcome.out)
    assert report["tokens"] == 36 and report["ranks"] == 3 and report["bytes_per_rank"]["total"] > 0 and report["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "memory per rank" in made(generate("-o", "a.mp4", "--dry-run", *SMALL)).out
