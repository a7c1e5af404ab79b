"""A step on the simulated cluster, layout by layout: how much of what balance could gain is there. Masks that wan-mini's own
attention predicts, step by step, prediction and planning included; and masks with the head densities of Wan2.1 1.3B."""
import statistics
import typing

import runs

RANKS = {False: [4, 8], True: [2]}
BOUND = 0.95
MINI_VIDEOS = {False: (49, 256), True: (9, 96)}
DENSE = 1  # steps of a run of wan-mini


class Masks(typing.NamedTuple):
    """How wan-mini's masks are made. What is measured are whole cycles, from masks made anew to the next ones, after one that warms up."""
    attention: str
    refresh: int  # steps of a cycle
    cycles: int

    def steps(self):
        return DENSE + (1 + self.cycles) * self.refresh

    def measured(self):
        """Steps, counted from 1."""
        return range(DENSE + self.refresh + 1, self.steps() + 1)


MASKS = [Masks("predict", 4, 2), Masks("predict:refresh=1", 1, 5)]  # the default; the most that masks and plans can cost
PROFILE = runs.ROOT / "models/profiles/wan21_1.3b.density.npy"
PROFILE_LAYERS = {False: [0, 6, 12, 18, 24, 29], True: [0]}
PROFILE_BLOCKS = {False: 128, True: 16}
SIMULATED = runs.ROOT / "scripts/cluster-sim"


def layouts(program, ranks):
    """{name: planner}. Static layouts are dealt out without a look at the mask."""
    found = {"ulysses": "ulysses", "ring": "ring"}
    if ranks > 2:
        found[f"usp:{ranks // 2}x2"] = f"usp:{ranks // 2}x2"
    found |= {"dbsp:auto": "dbsp:auto"} if program.offers("plan", "dbsp:auto") else {"dbsp": f"dbsp:{ranks // 2}x2"}
    return found | {"fractional": "fractional", "auto": "auto"}


def simulated(ranks, compute="measured"):
    return {"launcher": [SIMULATED, ranks, "--compute", compute, "--"], "program": "equitile"}


def mini_step(program, quick, masks, ranks, planner):
    """What step_of says of a run of wan-mini."""
    frames, size = MINI_VIDEOS[quick]
    run = program.generate("-m", runs.MINI, "-p", "a big red circle bounces on a black background", "-s", 1, "--video-frames", frames,
                           "-W", size, "-H", size, "--steps", masks.steps(), "--dense-steps", DENSE, "--attention", masks.attention,
                           "--planner", planner, **simulated(ranks))["run"]
    return step_of(run, masks.measured())


def step_of(run, steps):
    """Means: seconds of a step and of its attention, ρ and density. Of the step a mean too, since steps that make masks count as often as
    they come."""
    calls = [call for call in run["calls"] if call["step"] in steps]
    return {"step": statistics.fmean(run["step_seconds"][step - 1] for step in steps),
            "attention": sum(call["attention_seconds"] for call in calls) / len(steps),
            "rho": statistics.fmean(call["rho_after"] for call in calls), "density": statistics.fmean(call["density"] for call in calls)}


def judge(one, ranks, found):
    """Ratios from seconds: `one` is one rank's step and attention, `found` every layout's step and ρ on `ranks`."""
    attention, rest = one["attention"] / ranks, (one["step"] - one["attention"]) / ranks
    auto = found["auto"]
    rows = []
    for name, layout in found.items():
        possible = (rest + attention * layout["rho"]) / (rest + attention * auto["rho"])
        rows.append({"layout": name, "rho": layout["rho"], "speedup": one["step"] / layout["step"], "gain": layout["step"] / auto["step"],
                     "possible": possible, "asked": BOUND * possible})
    return {"ranks": ranks, "rest": rest / (rest + attention), "attention": attention / (rest + attention), "layouts": rows}


def mini(program, quick, masks, ranks):
    one = mini_step(program, quick, masks, 1, "fractional")
    found = {name: mini_step(program, quick, masks, ranks, planner) for name, planner in layouts(program, ranks).items()}
    return {"masks": f"wan-mini, {masks.attention}", "density": one["density"], **judge(one, ranks, found)}


def profile_attention(program, quick, ranks, planners):
    """{planner: seconds and ρ, mean over layers} of attention alone."""
    sums = {}
    for layer in PROFILE_LAYERS[quick]:
        said = program.json("bench", "parallel", "--synthetic", f"profile,file={PROFILE},step=25,blocks={PROFILE_BLOCKS[quick]}",
                            "--layer", layer, "--head-dim", 128, "--planner", ",".join(planners), "--repeat", 3, **simulated(ranks))
        for planner, plan in zip(planners, said["plans"], strict=True):
            sums.setdefault(planner, []).append(plan)
    return {planner: {key: statistics.fmean(plan[key] for plan in plans) for key in ("seconds", "rho", "compute_mean")}
            for planner, plans in sums.items()}


def profile(program, quick, ranks):
    """The rest of a layer is that of 1.3B on one core; its tokens are dealt out evenly."""
    tokens = 64 * PROFILE_BLOCKS[quick]
    parts = program.json("bench", "e2e", "--shape", "wan-1.3b,layers=2", "--tokens", tokens, "--batch", 1, "-t", 1)
    rest = (parts["step_seconds"] - parts["attention_seconds"]) / 2
    alone = profile_attention(program, quick, 1, ["fractional"])["fractional"]["seconds"]
    names = layouts(program, ranks)
    found = profile_attention(program, quick, ranks, list(names.values()))
    steps = {name: {"step": rest / ranks + found[planner]["seconds"], "rho": found[planner]["rho"]} for name, planner in names.items()}
    return {"masks": "head densities of Wan2.1 1.3B, step 25", "density": None,
            **judge({"step": rest + alone, "attention": alone}, ranks, steps)}


def rows(program, quick):
    for ranks in RANKS[quick]:
        for masks in MASKS:
            yield runs.Row(f"wan-mini, {masks.attention}, {ranks} ranks", 13 * masks.steps(),
                           lambda masks=masks, ranks=ranks: mini(program, quick, masks, ranks))
        yield runs.Row(f"profile of 1.3B, {ranks} ranks", 150, lambda ranks=ranks: profile(program, quick, ranks))


def data(made, quick):
    return {"bound": BOUND, "runs": [{key: value for key, value in row.items() if key != "machine"} for row in made.values()]}
