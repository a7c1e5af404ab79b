"""docs/pictures/sparse.png: frames of one prompt, dense above and sparse below. Plain Python: nothing here needs a library for pictures."""
import pathlib
import struct
import tempfile
import zlib

import numpy

import runs

PROMPT, SEED = "a big yellow star spins", 1
SPARSE = ["--attention", "predict", "--cache", "easy"]
SHOWN, GAP = 7, 4  # frames, and pixels between them


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
        program.run("generate", "-m", runs.MINI, "-p", PROMPT, "-s", SEED, *flags, "-o", pathlib.Path(folder) / "%05d.png")
        files = sorted(pathlib.Path(folder).glob("*.png"))
        frames = [read_png(files[i * (len(files) - 1) // (SHOWN - 1)]) for i in range(SHOWN)]
    small = [frame.reshape(frame.shape[0] // 2, 2, frame.shape[1] // 2, 2, 3).mean((1, 3)).astype(numpy.uint8) for frame in frames]
    gap = numpy.full((small[0].shape[0], GAP, 3), 255, numpy.uint8)
    return numpy.concatenate([part for frame in small for part in (frame, gap)][:-1], axis=1)


def make(program, path, size=()):
    above, below = strip(program, size), strip(program, [*size, *SPARSE])
    gap = numpy.full((GAP, above.shape[1], 3), 255, numpy.uint8)
    write_png(path, numpy.concatenate([above, gap, below]))
