"""What masks cost: prediction as a share of dense attention, and what observing adds to the one step that it watches."""
import statistics

import runs
import shape13

DENSE, SPARSE = 3, 4  # steps of a run; the first one warms up; masks of `predict` are made for as many steps
REPEAT = 2
MINI_VIDEOS = {False: (49, 256), True: (9, 128)}


def models(quick):
    frames, side = MINI_VIDEOS[quick]
    mini = ["-m", runs.MINI, "-p", "a big red circle bounces on a black background", "-s", 1, "--video-frames", frames, "-W", side, "-H", side]
    tokens = lambda frames, side: ((frames - 1) // 4 + 1) * (side // 16) ** 2
    large = shape13.VIDEOS[quick]
    return {f"1.3B shape, {tokens(large[0], large[1])} tokens": (shape13.flags(quick), shape13.WORK),
            f"wan-mini, {tokens(frames, side)} tokens": (mini, 1.0)}


def seconds(calls, key, step):
    """Per layer, of one step."""
    return {call["layer"]: call[key] for call in calls if call["step"] == step}


def prediction(program, flags):
    """mask and plan seconds of a predicted step over the attention seconds of a dense one: means over steps, since masks are made in one
    of them for all, and medians over layers."""
    run = program.generate(*flags, "--steps", DENSE + SPARSE, "--dense-steps", DENSE, "--attention", "predict")["run"]
    dense = statistics.median(value for step in range(2, DENSE + 1) for value in seconds(run["calls"], "attention_seconds", step).values())
    steps = range(DENSE + 1, DENSE + SPARSE + 1)
    of = lambda key: statistics.median(statistics.fmean(layer) for layer in zip(*(seconds(run["calls"], key, step).values() for step in steps)))
    sparse = [call["density"] for call in run["calls"] if call["step"] > DENSE]
    return {"masks": of("mask_seconds") / dense, "plans": of("plan_seconds") / dense, "attention": of("attention_seconds") / dense,
            "density": statistics.fmean(sparse)}


def observation(program, flags):
    """What masks take that are made once, over the attention and over the whole of a dense step."""
    run = program.generate(*flags, "--steps", DENSE + 2, "--dense-steps", DENSE + 1, "--attention", f"observe:at={DENSE + 1}")["run"]
    plain = statistics.median(sum(seconds(run["calls"], "attention_seconds", step).values()) for step in range(2, DENSE + 1))
    masks = sum(call["mask_seconds"] for call in run["calls"])
    return {"of_attention": masks / plain, "of_step": masks / statistics.median(run["step_seconds"][1:DENSE])}


def rows(program, quick):
    for name, (flags, work) in models(quick).items():
        for repeat in range(1 if quick else REPEAT):
            make = lambda flags=flags, name=name: {"model": name, "predict": prediction(program, flags), "observe": observation(program, flags)}
            yield runs.Row(f"{name}, run {repeat + 1}", work * (2 * DENSE + SPARSE + 2), make)


def data(made, quick):
    """Medians over runs, per model."""
    models = {}
    for row in made.values():
        models.setdefault(row["model"], []).append(row)
    middle = lambda group, part, key: statistics.median(row[part][key] for row in group)
    return {"models": [{"model": name, "runs": len(group),
                        **{f"predict_{key}": middle(group, "predict", key) for key in ("masks", "plans", "attention", "density")},
                        **{f"observe_{key}": middle(group, "observe", key) for key in ("of_attention", "of_step")}}
                       for name, group in models.items()]}
