"""Ours beside every other source at equal PSNR, paired by prompt: what is spent, and of the prompts that were timed how fast. Density stands for time,
since it is the same whatever else the machine does."""
from curve_table import AGAIN, BUDGET, CACHE, beside, dense_steps, difference
from statistics95 import ratio_interval

OURS = f"{BUDGET}:FILE"


def spent(fact, steps):
    """Density of the steps that need not be dense, of which a skipped one counts nothing."""
    sparse = steps - dense_steps(steps)
    return fact["density"] * (sparse - fact["steps_skipped"]) / sparse


def facts_of(ours, seed):
    """Every dial of ours for one prompt; videos that are the dense one have no PSNR."""
    return [fact for dial in ours for fact in dial["prompts"] if fact["seed"] == seed and fact["psnr"] is not None]


def clearly(ours, theirs):
    """Whether one of our dials as it is, nothing drawn between, spends no more and is as like."""
    return any(fact["spent"] <= theirs["spent"] and fact["psnr"] >= theirs["psnr"] for fact in facts_of(ours, theirs["seed"]))


def speeds(pairs):
    """{ours, theirs: means; ratio: of ours over theirs, with its interval} of [(ours, theirs)] by prompt."""
    mean = lambda values: ratio_interval(values)["mean"]
    return {"ours": mean([ours for ours, _ in pairs]), "theirs": mean([theirs for _, theirs in pairs]),
            "ratio": ratio_interval([ours / theirs for ours, theirs in pairs])}


def at_equal_psnr(ours, one):
    """{spent: the interval of ours minus theirs; below, above: prompts off our curve; clearly: prompts; speeds: of the prompts that were timed}"""
    known = [fact for fact in one["prompts"] if fact["psnr"] is not None and facts_of(ours, fact["seed"])]
    off = lambda beyond: sum(all(beyond(theirs["psnr"], fact["psnr"]) for fact in facts_of(ours, theirs["seed"])) for theirs in known)
    timed = lambda one: one | {"prompts": one["timed"]}
    pairs = [pair for pair in beside([timed(dial) for dial in ours], timed(one), "speed", "psnr") if pair[0] is not None]
    return {"baseline": one["label"], "prompts": len(known), "spent": difference(ours, one, "spent", over="psnr"), "below": off(lambda theirs, our: theirs < our),
            "above": off(lambda theirs, our: theirs > our), "clearly": sum(clearly(ours, fact) for fact in known), "speeds": speeds(pairs) if pairs else None}


def verdicts(sides, steps):
    """[(title, [beside ours])]: without the cache, and cached ones among themselves; sides as the page has them, with the facts of the prompts that were timed."""
    sides = [one | {"prompts": [fact | {"spent": spent(fact, steps)} for fact in one["prompts"]]} for one in sides]
    sources = [one for one in sides if not one["source"].startswith("--") and one["source"] != AGAIN]
    found = []
    for more in "", CACHE:
        ours = [one for one in sources if one["source"] == OURS + more]
        others = [one for one in sources if one["source"] != OURS + more and (CACHE in one["source"]) == bool(more)]
        found.append((OURS + more, [at_equal_psnr(ours, one) for one in others] if ours else []))
    return found
