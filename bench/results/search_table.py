"""What `equitile search` costs, in dense denoising of its prompts and in the dense passes over them that it runs, and how well it foretells its
own time. wan-mini as anyone would search it; and the shape of Wan2.1 1.3B with so few prompts and steps that it ends, and no videos to choose by,
which a random model has no use for: whole steps that compare candidates and weigh layers, about as many in any search, count more there."""
import pathlib
import re
import tempfile
import typing

import runs
import shape13
from searches import CALIBRATION

MINUTE = 60  # after it the time left is asked to be about right
NEAR = 0.2  # of the whole time
MINI_VIDEOS = {False: (49, 256, 20), True: (9, 64, 5)}  # frames, side of a frame, steps
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


class Searched(typing.NamedTuple):
    flags: list
    prompts: int
    steps: int
    asked: float  # at most,
    of_passes: bool  # in dense passes; else in dense denoising of the prompts
    work: float  # of a dense step, in those of wan-mini

    def dense_passes(self):
        """Over the prompts: where keys get their attention, of a quarter of them, and the first look. The second look goes on sparse."""
        return (-(-self.prompts // 4) + self.prompts) / self.prompts


def models(quick):
    frames, side, steps = MINI_VIDEOS[quick]
    large_frames, width, height = shape13.VIDEOS[quick]
    mini = ["-m", runs.MINI, "--video-frames", frames, "-W", side, "-H", side]
    tokens = lambda frames, width, height: ((frames - 1) // 4 + 1) * (width // 16) * (height // 16)
    return {f"1.3B shape, {tokens(large_frames, width, height)} tokens": Searched(
                [*shape13.video(quick), "--choice-videos", 0, "--step-ranges", 1], 2, 5, 2, True, shape13.WORK),
            f"wan-mini, {tokens(frames, side, side)} tokens": Searched(mini, 2 if quick else 8, steps, 5, False, 1)}


def seconds_in(text):
    """Of "1 min 20 s", as progress has it."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (s|min|h|d)\b", text))


def foretold(lines, whole):
    """The whole time that lines after the first minute foretell, over what it was: the first of them, and the furthest from it; None without any."""
    found = [(at + seconds_in(line.split("  ETA ")[1])) / whole for at, line in lines if at >= MINUTE and "  ETA " in line]
    return {"first": found[0], "furthest": max(found, key=lambda one: abs(one - 1))} if found else None


def measure(program, one):
    with tempfile.TemporaryDirectory() as folder:
        said, lines, whole = program.watched("search", *one.flags, "--steps", one.steps, "--prompts", CALIBRATION, "--count", one.prompts,
                                             "-o", pathlib.Path(folder) / "pattern.json")
    return {"denoising": said["seconds"] / said["dense_seconds"], "foretold": foretold(lines, whole)}


def rows(program, quick):
    for name, one in models(quick).items():
        yield runs.Row(name, 4 * one.prompts * one.steps * one.work, lambda one=one: measure(program, one))


def data(made, quick):
    found = [(name, one, made[name]) for name, one in models(quick).items() if name in made]
    return {"near": NEAR, "searches": [
        {"model": name, "prompts": one.prompts, "steps": one.steps, "denoising": row["denoising"], "passes": row["denoising"] / one.dense_passes(),
         "asked": one.asked, "asked_of": "passes" if one.of_passes else "denoising", "foretold": row["foretold"]} for name, one, row in found]}
