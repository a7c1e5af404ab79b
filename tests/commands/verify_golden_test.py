"""`equitile verify --golden`: green for the stored files, and able to fail: a value that is off is named."""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
OTHER = GOLDEN.parent / "golden_other"  # other sizes, types and switches everywhere


@pytest.fixture
def copy(tmp_path):
    """A copy of the golden folder that may be damaged."""
    return shutil.copytree(GOLDEN, tmp_path / "golden")


def change(path, tensor, by, dtype=np.float32, index=5):
    """Adds `by` to one value of a tensor of a safetensors file."""
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])[tensor]["data_offsets"]
    values = np.frombuffer(bytes(data[8 + length + begin:8 + length + end]), dtype).copy()
    values[index] += by
    data[8 + length + begin:8 + length + end] = values.tobytes()
    path.write_bytes(data)


def rewrite(path, renamed):
    """A safetensors file with tensors under other names; those that become None are left out."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, kept, body = json.loads(data[8:8 + length]), {}, b""
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if renamed(name) is None:
            continue
        begin, end = entry["data_offsets"]
        kept[renamed(name)] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[8 + length + begin:8 + length + end]
    text = json.dumps(kept).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def green(outcome, golden):
    """The digest of a run in which everything is within its tolerance."""
    assert outcome.code == 0, outcome.out + outcome.err
    said = json.loads(outcome.out)
    assert said["ok"] and all(entry["ok"] for entry in said["files"])
    assert {entry["file"] for entry in said["files"]} == {
        "text.json", *(path.name for path in golden.glob("*.safetensors"))}
    for entry in said["files"]:
        assert entry["error"] <= entry["tolerance"] or entry["error"] == entry["tolerance"] == 0
        assert entry.keys() >= {"file", "tensor", "error", "tolerance", "at", "ok"}
    assert {run["digest"] for run in said["runs"]} == {said["digest"]}
    return said["digest"]


def mpirun(ranks, *args):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, os.environ["EQUITILE"], *args]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("golden", [GOLDEN, OTHER], ids=["golden", "other"])
def test_all_green_with_the_same_bits_on_any_ranks_and_threads(equitile, golden):
    digests = {green(equitile("verify", "--golden", golden, "--json", "--threads", threads), golden) for threads in (1, 2, 3)}
    outcome = equitile("verify", "--golden", golden, "--json", "--ranks", "1,2,3,5")
    digests.add(green(outcome, golden))
    assert [run["ranks"] for run in json.loads(outcome.out)["runs"]] == [1, 2, 3, 5]
    assert len(digests) == 1


def test_says_so_in_a_table(equitile):
    outcome = equitile("verify", "--golden", OTHER, "--ranks", "1,3")
    assert outcome.code == 0 and "\n3 ranks of " in outcome.out and re.search(r"the same bits on all\n\d+ checks passed\n$", outcome.out)
    assert outcome.out.count("all within tolerance; bits ") == 2


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_same_bits_under_mpirun(equitile):
    one = green(equitile("verify", "--golden", GOLDEN, "--json"), GOLDEN)
    done = mpirun(2, "verify", "--golden", GOLDEN, "--json", "-t", 1)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["digest"] == one and said["runs"][0]["ranks"] == 2
    done = mpirun(2, "verify", "--golden", GOLDEN, "--ranks", 2)
    assert done.returncode == 2 and "--ranks" in done.stderr


@pytest.mark.parametrize("file, tensor, by, dtype, at", [
    ("text.safetensors", "02.prompt_embeds", 1e-4, np.float32, [0, 5]),
    ("text.safetensors", "02.ids", 1, np.int64, [5]),
    ("transformer_3x10x6.safetensors", "cond.block0.self.q", 1e-3, np.float32, [0, 0, 5]),
    ("transformer_1x8x8.safetensors", "zero.output", 1e-3, np.float32, [0, 0, 0, 5]),
    ("scheduler.safetensors", "euler.shift3.steps20.sigmas", 1e-6, np.float32, [5]),
    ("noise.safetensors", "seed42.shape1000", 1e-5, np.float32, [5]),
    ("vae.safetensors", "decode_3x3x2.frames", 1e-3, np.float32, [0, 0, 0, 5]),
    ("pipeline_unipc_cfg5.safetensors", "latents", 1e-2, np.float32, [0, 0, 0, 0, 5]),
    ("pipeline_euler_cfg5.safetensors", "frames_uint8", 9, np.uint8, [0, 0, 1, 2]),
])
def test_a_value_that_is_off_is_found(equitile, copy, file, tensor, by, dtype, at):
    change(copy / file, tensor, by, dtype)
    outcome = equitile("verify", "--golden", copy, "--json")
    assert outcome.code == 1
    said = json.loads(outcome.out)
    assert not said["ok"]
    failed = [entry for entry in said["files"] if not entry["ok"]]
    assert {entry["file"] for entry in failed} == {file}
    named = [entry for entry in failed if entry["tensor"] == tensor]
    assert named and named[0]["at"] == at
    assert not (named[0]["error"] or 1e9) <= named[0]["tolerance"] or tensor == "frames_uint8"


def test_a_tensor_that_is_not_there_is_a_failure(equitile, copy):
    gone = {
        "pipeline_unipc_cfg5.safetensors": {
            "noise", "timesteps", "prompt_embeds", "negative_prompt_embeds", "step0.cond", "step0.uncond", "velocity", "latents",
            "vae_input", "frames_uint8"},
        "pipeline_unipc_cfg1.safetensors": {"latents"},
        "transformer_3x10x6.safetensors": {"empty.output", "cond.block1.block.output"},
        "transformer_1x8x8.safetensors": {"zero.temb"},
        "scheduler.safetensors": {"euler.shift3.steps20.timesteps", "unipc_b.shift5.steps3.trace_m"},
        "vae.safetensors": {"decode_5x2x2.frames", "decode_1x4x3.frames_uint8"},
    }
    for file, names in gone.items():
        rewrite(copy / file, lambda name: None if name in names else name)
    outcome = equitile("verify", "--golden", copy, "--json")
    assert outcome.code == 1, outcome.err
    failed = [(entry["file"], entry["tensor"], entry["note"]) for entry in json.loads(outcome.out)["files"] if not entry["ok"]]
    assert sorted(failed) == sorted((file, name, "missing") for file, names in gone.items() for name in names)


def test_files_without_comparisons_are_failures(equitile, copy):
    for path in copy.glob("pipeline_*.safetensors"):
        rewrite(path, lambda name: name if name == "sigmas" else None)
    (copy / "pipeline_unipc_cfg1.json").unlink()
    rewrite(copy / "vae.safetensors", lambda name: name if name.startswith("encode_") else None)
    rewrite(copy / "noise.safetensors", lambda name: "other." + name.replace("seed", ""))
    outcome = equitile("verify", "--golden", copy, "--json")
    assert outcome.code == 1
    said = json.loads(outcome.out)
    failed = {(entry["file"], entry["note"]) for entry in said["files"] if not entry["ok"]}
    assert failed == {("pipeline_unipc_cfg1.json", "missing"), ("vae.safetensors", "nothing to compare"),
                      ("noise.safetensors", "nothing to compare"),
                      *((f"pipeline_{name}.safetensors", "missing") for name in ("euler_cfg5", "unipc_cfg5", "unipc_short_text"))}


def test_what_is_not_read_is_listed(equitile, copy):
    rewrite(copy / "transformer_3x10x6.safetensors",
            lambda name: name.replace("empty.", "other.") if name != "empty.timestep" else None)
    rewrite(copy / "pipeline_unipc_cfg1.safetensors", lambda name: "extra" if name == "sigmas" else name)
    outcome = equitile("verify", "--golden", copy, "--json")
    said = json.loads(outcome.out)
    skipped = {(entry["file"], entry["tensor"]) for entry in said["skipped"]}
    assert skipped >= {("transformer_3x10x6.safetensors", f"other.{name}") for name in (
        "text", "text_tokens", "temb", "block0.block.output", "block1.block.output", "output")}
    assert ("pipeline_unipc_cfg1.safetensors", "extra") in skipped and ("vae.safetensors", "encode_9x16x16.video") in skipped
    assert not any(entry["tensor"].startswith(("cond.", "decode_")) for entry in said["skipped"])
    assert "not compared: other.output of transformer_3x10x6.safetensors" in equitile("verify", "--golden", copy).out


def test_other_text_is_found(equitile, copy):
    text = json.loads((copy / "text.json").read_text())
    text["prompts"][2]["ids"]["sentencepiece"][1] += 1
    text["prompts"][3]["cleaned"] += "x"
    (copy / "text.json").write_text(json.dumps(text))
    outcome = equitile("verify", "--golden", copy)
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert "02.ids.sentencepiece" in outcome.out and "03.cleaned" in outcome.out


def test_what_cannot_be_used_is_refused(equitile, tmp_path, copy):
    equitile("verify", "--golden", "nowhere").must_be_refused("nowhere")
    (tmp_path / "empty").mkdir()
    equitile("verify", "--golden", "empty").must_be_refused("empty", "checkpoint")
    (copy / "tiny-wan/transformer/diffusion_pytorch_model-00002-of-00003.safetensors").unlink()
    equitile("verify", "--golden", copy).must_be_refused("00002-of-00003")
