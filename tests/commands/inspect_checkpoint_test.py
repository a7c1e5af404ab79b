"""`equitile inspect` of a checkpoint and of a safetensors file."""
import json
import pathlib
import shutil
import struct

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINI = ROOT / "models" / "wan-mini"
TINY = ROOT / "tests" / "golden" / "tiny-wan"


def header(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])


@pytest.mark.parametrize("folder", [MINI, TINY])
def test_parts_are_those_of_the_files(equitile, folder):
    outcome = equitile("inspect", folder, "-W", 64, "-H", 48, "--video-frames", 9, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    for part in said["parts"]:
        tensors = {}
        for file in (folder / part["part"]).glob("*.safetensors"):
            tensors.update(header(file))
        tensors.pop("__metadata__", None)
        count = 0
        for tensor in tensors.values():
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            count += size
        assert (part["tensors"], part["parameters"]) == (len(tensors), count)
        assert part["dtypes"] == " + ".join(sorted({tensor["dtype"] for tensor in tensors.values()}))
    assert said["video"]["latent"] == [3, 6, 8] and said["video"]["tokens"] == 3 * 3 * 4
    flops = said["flops_per_step"]
    assert flops["total"] == pytest.approx(sum(flops[key] for key in flops if key != "total"))


def test_costs_follow_the_config(equitile):
    config = json.loads((TINY / "transformer/config.json").read_text())
    said = json.loads(equitile("inspect", TINY, "-W", 64, "-H", 48, "--video-frames", 9, "--json").out)
    width = config["num_attention_heads"] * config["attention_head_dim"]
    tokens, passes = said["video"]["tokens"], said["video"]["passes"]
    assert said["flops_per_step"]["self_attention"] == pytest.approx(
        passes * config["num_layers"] * 4 * tokens ** 2 * width)


def test_text_for_people(equitile):
    outcome = equitile("inspect", MINI)
    assert outcome.code == 0
    for word in ("transformer", "text_encoder", "vae", "BF16", "3328 tokens", "self_attention", "memory"):
        assert word in outcome.out


def test_one_file(equitile):
    file = MINI / "vae" / "diffusion_pytorch_model.safetensors"
    said = json.loads(equitile("inspect", file, "--json").out)
    tensors = header(file)
    tensors.pop("__metadata__", None)
    assert {t["tensor"]: t["shape"] for t in said["tensors"]} == {n: t["shape"] for n, t in tensors.items()}
    assert equitile("inspect", file).code == 0


def test_what_cannot_be_used_is_refused(equitile, tmp_path):
    equitile("inspect", MINI, "-W", 250).must_be_refused("250")
    equitile("inspect", MINI, "--video-frames", 4).must_be_refused("4")
    (tmp_path / "empty").mkdir()
    equitile("inspect", "empty").must_be_refused("model_index.json")
    broken = shutil.copytree(TINY, tmp_path / "broken")
    index = json.loads((broken / "model_index.json").read_text())
    index["_class_name"] = "FluxPipeline"
    (broken / "model_index.json").write_text(json.dumps(index))
    equitile("inspect", "broken").must_be_refused("FluxPipeline")
    (tmp_path / "long.safetensors").write_bytes(struct.pack("<Q", 2 ** 63) + b"{}")
    equitile("inspect", "long.safetensors").must_be_refused("long.safetensors")
