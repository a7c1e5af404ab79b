"""Attention at a density, over dense attention: masks of that density from files, without and with means of what they leave out."""
import json
import pathlib
import statistics
import tempfile

import numpy

import runs
import shape13

DENSITIES = [0.1, 0.25, 0.5, 0.75]
SETTINGS = [(1.0, "none")] + [(density, tail) for density in DENSITIES for tail in ("none", "mean")]
ROUNDS = 3  # of all settings, in turns
MINI_VIDEOS = {False: (81, 256), True: (9, 128)}
BLOCK = 64


def shapes(quick):
    """{name: (flags, tokens, heads, work)}"""
    frames, side = MINI_VIDEOS[quick]
    mini = ["-m", runs.MINI, "-p", "star", "-s", 1, "--video-frames", frames, "-W", side, "-H", side, "--cfg-scale", 1]
    tokens = lambda frames, side: ((frames - 1) // 4 + 1) * (side // 16) ** 2
    large = shape13.VIDEOS[quick]
    return {"head_dim 128": (shape13.flags(quick), tokens(large[0], large[1]), 12, shape13.WORK),
            "head_dim 32": (mini, tokens(frames, side), 6, 1.2)}


def mask(heads, blocks, density, random):
    """Every row keeps the same number of blocks, somewhere."""
    kept = max(1, round(density * blocks))
    ranks = random.random((heads, blocks, blocks)).argsort(axis=-1).argsort(axis=-1)
    return ranks < kept


def write_masks(folder, tokens, heads):
    """One mask per step: a step to warm up, then the settings in turns. {step, counted from 1: setting}"""
    random, steps = numpy.random.default_rng(8), {}
    for step, (density, tail) in enumerate([SETTINGS[0]] + SETTINGS * ROUNDS):
        numpy.save(folder / f"{step:03}.npy", mask(heads, -(-tokens // BLOCK), density, random))
        (folder / f"{step:03}.json").write_text(json.dumps({"version": 1, "heads": heads, "block": BLOCK, "q_tokens": tokens,
                                                            "kv_tokens": tokens, "tails": tail, "step": step}))
        if step > 0:
            steps[step + 1] = (density, tail)
    return steps


def measure(program, flags, tokens, heads):
    with tempfile.TemporaryDirectory() as folder:
        steps = write_masks(pathlib.Path(folder), tokens, heads)
        calls = program.generate(*flags, "--steps", max(steps), "--attention", f"mask:{folder}")["run"]["calls"]
    of = lambda setting, key: [call[key] for call in calls if steps.get(call["step"]) == setting]
    dense = statistics.median(of(SETTINGS[0], "attention_seconds"))
    return {"tokens": tokens, "settings": [
        {"asked": density, "density": statistics.fmean(of((density, tail), "density")), "tail": tail,
         "time": statistics.median(of((density, tail), "attention_seconds")) / dense} for density, tail in SETTINGS[1:]]}


def rows(program, quick):
    for name, (flags, tokens, heads, work) in shapes(quick).items():
        make = lambda flags=flags, tokens=tokens, heads=heads: measure(program, flags, tokens, heads)
        yield runs.Row(name, work * (1 + 0.6 * len(SETTINGS) * ROUNDS), make)


def data(made, quick):
    return {"shapes": [{"shape": key, "tokens": row["tokens"], "settings": row["settings"]} for key, row in made.items()]}
