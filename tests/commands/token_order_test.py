"""--token-order: the transformer keeps its tokens in another order. Dense it is the same video but for roundings; masks lie along the
order; the same bits on any ranks, threads and after a crash; files made for another order are refused."""
import array
import json
import math

import pytest
from made_videos import MINI, THREE_BLOCKS

FLAGS = [*THREE_BLOCKS, "--steps", 4]


@pytest.fixture
def generate(equitile):
    def run(*args):
        return equitile("generate", *FLAGS, *args, EQUITILE_MODEL=str(MINI))

    return run


def stored(path):
    """The numbers of a file of latents."""
    data = path.read_bytes()
    return array.array("f", data[8 + int.from_bytes(data[:8], "little"):])


def latents(generate, tmp_path, *args):
    outcome = generate("--save-latents", "a.st", *args)
    assert outcome.code == 0, outcome.err
    return stored(tmp_path / "a.st")


@pytest.mark.parametrize("order", ["hilbert", "tiles:2x3x4", "whf"])
def test_dense_is_the_same_video_but_for_roundings(generate, tmp_path, order):
    natural = latents(generate, tmp_path)
    assert latents(generate, tmp_path, "--token-order", "frame_major") == natural
    one = latents(generate, tmp_path, "--token-order", order, "-t", 1)
    rms = math.sqrt(sum(x * x for x in natural) / len(natural))
    assert one != natural
    assert max(abs(x - y) for x, y in zip(one, natural)) < 1e-3 * rms
    for flags in ["-t", 2], ["--ranks", 2], ["--ranks", 3, "--planner", "ulysses"], ["--ranks", 5, "-t", 1]:
        assert latents(generate, tmp_path, "--token-order", order, *flags) == one, flags


@pytest.mark.parametrize("attention", ["predict:mass=0.6", "observe:mass=0.6", "svg", "radial", "sparge", "window:temporal"])
@pytest.mark.parametrize("order", ["hilbert", "tiles:2x3x4"])
def test_masks_give_the_same_bits_on_any_ranks(generate, tmp_path, attention, order):
    flags = ["--attention", attention, "--token-order", order]
    one = latents(generate, tmp_path, *flags, "-t", 1)
    for more in ["--ranks", 3], ["--ranks", 5, "-t", 1]:
        assert latents(generate, tmp_path, *flags, *more) == one, more


# Bands and windows bring their own orders: where tokens are at home does not change what they keep.
@pytest.mark.parametrize("attention", ["radial", "window:spatial", "window:temporal"])
def test_masks_that_follow_the_video_keep_the_same_wherever_tokens_are(generate, tmp_path, attention):
    natural = latents(generate, tmp_path, "--attention", attention)
    dense = latents(generate, tmp_path)
    rms = math.sqrt(sum(x * x for x in natural) / len(natural))
    off = [max(abs(x - y) for x, y in zip(other, natural)) / rms
           for other in (latents(generate, tmp_path, "--attention", attention, "--token-order", "hilbert"), dense)]
    assert off[0] < 1e-3 < off[1], off


def test_is_part_of_the_recipe(generate, tmp_path):
    whole = latents(generate, tmp_path, "--token-order", "hilbert", "--checkpoint-every", 1, "--keep-checkpoint")
    generate("--save-latents", "a.st", "--resume").must_be_refused("token order", "hilbert", "fhw")
    assert json.loads((tmp_path / "a.st.json").read_text())["parameters"]["token_order"] == "hilbert"
    assert latents(generate, tmp_path, "--from", "a.st.json", "--ranks", 2) == whole


def mask_file(path, **description):
    """A dense mask of 6 heads, 3 x 3 blocks."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (6, 3, 3), }"
    header += b" " * (117 - len(header)) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes([1] * 54))
    path.with_suffix(".json").write_text(json.dumps({"q_tokens": 144, "kv_tokens": 144, **description}))


def test_masks_of_another_order_are_refused(generate, tmp_path):
    use = ["--attention", "mask:m.npy", "--save-latents", "a.st"]
    mask_file(tmp_path / "m.npy")  # says nothing: fhw
    assert generate(*use).code == 0
    generate(*use, "--token-order", "hilbert").must_be_refused("m.npy", "fhw", "hilbert")
    mask_file(tmp_path / "m.npy", grid=[3, 6, 8], home_order="hilbert")
    generate(*use).must_be_refused("m.npy", "--token-order hilbert")
    dense = latents(generate, tmp_path, "--token-order", "hilbert")
    assert latents(generate, tmp_path, "--attention", "mask:m.npy", "--token-order", "hilbert") == dense


def test_unknown_orders_are_refused(generate):
    generate("-o", "a.mp4", "--token-order", "zigzag").must_be_refused("zigzag", "hilbert", "tiles:FxHxW")
    generate("-o", "a.mp4", "--token-order", "tiles:0x1x1").must_be_refused("0x1x1")
