"""The README's pictures of the small model's videos, as strips of frames: what a prompt gives, dense above sparse, a row per preset.
Plain Python: nothing here needs a library for pictures."""
import pathlib
import struct
import tempfile
import zlib

import numpy

import runs

SHOWN, GAP = 7, 4  # frames, and pixels between them
PRESETS = ["exact", "high", "balanced", "draft"]


def held_out():
    """Prompt and seed that nobody chose: the first of those that no calibration has seen."""
    seed, prompt = (runs.MINI / "held-out.txt").read_text().splitlines()[0].split("\t")
    return ["-p", prompt, "-s", seed]


def pictures():
    """{file: flags of each of its strips}, as README gives the commands."""
    star = ["-p", "a big yellow star grows on a navy background", "-s", 1]
    triangle = ["-p", "a small orange triangle moves right on a navy background", "-s", 2]
    return {"star.png": [star],
            "sparse.png": [triangle, [*triangle, "--attention", "predict", "--cache", "easy"]],
            "presets.png": [[*held_out(), "--quality", preset] for preset in PRESETS]}


def read_png(path):
    """[height, width, 3] of a PNG as equitile writes it: 8 bit RGB."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    lines = numpy.frombuffer(zlib.decompress(packed), numpy.uint8).reshape(height, 1 + 3 * width)
    image = numpy.zeros((height + 1, 3 * (width + 1)), numpy.int32)  # with a border of zeros above and to the left
    for y, line in enumerate(lines):
        above, row = image[y], image[y + 1]
        for x in range(3 * width):
            left, up, corner = row[x], above[x + 3], above[x]
            estimate = left + up - corner
            paeth = min((left, up, corner), key=lambda value: abs(estimate - value))
            row[x + 3] = (line[1 + x] + [0, left, up, (left + up) // 2, paeth][line[0]]) & 255
    return image[1:, 3:].reshape(height, width, 3).astype(numpy.uint8)


def write_png(path, image):
    height, width, _ = image.shape
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))


def strip(program, flags):
    """Some frames side by side, at half their size."""
    with tempfile.TemporaryDirectory() as folder:
        program.run("generate", "-m", runs.MINI, *flags, "-o", pathlib.Path(folder) / "%05d.png")
        files = sorted(pathlib.Path(folder).glob("*.png"))
        frames = [read_png(files[i * (len(files) - 1) // (SHOWN - 1)]) for i in range(SHOWN)]
    small = [frame.reshape(frame.shape[0] // 2, 2, frame.shape[1] // 2, 2, 3).mean((1, 3)).astype(numpy.uint8) for frame in frames]
    return joined(small, axis=1)


def joined(images, axis):
    """In a row or one above the other, with white between them."""
    shape = list(images[0].shape)
    shape[axis] = GAP
    gap = numpy.full(shape, 255, numpy.uint8)
    return numpy.concatenate([part for image in images for part in (image, gap)][:-1], axis=axis)


def make(program, folder, size=()):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in pictures().items():
        runs.say(f"{name}: {len(rows)} video{'s' * (len(rows) > 1)}")
        write_png(folder / name, joined([strip(program, [*flags, *size]) for flags in rows], axis=0))
