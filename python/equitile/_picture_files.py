"""Frames as .png and .gif, which need no other program."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def write_png(path: str, frame: np.ndarray) -> None:
    """frame: uint8 [height, width, 3]."""
    height, width, _ = frame.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter: 0, none
    rows[:, 1:] = frame.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes())) + _chunk(b"IEND", b""))


def write_pngs(path: str, frames: np.ndarray) -> None:
    """One picture, or one per frame where the name holds a number (frames/%05d.png), in a folder that is made."""
    if "%" not in os.path.basename(path):
        if len(frames) != 1:
            raise ValueError(f"{path}: a picture holds one frame, and there are {len(frames)}; frames/%05d.png makes one of each")
        return write_png(path, frames[0])
    try:
        names = [path % i for i in range(len(frames))]
    except (TypeError, ValueError):
        raise ValueError(f"{path}: a name of numbered pictures is like frames/%05d.png") from None
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    for name, frame in zip(names, frames):
        write_png(name, frame)
    return None


def _palette(frames: np.ndarray, most: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Median cut over colours of 5 bits each: the palette [256, 3], and which of it each of the 2^15 takes."""
    wide = frames.reshape(-1, 3).astype(np.uint16) >> 3
    keys = wide[:, 0] << 10 | wide[:, 1] << 5 | wide[:, 2]
    counts = np.bincount(keys, minlength=1 << 15)
    sums = np.stack([np.bincount(keys, frames[..., c].ravel(), 1 << 15) for c in range(3)], 1)
    used = np.flatnonzero(counts)
    means = sums[used] / counts[used, None]
    boxes = [np.arange(len(used))]
    spread = lambda box: np.ptp(means[box], axis=0).max() * counts[used[box]].sum() ** 0.5
    spreads = [spread(boxes[0])]
    while len(boxes) < most and max(spreads) > 0:
        at = int(np.argmax(spreads))
        box = boxes[at]
        box = box[np.argsort(means[box][:, np.ptp(means[box], axis=0).argmax()], kind="stable")]
        before = np.cumsum(counts[used[box]])
        cut = min(max(int(np.searchsorted(before, before[-1] / 2)), 1), len(box) - 1)
        boxes[at], spreads[at] = box[:cut], spread(box[:cut])
        boxes.append(box[cut:])
        spreads.append(spread(box[cut:]))
    palette, index = np.zeros((256, 3), np.uint8), np.zeros(1 << 15, np.uint8)
    for at, box in enumerate(boxes):
        palette[at] = np.rint(np.average(means[box], axis=0, weights=counts[used[box]]))
        index[used[box]] = at
    return palette, index[keys].reshape(frames.shape[:-1])


def _lzw(pixels: bytes) -> bytes:
    """GIF's codes of 9 to 12 bits, lowest bit first."""
    clear, end, longest = 256, 257, 4096
    out, held, bits, size = bytearray(), clear, 9, 9
    table: dict[int, int] = {}
    prefix = pixels[0]
    for value in pixels[1:]:
        key = prefix << 8 | value
        code = table.get(key)
        if code is not None:
            prefix = code
            continue
        held |= prefix << bits
        bits += size
        new = len(table) + 258
        if new < longest:
            table[key] = new
            size += new == 1 << size
        else:
            held |= clear << bits
            bits += size
            table, size = {}, 9
        if bits > 4096:  # long integers grow slow
            whole = bits // 8
            out += (held & (1 << 8 * whole) - 1).to_bytes(whole, "little")
            held >>= 8 * whole
            bits -= 8 * whole
        prefix = value
    held |= prefix << bits
    bits += size
    size += len(table) + 258 == 1 << size < longest
    held |= end << bits
    return bytes(out) + held.to_bytes((bits + size + 7) // 8, "little")


def write_gif(path: str, frames: np.ndarray, fps: float) -> None:
    """One palette for the clip; it plays for ever."""
    if fps > 50:
        raise ValueError(f"{path}: {fps} frames per second: a .gif plays at most 50")
    palette, pixels = _palette(frames)
    count, height, width = pixels.shape
    times = np.rint(np.arange(count + 1) * 100 / fps).astype(int)  # in hundredths of a second
    with open(path, "wb") as file:
        file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + palette.tobytes())
        file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")
        for frame, delay in zip(pixels, np.diff(times)):
            file.write(b"\x21\xf9\x04\x00" + struct.pack("<HBB", delay, 0, 0))
            file.write(b"\x2c" + struct.pack("<HHHHBB", 0, 0, width, height, 0, 8))
            data = _lzw(frame.tobytes())
            for at in range(0, len(data), 255):
                part = data[at : at + 255]
                file.write(bytes([len(part)]) + part)
            file.write(b"\x00")
        file.write(b"\x3b")
