"""Checkpoints and sizes that cannot be used: one clear line each, exit code 2, from `generate` and from `inspect`."""
import json
import os
import pathlib
import shutil
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TINY = ROOT / "tests/golden/tiny-wan"  # its transformer is in shards
SHARD = "diffusion_pytorch_model-0000{}-of-00003.safetensors"
SMALL = ["-W", 16, "-H", 16, "--video-frames", 1, "--steps", 1]


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(TINY, tmp_path / "model")


@pytest.fixture
def generate(equitile):
    return lambda *flags: equitile("generate", "-m", "model", "-p", "a star", "--save-latents", "a.st", *SMALL, *flags)


def split(path):
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + length]), bytearray(content[8 + length:])


def write(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def holder(model, tensor):
    """The shard that holds a tensor of the transformer."""
    index = json.loads((model / "transformer/diffusion_pytorch_model.safetensors.index.json").read_text())
    return model / "transformer" / index["weight_map"][tensor]


def missing_shard(model):
    (model / "transformer" / SHARD.format(2)).unlink()
    return SHARD.format(2), "is missing"


def shard_not_in_index(model):
    shutil.copy(model / "transformer" / SHARD.format(3), model / "transformer/diffusion_pytorch_model-00004-of-00003.safetensors")
    return "diffusion_pytorch_model-00004-of-00003.safetensors", "not in it"


def tensor_not_in_index(model):
    header, data = split(model / "transformer" / SHARD.format(3))
    header["stranger"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    write(model / "transformer" / SHARD.format(3), header, data + bytes(4))
    return SHARD.format(3), "'stranger'"


def truncated(model):
    file = model / "transformer" / SHARD.format(2)
    file.write_bytes(file.read_bytes()[:-4])
    return SHARD.format(2), "truncated"


def truncated_header(model):
    file = model / "transformer" / SHARD.format(2)
    file.write_bytes(file.read_bytes()[:100])
    return SHARD.format(2),


def empty(model):
    (model / "vae/diffusion_pytorch_model.safetensors").write_bytes(b"")
    return "vae/diffusion_pytorch_model.safetensors",


def header_of_2_63(model):
    file = model / "transformer" / SHARD.format(1)
    file.write_bytes(struct.pack("<Q", 1 << 63) + file.read_bytes()[8:])
    return SHARD.format(1), "9223372036854775808"


def overlapping(model):
    file = model / "transformer" / SHARD.format(1)
    header, data = split(file)
    first, second = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])[:2]
    header[second]["data_offsets"] = [offset - 4 for offset in header[second]["data_offsets"]]
    write(file, header, data)
    return SHARD.format(1), second


def other_shape(model):
    file = holder(model, "proj_out.bias")
    header, data = split(file)
    header["proj_out.bias"]["shape"] = [4, 16]
    write(file, header, data)
    return "proj_out.bias", "[4, 16]", "[64]"


def other_dtype(model):
    file = holder(model, "proj_out.bias")
    header, data = split(file)
    header["proj_out.bias"]["dtype"] = "I32"
    write(file, header, data)
    return "proj_out.bias", "I32", "F32"


def unknown_class(model):
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "HunyuanVideoPipeline"}))
    return "HunyuanVideoPipeline", "WanPipeline"


def unknown_transformer(model):
    config = json.loads((model / "transformer/config.json").read_text())
    (model / "transformer/config.json").write_text(json.dumps({**config, "_class_name": "FluxTransformer2DModel"}))
    return "FluxTransformer2DModel", "WanTransformer3DModel"


def image_to_video(model):
    config = json.loads((model / "transformer/config.json").read_text())
    (model / "transformer/config.json").write_text(json.dumps({**config, "image_dim": 1280}))
    return "image_dim", "1280"


def with_config(model, **values):
    config = model / "transformer/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))


def layers_without_end(model):
    with_config(model, num_layers=1 << 20)
    return "num_layers", 1 << 20


def width_that_wraps(model):
    with_config(model, num_attention_heads=1 << 19, attention_head_dim=512)
    return "num_attention_heads", 1 << 19


@pytest.mark.parametrize("damage", [
    missing_shard, shard_not_in_index, tensor_not_in_index, truncated, truncated_header, header_of_2_63, overlapping, unknown_class,
    unknown_transformer, image_to_video, layers_without_end, width_that_wraps], ids=lambda damage: damage.__name__)
def test_damage_is_named_by_generate_and_inspect(equitile, generate, model, tmp_path, damage):
    mentions = damage(model)
    generate().must_be_refused(*mentions)
    equitile("inspect", "model").must_be_refused(*mentions)
    assert not (tmp_path / "a.st").exists()


@pytest.mark.parametrize("damage", [other_shape, other_dtype], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("ranks", [1, 2])
def test_tensors_that_do_not_fit_are_named_with_found_and_expected(generate, model, damage, ranks):
    mentions = damage(model)
    generate("--ranks", ranks).must_be_refused(*mentions)


@pytest.mark.parametrize("launcher", [[], ["mpirun", "-n", "1", "--allow-run-as-root"]], ids=["alone", "mpirun"])
def test_sizes_that_the_files_do_not_have_take_no_memory(model, tmp_path, launcher):
    with_config(model, num_attention_heads=512, attention_head_dim=128, num_layers=1000)  # petabytes
    done = subprocess.run([*launcher, os.environ["EQUITILE"], "generate", "-m", "model", "-p", "a star", "--save-latents", "a.st", *map(str, SMALL)],
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "GB of memory" in done.stderr or "scale_shift_table" in done.stderr or "patch_embedding" in done.stderr, done.stderr


@pytest.mark.parametrize("tensor, value", [("blocks.1.ffn.net.2.weight", np.nan), ("blocks.0.attn1.norm_q.weight", -np.inf),
                                           ("patch_embedding.bias", np.nan)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_that_are_not_finite_are_named(generate, model, tensor, value, ranks):
    file = holder(model, tensor)
    header, data = split(file)
    begin, end = header[tensor]["data_offsets"]
    data[end - 4:end] = struct.pack("<f", value)
    write(file, header, data)
    generate("--ranks", ranks).must_be_refused(tensor, "NaN" if np.isnan(value) else "inf")


def test_text_encoder_and_vae_are_looked_at_too(equitile, model):
    def refused(*mentions):
        equitile("generate", "-m", "model", "-p", "a star", "-o", "a.gif", *SMALL).must_be_refused(*mentions)

    file = model / "text_encoder/model.safetensors"
    good = file.read_bytes()
    header, data = split(file)
    begin, _ = header["shared.weight"]["data_offsets"]
    data[begin:] = b"\xff" * (len(data) - begin)  # bf16 NaN from here on
    write(file, header, data)
    refused("text_encoder/model.safetensors", "shared.weight", "not finite")
    file.write_bytes(good)
    refused(*empty(model))


def test_files_of_their_own(equitile, model, tmp_path):
    for damage in truncated, header_of_2_63, overlapping:
        shutil.copytree(TINY, tmp_path / damage.__name__)
        name, *mentions = damage(tmp_path / damage.__name__)
        equitile("inspect", tmp_path / damage.__name__ / "transformer" / name).must_be_refused(name, *mentions)


@pytest.mark.parametrize("flags, mentions", [
    (["-W", 250], ["width 250", "240 or 256"]),
    (["-H", 250], ["height 250", "240 or 256"]),
    (["-W", 0], ["width 0", "16 would work"]),
    (["--video-frames", 0], ["0 frames", "1 would work"]),
    (["--video-frames", 4], ["4 frames", "1 or 5"]),
])
def test_sizes_name_the_nearest_that_work(equitile, model, flags, mentions):
    equitile("generate", "-m", "model", "-p", "a star", "-o", "a.gif", *flags).must_be_refused(*mentions)
    equitile("inspect", "model", *flags).must_be_refused(*mentions)


@pytest.mark.parametrize("prompt", [b"\xff\xfe", b"a \xc3", b"\xed\xa0\x80", b"\xc0\x80"], ids=["bytes", "cut", "surrogate", "overlong"])
def test_prompts_that_are_not_utf8(model, tmp_path, prompt):
    command = [os.environ["EQUITILE"], "generate", "-m", "model", "--save-latents", "a.st", "-p", prompt]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"UTF-8" in done.stderr, done.stderr
