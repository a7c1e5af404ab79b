"""Speed and likeness of every source of masks at its dials, against dense videos of the same seeds: wan-mini, held-out prompts, frames
before they are encoded. Dense is made once per prompt; all others are made in turns with it (`equitile compare --prompts`). Sources that
are searched for first are a table of their own (`searched`).

Likeness (`curve`) is the same bits whatever else the machine does; speed (`speed`) is taken of fewer prompts, on a quiet one. Where
nothing else runs while the first prompts of the curve are made, their own times count (`--timed`). Likeness is also the same on other
machines and of other versions that make the same bits: `--go-on` makes the first prompt anew, and keeps the other prompts of every side
that came out the same.

Frames are judged where the videos are as long as a motion (`seen`), and gone then unless they are to be kept."""
import itertools
import json
import os
import pathlib
import statistics
import tempfile

import runs
import seen
from searches import Search
from statistics95 import at, interval, ratio_interval

HELD_OUT, TRIED_ON = runs.MINI / "held-out.txt", runs.MINI / "prompts.txt"  # seed<TAB>prompt; prompt
ROW = {"curve": 1, "searched": 1, "speed": 2}  # prompts of a row; where time counts, the sides come in another order for each
TOGETHER = 19  # sides of a row, with a dense video of their own close by; all in one process, which has memory for each

ERRORS = [0.001, 0.003, 0.006, 0.01, 0.02, 0.04]  # densities from above `radial`'s 0.75 (0.0015 stays below in some prompts) to 0.1, as tried on prompts that are not held out
DENSITIES = [0.5]  # what SpargeAttn ships; the others beside it
FIXED = ["sta", "sparge", "svg", "window:spatial", "window:temporal"]  # baselines with a dial for density
OURS = ["predict", "observe"]
WEIGHED = ["predict"]  # by a pattern file; with one that skips no head, as wan-mini's, pattern+predict is the same
CACHED = {"predict": "error=0.01", "observe": "error=0.01", "svg": "density=0.5", "sta": "density=0.5", "radial": "", "pattern": ""}
SEARCHES = [Search("paper", "mode-density=0.3", 1),  # with wan-mini no epsilon from 0.2 on changes what it finds: no head stays full
            Search("paper", "mode-density=0.5,lambda=0.1", 1),  # with the usual lambda of 0.5 larger modes lose to skipping the head
            Search("relative", "lambda=0.04", 2), Search("relative", "lambda=0.01", 2), Search("static", "density=0.5", 2), Search("sta", "density=0.5", 2)]
CACHE = " + cache"
BUDGET = "pattern+predict"  # by the file of the objective `budget`; all others stand beside it at equal PSNR
BUDGET_ERRORS = ERRORS[1:]  # none of what stands beside it is as dense as `radial`
PRESETS = ["high", "balanced", "draft"]
INTEGERS = ["--compute int16", "--compute attention=int8", "--compute int8", "--attention observe:error=0.01 --compute int16",
            "--attention observe:error=0.01 --compute int8", "--attention observe:error=0.02 --compute int8 --cache easy"]
AGAIN = "dense, again"
SAME = ("psnr", "ssim", "density")  # what a video that is made again has to the last digit
SIZES = {  # table: frames, side of a frame, steps, prompts; and to try it out
    "curve": {False: (49, 256, 20, 12), True: (17, 128, 5, 2)},
    "searched": {False: (49, 256, 20, 12), True: (17, 128, 5, 2)},
    "speed": {False: (49, 256, 20, 2), True: (17, 128, 5, 1)},
    "curve-81": {False: (81, 256, 20, 3), True: (21, 128, 5, 1)},
    "speed-81": {False: (81, 256, 20, 1), True: (21, 128, 5, 1)},
}
JUDGED = ["curve", "searched"]
SPEED_OF = {"curve": "speed", "searched": "speed-searched", "curve-81": "speed-81"}


def side(source, dial="", cache=False):
    """{source, label, flags}: the source names a line of the chart, the dial is what follows it, as in error=0.01."""
    attention = f"{source}{':' if dial else ''}{dial}"
    more = CACHE if cache else ""
    return {"source": source + more, "label": attention + more,
            "flags": ["--attention", attention, *(["--cache", "easy"] if cache else [])]}


def by_file(source, dial, cache, flags):
    """By a file that a search has found: the same, with FILE for its name."""
    named = side(f"{source}:FILE", dial, cache)
    return named | {"label": named["label"].replace("FILE:", "FILE,"), "flags": [*flags, *named["flags"][2:]]}


def weighed(source, dial, cache=False):
    """With the weights of errors of wan-mini's own file."""
    return by_file(source, dial, cache, ["--attention", f"{source}:{runs.MINI / 'pattern.json'},{dial}"])


def searched(search, cache):
    """By what is searched for when it is needed. Masks of a file are not dense at first unless told so."""
    return by_file(search.objective, search.dials, cache, ["--dense-steps", "20%"]) | {"search": search}


def preset(name):
    return {"source": f"--quality {name}", "label": f"--quality {name}", "flags": ["--quality", name]}


def plain(flags):
    return {"source": flags, "label": flags, "flags": flags.split()}


def sides(table):
    """Everything that stands beside dense."""
    found = [side("dense") | {"source": AGAIN, "label": AGAIN}] if table in SPEED_OF.values() else []
    if table in ("curve-81", "speed-81"):
        found += [side("dense", cache=True)] + [side(source, f"error={error}") for source in OURS for error in (0.006, 0.02)]
        return found + [side(source, "error=0.01", cache=True) for source in OURS]
    if table == "searched":
        first = {one.objective: one for one in reversed(SEARCHES)}.values()
        return [*(weighed(BUDGET, f"error={error}") for error in BUDGET_ERRORS), *(searched(one, False) for one in SEARCHES),
                *(weighed(BUDGET, f"error={error}", True) for error in BUDGET_ERRORS[1:4]), *(searched(one, True) for one in first)]
    found += [side(source, f"error={error}") for source in OURS for error in ERRORS]
    found += [side(source, f"density={density}") for source in FIXED for density in DENSITIES] + [side("radial")]
    found += [side("dense", cache=True)] + [preset(name) for name in PRESETS] + [plain(flags) for flags in INTEGERS]
    found += [side(source, dial, cache=True) for source, dial in CACHED.items()]
    return found + [side("pattern")] + [weighed(source, dial) for source in WEIGHED for dial in ("error=0.01", "error=0.02")]


def prompts(quick, count):
    """[(seed, prompt)], from the first on; held-out ones are for figures, not for tries."""
    if quick:
        return list(enumerate(TRIED_ON.read_text().splitlines()[:count], start=1))
    return [(int(seed), prompt) for seed, prompt in (line.split("\t") for line in HELD_OUT.read_text().splitlines()[:count])]


def dense_steps(steps):
    """Of `generate`: the first fifth."""
    return -(-steps // 5)


def density(summary, steps):
    """Mean over all layers of steps that may leave something out."""
    computed, dense = steps - summary["steps_skipped"], dense_steps(steps)
    return (summary["density"] * computed - dense) / (computed - dense)


def facts(prompt, steps):
    """What is kept of one video beside its dense one: figures and ratios."""
    a, b = prompt["sparsity_a"], prompt["sparsity_b"]
    return {"psnr": prompt["psnr_mean"], "ssim": prompt["ssim_mean"], "speed": prompt["speed"],
            "density": density(b, steps), "steps_skipped": b["steps_skipped"],
            "attention": b["attention_seconds"] / a["attention_seconds"], "masks": b["mask_seconds"] / a["attention_seconds"],
            "dense_attention_share": a["attention_seconds"] / prompt["seconds_a"]}


def folder_of(frames, number, ways, task):
    """Where `compare --save-frames` leaves a video of a side, counted from 1 to `ways`, or of dense, 0."""
    name = "a" if number == 0 else "b" if ways == 1 else f"b{number}"
    return pathlib.Path(frames) / name / f"{task + 1:04}"


def scores(frames, some, ways):
    """What is seen in the videos of dense and of every side: [sides + 1][prompts]; None where nothing is judged."""
    see = lambda number, task, prompt: seen.scores(folder_of(frames, number, ways, task), prompt) if frames else None
    return [[see(number, task, prompt) for task, (_, prompt) in enumerate(some)] for number in range(ways + 1)]


def compare(program, table, quick, some, ways, frames_folder, at_once):
    """One row: some prompts, some sides; one of so many at a time."""
    frames, size, steps, _ = SIZES[table][quick]
    video = ["-m", str(runs.MINI), "--video-frames", frames, "-W", size, "-H", size, "--steps", steps]
    threads = ["-t", max(1, len(os.sched_getaffinity(0)) // at_once)] if at_once > 1 else []
    found = lambda one: one["search"].attention(program, video) if "search" in one else []
    flags = lambda one: " ".join(map(str, [*video, *threads, *one["flags"], *found(one)]))
    judged = table in JUDGED and seen.judging()
    with tempfile.TemporaryDirectory() as folder:
        frames_are = frames_folder or (pathlib.Path(folder) / "frames" if judged else None)
        keep = ["--save-frames", frames_are] if frames_are else []
        file = pathlib.Path(folder) / "prompts.txt"
        file.write_text("".join(f"{seed}\t{prompt}\n" for seed, prompt in some))
        said = program.json("compare", "--prompts", file, "--a", flags({"flags": []}), *keep,
                            *itertools.chain.from_iterable(("--b", flags(one)) for one in ways))
        dense, *others = scores(judged and frames_are, some, len(ways))
    if frames_folder:
        about = {"fingerprint": program.fingerprint(), "prompts": some, "sides": [one["label"] for one in ways]}
        (pathlib.Path(frames_folder) / "sides.json").write_text(json.dumps(about))
    all_of = lambda prompt, its, denses: facts(prompt, steps) | ({"seen": its, "dense_seen": denses} if denses else {})
    return {"prompts": some, "sides": {one["label"]: list(map(all_of, made["prompts"], its, dense))
                                       for one, made, its in zip(ways, said.get("comparisons", [said]), others, strict=True)}}


def rows(program, quick, table, frames_folder=None, at_once=1, known=None, up_to=None):
    """Those that are compared at equal density come first, for all prompts, or the first so many. Without what is known: {label: {seed: facts}}."""
    frames, _, steps, count = SIZES[table][quick]
    chosen, per_row, every = prompts(quick, count), ROW[table.removesuffix("-81")], sides(table)
    groups = [every[begin:begin + TOGETHER] for begin in range(0, len(every), TOGETHER)]
    for number, first in itertools.product(range(len(groups)), range(0, min(up_to or count, count), per_row)):
        some = chosen[first:first + per_row]
        group = [one for one in groups[number] if any(seed not in (known or {}).get(one["label"], {}) for seed, _ in some)]
        if not group:
            continue
        folder = frames_folder and pathlib.Path(frames_folder) / table / f"{first:02}-{number:02}"
        make = lambda some=some, group=group, folder=folder: compare(program, table, quick, some, group, folder, at_once)
        searching = sum(4 * one["search"].prompts for one in group if first == 0 and "search" in one and CACHE not in one["label"])  # dense videos
        work = (len(some) * (1 + 0.75 * len(group)) + searching) * (steps + 8) * (frames / 49) ** 1.5
        yield runs.Row(f"prompts {first + 1} to {first + len(some)} of {count}, {len(group)} sides from {group[0]['label']} to {group[-1]['label']}", work, make)


def by_seed(made):
    """{label: {seed: facts}} of rows."""
    found = {}
    for row in made.values():
        for label, facts in row["sides"].items():
            found.setdefault(label, {}).update({seed: fact for (seed, _), fact in zip(row["prompts"], facts, strict=True)})
    return found


def still_true(data, made):
    """What data of an earlier time says, {label: {seed: facts}}, of sides that came out the same where they were made again."""
    new = by_seed(made)
    old = {one["label"]: {fact["seed"]: fact for fact in one["prompts"]} for one in data["sides"]}
    again = lambda label: [(new[label][seed], fact) for seed, fact in old[label].items() if seed in new.get(label, {})]
    same = lambda label: all(now[key] == then[key] for now, then in again(label) for key in SAME) and again(label)
    changed = [label for label in old if again(label) and not same(label)]
    if changed:
        runs.say(f"made anew, since their first prompt came out otherwise: {', '.join(changed)}")
    return {label: {seed: fact for seed, fact in facts.items() if seed not in new[label]} for label, facts in old.items() if same(label)}


def summary(one, found):
    return {"label": one["label"], "source": one["source"],
            "psnr": interval(fact["psnr"] for fact in found if fact["psnr"] is not None), "ssim": interval(fact["ssim"] for fact in found),
            "speed": ratio_interval([fact["speed"] for fact in found]),
            **{key: statistics.fmean(fact[key] for fact in found) for key in ("density", "attention", "masks", "steps_skipped")},
            "prompts": found}


def beside(ours, baseline, key, over):
    """[(ours, theirs)] by prompt: our curve over something, straight between its dials, where the baseline is; None where that is off our curve."""
    pairs = []
    for theirs in baseline["prompts"]:
        points = [(fact[over], fact[key]) for dial in ours for fact in dial["prompts"] if fact["seed"] == theirs["seed"]]
        points = [point for point in points if None not in point]
        pairs.append((at(points, theirs[over]) if None not in (theirs[over], theirs[key]) else None, theirs[key]))
    return pairs


def difference(ours, baseline, key, over="density"):
    """Ours minus theirs, paired by prompt; those off our curve do not count."""
    return interval(here - theirs for here, theirs in beside(ours, baseline, key, over) if here is not None)


def differences(found):
    """Every baseline beside ours at its density, paired by prompt."""
    baselines = [one for one in found if one["source"] in [*FIXED, "radial"]]
    return [{"ours": source, "baseline": baseline["label"], "density": baseline["density"],
             **{key: difference([one for one in found if one["source"] == source], baseline, key) for key in ("psnr", "ssim")}}
            for source in OURS for baseline in baselines]


def data(made, quick, table, known=None):
    """Of the sides that were made or are known, each for the prompts that it has."""
    frames, size, steps, count = SIZES[table][quick]
    new, chosen = by_seed(made), prompts(quick, count)
    facts_of = lambda label: (known or {}).get(label, {}) | new.get(label, {})
    found = [(one, [facts_of(one["label"])[seed] | {"seed": seed} for seed, _ in chosen if seed in facts_of(one["label"])]) for one in sides(table)]
    found = [(one, facts) for one, facts in found if facts]
    used = {fact["seed"] for _, facts in found for fact in facts}
    summaries = [summary(one, facts) for one, facts in found]
    share = statistics.fmean(fact["dense_attention_share"] for _, facts in found for fact in facts)
    return {"video": {"frames": frames, "width": size, "height": size, "steps": steps},
            "prompts": [{"seed": seed, "prompt": prompt} for seed, prompt in chosen if seed in used],
            "attention_share": share, "sides": summaries, "differences": differences(summaries)}
