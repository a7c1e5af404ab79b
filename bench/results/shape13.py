"""A checkpoint with the shape of Wan2.1 1.3B's layers, two of them, with random weights: 12 heads of 128. Text encoder, tokenizer and
decoder are wan-mini's, so that `generate` runs it."""
import json
import struct

import numpy

import runs

LAYERS = 2
SIZES = {192: 1536, 576: 8960, 6 * 192: 6 * 1536}  # wan-mini's width, inner width and modulations -> 1.3B's
VIDEOS = {False: (29, 512, 512), True: (5, 256, 256)}  # frames, width, height: 8 x 32 x 32 tokens; 2 x 16 x 16 to try


def tensors():
    """{name: shape} of wan-mini's transformer, enlarged."""
    with open(runs.MINI / "transformer/diffusion_pytorch_model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    keep = lambda name: not name.startswith("blocks.") or int(name.split(".")[1]) < LAYERS
    return {name: [SIZES.get(size, size) for size in info["shape"]] for name, info in header.items()
            if name != "__metadata__" and keep(name)}


def values(name, shape, random):
    """As bf16. Norms keep what they get, matrices keep its size."""
    if "norm" in name and name.endswith("weight"):
        numbers = numpy.ones(shape, numpy.float32)
    elif name.endswith("bias"):
        numbers = numpy.zeros(shape, numpy.float32)
    else:
        numbers = random.standard_normal(shape, numpy.float32) / numpy.float32(max(1, numpy.prod(shape[1:]))) ** numpy.float32(0.5)
    return (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def write_transformer(folder):
    folder.mkdir(parents=True)
    config = json.loads((runs.MINI / "transformer/config.json").read_text())
    config |= {"num_layers": LAYERS, "num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "rope_max_seq_len": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    shapes, header, offset = tensors(), {}, 0
    for name, shape in shapes.items():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(13)
    with open(folder / "diffusion_pytorch_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write(values(name, shape, random))


def checkpoint():
    """Its folder, written once."""
    folder = runs.KEPT / "shape-1.3b"
    if not (folder / "model_index.json").exists():
        if not (folder / "transformer/diffusion_pytorch_model.safetensors").exists():
            write_transformer(folder / "transformer")
        for part in runs.MINI.iterdir():
            if part.name not in ("transformer", "training", "README.md") and not (folder / part.name).exists():
                (folder / part.name).symlink_to(part)
    return folder


def video(quick):
    """Flags of whatever walks it."""
    frames, width, height = VIDEOS[quick]
    return ["-m", checkpoint(), "--video-frames", frames, "-W", width, "-H", height, "--cfg-scale", 1, "--weights", "bf16"]


def flags(quick):
    return [*video(quick), "-p", "star", "-s", 1]


WORK = 2190 / 167  # one step, in steps of wan-mini: GFLOP of one pass over GFLOP of its two
