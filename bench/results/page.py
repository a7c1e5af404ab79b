"""docs/results/sparsity.md and sparsity.svg from the data of the tables; a table that is not there is left out. Perceptual figures come
from bench/peers/perceptual.py."""
import html
import json
import statistics

import equal_psnr
from curve_table import AGAIN, CACHE, FIXED, OURS, SEARCHES, SPEED_OF
from statistics95 import interval

COLOURS = {"predict": "#0b6e4f", "observe": "#08a045", "predict + cache": "#00798c", "observe + cache": "#3bb3c3", "dense + cache": "#6b4e9b",
           "--quality high": "#222222", "--quality balanced": "#222222", "--quality draft": "#222222", "sparge": "#d1495b", "svg": "#edae49", "sta": "#a06cd5",
           "pattern": "#1f5aa6", "predict:FILE": "#4f9d7a", "radial": "#8d6e63", "window:spatial": "#9aa5b1", "window:temporal": "#5c6b7a",
           "svg + cache": "#b07d1a", "sta + cache": "#7744aa", "radial + cache": "#5d4037", "pattern + cache": "#123b70",
           "pattern+predict:FILE": "#c2185b", "pattern+predict:FILE + cache": "#e57399", "paper:FILE": "#ff6f00", "paper:FILE + cache": "#b34e00",
           "relative:FILE": "#9e9d24", "relative:FILE + cache": "#66660f", "static:FILE": "#26a0da", "static:FILE + cache": "#15698f",
           "sta:FILE": "#ce93d8", "sta:FILE + cache": "#8e5a99"}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def number(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value, digits=2):
    return "–" if value is None else f"{100 * value:.{digits}f} %"


FEW = 6  # prompts: fewer give means, and neither intervals nor verdicts


def within(interval, digits):
    """A mean with its interval."""
    if interval is None:
        return "–"
    if interval["low"] is None or interval["count"] < FEW:
        return number(interval["mean"], digits)
    return f"{interval['mean']:.{digits}f} ({interval['low']:.{digits}f} to {interval['high']:.{digits}f})"


def verdict(holds):
    return "yes" if holds else "**no**"


def about(data, times=True):
    """Who made a table, in one line; the machine's peak where the table is times."""
    made = data["about"]
    peak = f", {made['threads']} threads, peak {made['peak_gflops']:.0f} GFLOP/s (measured beside each row; lowest {made['peak_lowest']:.0f})" if times else ""
    trial = " **Made with `--quick`: proves the path, says nothing.**" if made["quick"] else ""
    return f"*Weights `{made['fingerprint']}`, {made['target']}{peak}.*{trial}\n"


def cost_section(data):
    rows = [[one["model"], percent(one["predict_masks"]), percent(one["predict_plans"]), number(one["predict_density"], 2),
             number(one["predict_attention"], 3), percent(one["observe_of_attention"]), percent(one["observe_of_step"])] for one in data["models"]]
    return ("## What masks cost\n\n" + about(data) + "\nMasks and plans of `predict` per step (masks are made in one of four), over the attention of a dense step, medians over layers and "
            f"{data['models'][0]['runs']} runs; masks that `observe` makes once, over the attention and over the whole of one dense step. "
            "Asked: masks and plans 1 % with the 1.3B shape, 3 % with wan-mini; `observe` 5 % of a step.\n\n" +
            table(["model", "masks", "plans", "density", "attention then", "observe / attention", "observe / step"], rows))


def search_section(data):
    rows = []
    for one in data["searches"]:
        times, asked = one["foretold"], f"{one['asked']} × {'dense passes' if one['asked_of'] == 'passes' else 'denoising'}"
        rows.append([one["model"], one["prompts"], one["steps"], number(one["denoising"], 2), number(one["passes"], 2), asked, verdict(one[one["asked_of"]] <= one["asked"]),
                     *((number(times["first"], 2), number(times["furthest"], 2), verdict(abs(times["furthest"] - 1) <= data["near"])) if times else ("–", "–", ""))])
    return ("## What a search costs\n\n" + about(data) + "\nSeconds of `equitile search`, its choice by videos and the weights of errors included, over those of dense denoising of the prompts that it is calibrated on, and over those of its dense passes "
            "(one over a quarter of the prompts, one over all; the second look, of half of them, goes on sparse and counts as cost alone). The 1.3B shape has random weights, no videos to choose by and one range of steps; with so few prompts and steps the whole steps that compare "
            f"candidates, three of each, weigh more than in a longer search. *Foretold*: the whole time by the first ETA after a minute, over what it was, and by the ETA that was furthest off from then on; asked within {percent(data['near'], 0)}.\n\n" +
            table(["model", "prompts", "steps", "over denoising", "over dense passes", "asked", "holds", "foretold", "furthest off", "holds"], rows))


def density_section(data):
    text = ("## Attention at a density\n\n" + about(data) + "\nTime over that of dense attention, masks of blocks of 64 tokens, every row of one density; medians over layers and "
            "rounds of one run. Asked without means: density / 0.95 + 0.02.\n")
    for shape in data["shapes"]:
        none = {one["asked"]: one for one in shape["settings"] if one["tail"] == "none"}
        mean = {one["asked"]: one for one in shape["settings"] if one["tail"] == "mean"}
        asked = {key: one["density"] / 0.95 + 0.02 for key, one in none.items()}
        rows = [[number(one["density"], 3), number(one["time"], 3), number(asked[key], 3), verdict(one["time"] <= asked[key]),
                 number(mean[key]["time"], 3), number(mean[key]["time"] - one["time"], 3)] for key, one in none.items()]
        text += f"\n{shape['shape']}, {shape['tokens']} tokens:\n\n" + table(
            ["density", "time", "asked", "holds", "with means", "what means cost"], rows)
    return text


def title(video, prompts):
    return f"{video['frames']} frames of {video['width']}×{video['height']}, {video['steps']} steps, {len(prompts)} prompts"


def with_speed(data, speed):
    """A curve with the times of its quiet runs; of sides that were not timed there are none."""
    if data is None:
        return None
    timed = {one["label"]: one for one in speed["sides"]} if speed and speed["about"]["fingerprint"] == data["about"]["fingerprint"] else {}
    times = lambda one: {key: timed[one["label"]][key] if one["label"] in timed else None for key in ("speed", "attention", "masks")} | {
        "timed": timed[one["label"]]["prompts"] if one["label"] in timed else []}
    return data | {"sides": [one | times(one) for one in data["sides"]],
                   "speed": speed and {"about": speed["about"], "prompts": [len(one["prompts"]) for one in speed["sides"]], "share": speed["attention_share"],
                                      "again": [fact["speed"] for one in speed["sides"] if one["source"] == AGAIN for fact in one["prompts"]]}}


def same_machine(a, b):
    """As far as the tables say: processors of one kind and number of threads reach the same peak within a tenth."""
    peaks = a["peak_gflops"], b["peak_gflops"]
    return all(a[key] == b[key] for key in ("target", "threads")) and max(peaks) <= 1.1 * min(peaks)


def joined(curve, searched):
    """Both as one, where they are of the same weights and videos; times of another machine are left out."""
    if not curve or not searched:
        return curve or searched
    if any(curve["about"][key] != searched["about"][key] for key in ("fingerprint", "quick")) or curve["video"] != searched["video"]:
        return curve
    untimed = {"speed": None, "attention": None, "masks": None, "timed": []}
    speed = curve["speed"] or searched["speed"]
    if curve["speed"] and searched["speed"]:
        if same_machine(curve["speed"]["about"], searched["speed"]["about"]):
            speed = speed | {"prompts": curve["speed"]["prompts"] + searched["speed"]["prompts"]}
        else:
            searched = searched | {"sides": [one | untimed for one in searched["sides"]]}
    return curve | {"sides": curve["sides"] + searched["sides"], "speed": speed}


def searched_text(data):
    """What the names of searched sides mean, where there are any."""
    found = [search for search in SEARCHES if any(one["source"] == f"{search.objective}:FILE" for one in data["sides"])]
    if not found:
        return ""
    counts = ", ".join(f"`{name}` on {' or '.join(sorted({str(search.prompts) for search in found if search.objective == name}))}" for name in dict.fromkeys(search.objective for search in found))
    return (" `pattern+predict:FILE` takes that file, of the objective `budget`. Files of other objectives were searched for at this size, calibrated on prompts that are not held out "
            f"(how many: {counts}): `paper:FILE` and `relative:FILE` are `--attention pattern:FILE` of `equitile search --objective paper` or `relative`, `static:FILE` and `sta:FILE` their masks.")


def few_text(count):
    return "" if count >= FEW else f" **A first look at {count} prompts**: means alone; no interval and no verdict could be trusted."


def first_prompts(counts):
    """Of sides that were timed for so many."""
    fewest, most = min(counts), max(counts)
    return "the first prompt" if most == 1 else f"the first {most} prompts" if fewest == most else f"the first {fewest} to {most} prompts"


def speed_text(speed):
    if not speed:
        return ""
    share = speed["share"]
    again = f" Dense videos made a second time took {', '.join(f'{1 / one:.2f}' for one in speed['again'])} of the first: so much for the clock." if speed["again"] else ""
    return (f" Speed, end to end without loading, is of {first_prompts(speed['prompts'])}, made in turns, nothing else of ours running (lowest peak {speed['about']['peak_lowest']:.0f} GFLOP/s). Dense attention is "
            f"{percent(share, 0)} of a dense video's time: with attention that costs nothing ×{1 / (1 - share):.2f}, with the first fifth of the steps dense ×{1 / (1 - 0.8 * share):.2f}.{again}")


def curve_section(data, perceptual):
    same = perceptual and perceptual["fingerprint"] == data["about"]["fingerprint"]
    lpips = {one["label"]: one for one in perceptual["sides"]} if same else {}
    cell = lambda one, key, digits: within(lpips[one["label"]][key], digits) if one["label"] in lpips else "–"
    looked = (f" LPIPS (every {perceptual['every']}th frame) and VMAF are of the first {max(one['lpips_alex']['count'] for one in lpips.values())} prompts at most." if lpips else "")
    rows = [[f"`{one['label']}`", number(one["density"], 2), within(one["speed"], 2), number(one["attention"], 2),
             "identical" if one["psnr"] is None else within(one["psnr"], 1), within(one["ssim"], 3), cell(one, "lpips_alex", 3),
             cell(one, "lpips_vgg", 3), cell(one, "vmaf", 0), number(one["steps_skipped"], 1), len(one["prompts"])] for one in data["sides"]]
    return (f"## {title(data['video'], data['prompts'])}\n\n" + about(data, times=False) +
            f"\nBeside dense videos of the same seeds (seeds {data['prompts'][0]['seed']} to {data['prompts'][-1]['seed']} of the held-out prompts), frames before they are encoded; means with 95 % intervals.{few_text(len(data['prompts']))}{speed_text(data['speed'])} "
            "Density is that of steps that are not dense; *attention* its seconds over dense ones, of the whole run." + searched_text(data) + looked + "\n\n" +
            table(["", "density", "speed-up", "attention", "PSNR", "SSIM", "LPIPS (alex)", "LPIPS (vgg)", "VMAF", "steps skipped", "prompts"], rows))


def seen_section(data):
    """Nothing where no frames were judged."""
    judged = {one["label"]: {fact["seed"]: fact for fact in one["prompts"] if "seen" in fact} for one in data["sides"]}
    dense = {seed: fact["dense_seen"] for facts in judged.values() for seed, fact in facts.items()}
    mean = lambda scores, key: statistics.fmean(one[key] for one in scores)
    row = lambda name, shape, beside, scores: [name, within(shape, 3), beside, number(mean(scores, "colour"), 2), number(mean(scores, "motion"), 2), len(scores)]
    shapes = lambda scores: interval(one["shape"] for one in scores)
    rows = [row("dense", shapes(dense.values()), "", dense.values())] if dense else []
    for label, facts in judged.items():
        if facts:
            its = [fact["seen"] for fact in facts.values()]
            beside = interval(fact["seen"]["shape"] - fact["dense_seen"]["shape"] for fact in facts.values())
            rows.append(row(f"`{label}`", shapes(its), within(beside, 3), its))
    return rows and ("## What is seen in them\n\nHow much of the ideal shape is there (1: all of it; *beside dense*: the difference, paired by prompt), and the parts of the prompts whose colour and motion are right, as "
                     "[the small model's judge](../../models/wan-mini/training/judge.py) scores every sixth frame: means over the prompts of a single object, a substitute for VBench's image quality and subject consistency.\n\n" +
                     table(["", "shape", "beside dense", "colour", "motion", "prompts"], rows))


def difference_section(data):
    rows = []
    for one in data["differences"]:
        if one["psnr"] is None:
            rows.append([f"`{one['ours']}`", f"`{one['baseline']}`", number(one["density"], 2), "off the curve", "", ""])
            continue
        few = one["psnr"]["count"] < FEW
        worse = one["psnr"]["high"] is not None and (one["psnr"]["high"] < 0 or one["ssim"]["high"] < 0)
        rows.append([f"`{one['ours']}`", f"`{one['baseline']}`", number(one["density"], 2), within(one["psnr"], 2), within(one["ssim"], 4), "too few prompts" if few else verdict(not worse)])
    return rows and ("## At equal density\n\nOurs minus theirs, dB and SSIM, paired by prompt: our curve, straight between its dials, at the density of the baseline's video. *Holds*: not worse "
            "beyond the 95 % interval.\n\n" + table(["ours", "baseline", "density", "PSNR", "SSIM", "holds"], rows))


def faster(speeds):
    """Two speed-ups, marked where ours is the lower one; ours over theirs where the prompts are enough for an interval."""
    mark, ratio = "" if speeds["ours"] >= speeds["theirs"] else "**", speeds["ratio"]
    return f"{mark}{speeds['ours']:.2f} / {speeds['theirs']:.2f}{mark}" + (f": {within(ratio, 2)}" if ratio["count"] >= FEW else "")


def equal_psnr_section(data):
    """Nothing where ours was not made."""
    text, timed = "", 0
    for ours, found in equal_psnr.verdicts(data["sides"], data["video"]["steps"]):
        rows = []
        for one in found:
            few = one["spent"] is not None and one["spent"]["count"] < FEW
            holds = "" if one["spent"] is None else "too few prompts" if few else verdict(one["spent"]["low"] <= 0)
            off = ", ".join(f"{one[where]} {where}" for where in ("below", "above") if one[where])
            rows.append([f"`{one['baseline']}`", "off the curve" if one["spent"] is None else within(one["spent"], 3), off, holds, f"{one['clearly']} of {one['prompts']}",
                         faster(one["speeds"]) if one["speeds"] else "–"])
            timed = max(timed, one["speeds"]["ratio"]["count"] if one["speeds"] else 0)
        if rows:
            text += f"\n`{ours}` beside\n\n" + table(["", "density, ours minus theirs", "off the curve", "holds", "a dial of ours clearly better", "speed-up, ours / theirs"], rows)
    times = ("of the prompt that was timed, ours again at the PSNR of the other's video, bold where ours is slower: one prompt, no interval" if timed < 2 else
             f"of the prompts that were timed and are on the curve, {timed} at most: geometric means, ours again at the PSNR of the other's video, bold where ours is slower; behind them ours over theirs with its interval where {FEW} prompts or more count")
    return text and ("## At equal PSNR\n\nPaired by prompt: the density that ours needs, its curve straight between its dials, for the PSNR of the other's video, minus the other's density; means with 95 % intervals. "
                     "*Holds*: not denser beyond the interval. Density stands for time, since it is the same whatever else the machine does; a step that the cache skips counts as density 0. Prompts whose PSNR is below our last dial's or above our "
                     "first one's are off the curve and do not count; *clearly better*: of all prompts, those where one of our dials as it is has no less PSNR at no more density. "
                     f"Speed-ups are {times}.\n" + text)


def oracle_section(data):
    rows = [[f"`{one['attention']}`", number(one["density"], 3), number(one["mass_held"], 3), number(one["mass_held_p5"], 3), number(one["oracle_density"], 3),
             number(one["oracle"], 3), number(one["share"], 3), verdict(one["share"] >= data["asked"])] for one in data["sides"]]
    return ("## Mass that masks hold\n\n" + about(data) + f"\n{title(data['video'], data['prompts'])}. Measured on sampled rows of every layer and step; the fifth percentile is over heads. "
            "The oracle takes the heaviest blocks of a layer by the exact masses of the same step, as many in every layer as ours keep on average: ours keep more where attention is even, so the share may be above 1. "
            f"Asked: {data['asked']} of its mass.\n\n" + table(["", "density", "mass held", "5th percentile", "oracle's density", "its mass", "share", "holds"], rows))


def cluster_section(data):
    text = ("## On the simulated cluster\n\n" + about(data) + "\nA step, computing measured on one core, 100 Gb/s ([what that means](../simulator.md)). *Gain* is the step of a layout over that of `auto`; *possible* what "
            f"the two ρ alone would give, (rest + attention·ρ) / (rest + attention·ρ of auto); asked is {data['bound']} of it. With wan-mini prediction and planning are part of the "
            "step: means over whole cycles from one making of masks to the next, every four steps (`predict`) or in each (`refresh=1`). With the densities of Wan2.1 1.3B no whole step runs: attention of six of its 30 layers (8192 tokens, step 25) is timed layout by layout, without prediction and planning, and to its mean is added the rest of a layer of that shape, timed on one core and divided by the ranks. "
            "Which blocks a head keeps is drawn ([how](../../models/profiles/README.md)). Where a row misses what is asked, [0013](../design/0013-reuse.md#measured) tells where the time goes and what was tried.\n")
    for run in data["runs"]:
        rows = [[f"`{one['layout']}`", number(one["rho"], 3), number(one["speedup"], 2), number(one["gain"], 3), number(one["possible"], 3),
                 number(one["asked"], 3), "" if one["layout"] == "auto" else verdict(one["gain"] >= one["asked"])] for one in run["layouts"]]
        text += (f"\n{run['masks']}, {run['ranks']} ranks: attention {percent(run['attention'], 0)}, rest {percent(run['rest'], 0)} of an even step\n\n" +
                 table(["layout", "ρ", "speed-up over one rank", "gain", "possible", "asked", "holds"], rows))
    return text


class Panel:
    """A chart in the picture: PSNR over something."""

    def __init__(self, x0, name, low, high, bottom, top):
        self.x0, self.name, self.low, self.high, self.bottom, self.top = x0, name, low, high, bottom, top
        self.width, self.height, self.y0 = 420, 320, 60

    def x(self, value):
        return self.x0 + self.width * (value - self.low) / (self.high - self.low)

    def y(self, value):
        return self.y0 + self.height * (1 - (value - self.bottom) / (self.top - self.bottom))

    def axes(self, ticks):
        out = [f'<text x="{self.x0}" y="{self.y0 - 10}" class="t">PSNR (dB) over {html.escape(self.name)}</text>']
        for tick in range(int(self.bottom), int(self.top) + 1, 5):
            out.append(f'<line x1="{self.x0}" y1="{self.y(tick):.1f}" x2="{self.x0 + self.width}" y2="{self.y(tick):.1f}" class="g"/>'
                       f'<text x="{self.x0 - 6}" y="{self.y(tick) + 4:.1f}" class="a" text-anchor="end">{tick}</text>')
        for tick in ticks:
            out.append(f'<text x="{self.x(tick):.1f}" y="{self.y0 + self.height + 16}" class="a" text-anchor="middle">{tick:g}</text>')
        return "".join(out)

    def line(self, points, colour, strong):
        marks = "".join(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{4 if strong else 3}" fill="{colour}"/>' for x, y in points)
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{2.6 if strong else 1.4}"/>{marks}'


def chart(data):
    """Left: PSNR over speed-up; right: over density, without what skips steps."""
    shown = [one for one in data["sides"] if one["source"] in COLOURS and one["psnr"]]
    if not shown:
        return None
    psnrs, speeds = [one["psnr"]["mean"] for one in shown], [one["speed"]["mean"] for one in shown if one["speed"]] or [1.0]
    bottom, top = 5 * int(min(psnrs) // 5), 5 * int(max(psnrs) // 5 + 1)
    low, high = min(1.0, min(speeds)), max(speeds) + 0.1
    left, right = Panel(50, "speed-up", low, high, bottom, top), Panel(540, "density", 0, 1, bottom, top)
    step = 0.25 if high - low < 3 else 0.5
    out = [left.axes([step * i for i in range(int(low / step), int(high / step) + 1) if low <= step * i <= high]), right.axes([0, 0.25, 0.5, 0.75, 1])]
    for source, colour in COLOURS.items():
        ones = [one for one in shown if one["source"] == source]
        strong = source in [*OURS, equal_psnr.OURS]
        out.append(left.line([(one["speed"]["mean"], one["psnr"]["mean"]) for one in ones if one["speed"]], colour, strong))
        if CACHE not in source and "quality" not in source:
            out.append(right.line(sorted((one["density"], one["psnr"]["mean"]) for one in ones if one["density"] is not None), colour, strong))
    named = [source for source in COLOURS if any(one["source"] == source for one in shown)]
    for i, source in enumerate(named):
        x, y = 50 + (i % 5) * 188, 420 + (i // 5) * 20
        out.append(f'<rect x="{x}" y="{y}" width="16" height="5" fill="{COLOURS[source]}"/><text x="{x + 21}" y="{y + 7}" class="a">{html.escape(source)}</text>')
    style = "text{font-family:sans-serif;fill:#222}.t{font-size:13px}.a{font-size:10px;fill:#666}.g{stroke:#ddd}"
    height = 420 + 20 * -(-len(named) // 5)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 990 {height}" width="990" height="{height}"><style>{style}</style>'
            f'<rect width="990" height="{height}" fill="#fff"/>{"".join(out)}</svg>\n')


def write(out):
    """From out/data to out/sparsity.md and out/sparsity.svg."""
    read = lambda name: json.loads((out / f"data/sparsity-{name}.json").read_text()) if (out / f"data/sparsity-{name}.json").exists() else None
    cost, search, density, oracle, cluster = (read(name) for name in ("prediction-cost", "search-cost", "density", "oracle", "cluster"))
    curves = {name: with_speed(read(name), read(speed)) for name, speed in SPEED_OF.items()}
    curve, longer = joined(curves["curve"], curves["searched"]), curves["curve-81"]
    perceptual = read("perceptual") or {}
    page = ["# Sparse attention: speed and likeness\n",
            "Made by `scripts/remake-results`, a table each from one call; figures are ratios. `predict` and `observe` are ours ([by what rule](../design/0016-sources-of-masks.md)), `" + "`, `".join([*FIXED, "radial"]) + "` rules that others have "
            "published ([how they are built](../design/0015-patterns.md)). `FILE` is `models/wan-mini/pattern.json`, with its weights of errors ([found by search](../design/0017-search.md)); in how many heads one step, or one prompt, would have chosen its mode alone stands in its header (`step_agreement`, `prompt_agreement`). Likeness is to our own dense video: the same trajectory, not taste.\n"]
    picture = curve and chart(curve)
    if picture:
        (out / "sparsity.svg").write_text(picture)
        page.append("![PSNR over speed-up and over density](sparsity.svg)\n")
    if curve:
        page += [curve_section(curve, perceptual.get("curve")), *filter(None, (seen_section(curve), difference_section(curve), equal_psnr_section(curve)))]
    if longer:
        page.append(curve_section(longer, perceptual.get("curve-81")))
    if not any((cost, search, density, curve, longer, oracle, cluster)):
        page.append("No table has been made yet.\n")
    page += [section(data) for section, data in ((oracle_section, oracle), (cost_section, cost), (search_section, search), (density_section, density), (cluster_section, cluster)) if data]
    (out / "sparsity.md").write_text("\n".join(page))
