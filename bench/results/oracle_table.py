"""How much of the attention masks really hold, beside the best masks of the same density: those that only exact masses of the same
step know. Runs of their own, since measuring takes time."""
import statistics

import runs
from curve_table import OURS, density, prompts

ASKED = 0.9  # of the oracle's mass
ASKED_AT = [0.95, 0.8, 0.6]  # masses: the rule that looks at mass is judged by it
SIZES = {False: (49, 256, 20, 1), True: (17, 128, 5, 1)}  # frames, side of a frame, steps, prompts


def sides():
    return [f"{source}:mass={mass}" for source in OURS for mass in ASKED_AT]


def held(program, quick, seed, prompt, attention):
    """{density, mass_held, mass_held_p5} of one run, over all layers of steps that are not dense."""
    frames, size, steps, _ = SIZES[quick]
    found = program.generate("-m", runs.MINI, "-p", prompt, "-s", seed, "--video-frames", frames, "-W", size, "-H", size, "--steps", steps,
                             "--attention", attention, "--measure-mass")["run"]["sparsity"]
    return {"density": density(found | {"steps_skipped": 0}, steps), "mass_held": found["mass_held"], "mass_held_p5": found["mass_held_p5"]}


def measure(program, quick, seed, prompt):
    """For one prompt: every side, and the oracle at its density."""
    found = {}
    for attention in sides():
        ours = held(program, quick, seed, prompt, attention)
        found[attention] = {"ours": ours, "oracle": held(program, quick, seed, prompt, f"oracle:density={ours['density']:.4f}")}
    return {"prompt": prompt, "seed": seed, "sides": found}


def rows(program, quick):
    _, _, steps, count = SIZES[quick]
    for seed, prompt in prompts(quick, count):
        yield runs.Row(f"seed {seed}", 1.8 * 2 * len(sides()) * steps, lambda seed=seed, prompt=prompt: measure(program, quick, seed, prompt))


def beside_oracle(found, attention):
    """Means over prompts."""
    mean = lambda whose, key: statistics.fmean(one[whose][key] for one in found)
    return {"attention": attention, **{key: mean("ours", key) for key in ("density", "mass_held", "mass_held_p5")},
            "oracle_density": mean("oracle", "density"), "oracle": mean("oracle", "mass_held"),
            "share": statistics.fmean(one["ours"]["mass_held"] / one["oracle"]["mass_held"] for one in found)}


def data(made, quick):
    frames, size, steps, _ = SIZES[quick]
    return {"video": {"frames": frames, "width": size, "height": size, "steps": steps}, "asked": ASKED,
            "prompts": [{"seed": row["seed"], "prompt": row["prompt"]} for row in made.values()],
            "sides": [beside_oracle([row["sides"][attention] for row in made.values()], attention) for attention in sides()]}
