"""scripts/remake-results: what its tables compute from what was measured, rows that are made once, and the page; two tables for real,
with tiny videos."""
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench/results"))

import cluster_table  # noqa: E402
import cost_table  # noqa: E402
import curve_table  # noqa: E402
import density_table  # noqa: E402
import equal_psnr  # noqa: E402
import oracle_table  # noqa: E402
import page  # noqa: E402
import picture  # noqa: E402
import runs  # noqa: E402
import search_table  # noqa: E402
import searches  # noqa: E402
import seen  # noqa: E402
import statistics95  # noqa: E402

ABOUT = {"fingerprint": "0123456789abcdef", "quick": False, "target": "avx2", "threads": 2, "peak_gflops": 100.0, "peak_lowest": 99.0}


@pytest.fixture(scope="module")
def program():
    return runs.Program(os.environ["EQUITILE"])


def test_intervals():
    assert statistics95.interval([]) is None
    assert statistics95.interval([3.0]) == {"mean": 3.0, "low": None, "high": None, "count": 1}
    found = statistics95.interval([1.0, 2.0, 3.0])  # deviation 1: 4.30265 / sqrt(3) either side
    assert found["high"] - 2 == pytest.approx(2.484138, rel=1e-5) and found["high"] + found["low"] == pytest.approx(4)
    ratio = statistics95.ratio_interval([2.0, 0.5])
    assert ratio["mean"] == pytest.approx(1) and ratio["low"] * ratio["high"] == pytest.approx(1)


def test_lines_between_dials():
    points = [(0.9, 40.0), (0.5, 30.0), (0.2, 20.0)]
    assert statistics95.at(points, 0.7) == pytest.approx(35) and statistics95.at(points, 0.2) == 20
    assert statistics95.at(points, 0.1) is None and statistics95.at(points, 0.95) is None and statistics95.at([], 0.5) is None


def prompts(*facts):
    return {"prompts": [{"seed": seed, "psnr": psnr, "ssim": 0.9, "speed": 1.0, "density": density} for seed, (psnr, density) in enumerate(facts)]}


def test_differences_are_paired_at_the_density_of_the_baseline():
    ours = [prompts((40.0, 0.8), (30.0, 0.7)), prompts((30.0, 0.4), (20.0, 0.3))]
    assert curve_table.difference(ours, prompts((34.0, 0.6), (23.0, 0.5)), "psnr")["mean"] == pytest.approx(1.5)  # 35 - 34 and 25 - 23
    assert curve_table.difference(ours, prompts((34.0, 0.6), (99.0, 0.1)), "psnr") == {"mean": 1.0, "low": None, "high": None, "count": 1}
    assert curve_table.difference(ours, prompts((None, 1.0), (34.0, 0.9)), "psnr") is None


def dial(source, label, *facts):
    """A side as the page has it: (psnr, density, steps skipped) by prompt."""
    return {"source": source, "label": label, "timed": [], "prompts": [
        {"seed": seed, "psnr": psnr, "density": density, "steps_skipped": skipped, "speed": 1 / density} for seed, (psnr, density, skipped) in enumerate(facts)]}


def test_what_ours_spends_at_the_psnr_of_others():
    ours = [dial(equal_psnr.OURS, "a", (40.0, 0.6, 0), (30.0, 0.5, 0)), dial(equal_psnr.OURS, "b", (30.0, 0.2, 0), (20.0, 0.1, 0))]
    theirs = dial("svg", "svg", (35.0, 0.5, 0), (25.0, 0.6, 0))
    (_, found), (_, cached) = equal_psnr.verdicts([*ours, theirs, dial("--quality high", "high", (35.0, 0.1, 0))], 10)
    assert len(found) == 1 and not cached  # presets compute otherwise: their density is no time
    assert found[0]["spent"]["mean"] == pytest.approx(-0.2) and found[0]["spent"]["count"] == 2  # 0.4 - 0.5 and 0.3 - 0.6
    assert (found[0]["below"], found[0]["above"], found[0]["clearly"], found[0]["prompts"]) == (0, 0, 1, 2)  # 30 dB at 0.5 in the second
    off = equal_psnr.verdicts([*ours, dial("sta", "sta", (29.0, 0.2, 0), (31.0, 0.9, 0), (30.0, 0.5, 0))], 10)[0][1][0]
    assert off["spent"] is None and (off["below"], off["above"], off["clearly"], off["prompts"]) == (1, 1, 1, 2)  # ours has no third prompt


def test_skipped_steps_cost_nothing():
    # Ten steps, two of them dense; four of the other eight skipped.
    assert equal_psnr.spent({"density": 0.5, "steps_skipped": 4}, 10) == pytest.approx(0.25)
    cached = lambda source, *facts: dial(source + curve_table.CACHE, source, *facts)
    sides = [cached(equal_psnr.OURS, (40.0, 0.6, 4)), cached(equal_psnr.OURS, (30.0, 0.4, 4)), cached("svg", (35.0, 0.5, 0)), dial("svg", "svg", (35.0, 0.5, 0))]
    (_, plain), (_, found) = equal_psnr.verdicts(sides, 10)
    assert not plain and len(found) == 1 and found[0]["spent"]["mean"] == pytest.approx(0.25 - 0.5)


def test_speed_at_equal_psnr_is_of_videos_that_were_timed():
    timed = lambda one, *speeds: one | {"timed": [{"seed": seed, "psnr": one["prompts"][0]["psnr"], "speed": speed} for seed, speed in enumerate(speeds)]}
    ours = lambda *more: [timed(dial(equal_psnr.OURS, "a", (40.0, 0.6, 0)), 1.2, *more), timed(dial(equal_psnr.OURS, "b", (30.0, 0.2, 0)), 1.6, *more)]
    found = lambda ours, *speeds: equal_psnr.verdicts([*ours, timed(dial("svg", "svg", (35.0, 0.5, 0)), *speeds), dial("sta", "sta", (35.0, 0.5, 0))], 10)[0][1]
    one, untimed = found(ours(), 1.1)
    assert page.faster(one["speeds"]) == "1.40 / 1.10" and untimed["speeds"] is None
    assert page.faster(found(ours(), 1.7)[0]["speeds"]) == "**1.40 / 1.70**"
    # Of several prompts the geometric mean: sqrt(1.4 * 3.5) beside sqrt(1.1 * 4.4).
    assert page.faster(found(ours(3.5), 1.1, 4.4)[0]["speeds"]) == "2.21 / 2.20"
    assert page.faster(found(ours(*[1.4] * 5), *[1.0] * 6)[0]["speeds"]) == "1.40 / 1.00: 1.40 (1.40 to 1.40)"


def test_the_page_says_how_many_prompts_were_timed(tmp_path):
    (tmp_path / "data").mkdir()
    fact = lambda seed: {"seed": seed, "psnr": 30.0, "ssim": 0.9, "speed": 1.5 + seed / 100, "density": 0.5, "attention": 0.7, "masks": 0.0, "steps_skipped": 0, "dense_attention_share": 0.5}
    sides = curve_table.sides("curve")[:2]
    made = lambda *counts: {number: {"prompts": [(seed, "a") for seed in range(1000, 1000 + count)], "sides": {one["label"]: [fact(seed % 1000) for seed in range(count)]}}
                            for number, (one, count) in enumerate(zip(sides, counts))}
    data = lambda *counts: json.dumps({"about": ABOUT, **curve_table.data(made(*counts), False, "curve")})
    (tmp_path / "data/sparsity-curve.json").write_text(data(12, 12))
    for counts, says in ((1, 1), "of the first prompt, made"), ((12, 12), "of the first 12 prompts, made"), ((12, 2), "of the first 2 to 12 prompts, made"):
        (tmp_path / "data/sparsity-speed.json").write_text(data(*counts))
        page.write(tmp_path)
        text = (tmp_path / "sparsity.md").read_text()
        cell = next(line for line in text.splitlines() if line.startswith(f"| `{sides[0]['label']}` |")).split("|")[3].strip()
        assert says in text and cell == ("1.50" if counts[0] == 1 else "1.55 (1.53 to 1.58)"), cell


@pytest.mark.parametrize("density, holds", [(0.2, "**no**"), (0.38, "yes"), (0.42, "yes"), (0.6, "yes")])
def test_ours_holds_unless_it_is_denser_beyond_the_interval(density, holds):
    """At 35 dB ours needs 0.4, and so much more or less by prompt."""
    noise = [0.05 * (-1) ** seed for seed in range(12)]
    ours = [dial(equal_psnr.OURS, "a", *[(40.0, 0.6 + more, 0) for more in noise]), dial(equal_psnr.OURS, "b", *[(30.0, 0.2 + more, 0) for more in noise])]
    text = page.equal_psnr_section({"sides": [*ours, dial("svg", "svg", *[(35.0, density, 0)] * 12)], "video": {"steps": 20}})
    cells = [cell.strip() for cell in next(line for line in text.splitlines() if line.startswith("| `svg`")).split("|")]
    assert cells[4] == holds and cells[2].startswith(f"{0.4 - density:.3f} (")
    assert page.equal_psnr_section({"sides": [dial("svg", "svg", (35.0, density, 0))], "video": {"steps": 20}}) == ""


def test_captions_of_one_object_are_judged():
    asked = seen.asked("a orange ring moves left on a navy background")
    assert asked == {"color": "orange", "shape": "ring", "motion": "moves left", "bg": "navy"} and seen.asked("a small red star stays still on a gray background")
    for other in "a red star spins and a blue ring grows on a gray background", "a tiny red star spins on a gray background", "a yellow disc spinning, brown background":
        assert seen.asked(other) is None, other
    assert all(seen.asked(prompt) for _, prompt in curve_table.prompts(False, 12))


def test_what_is_seen_in_a_drawn_clip(tmp_path):
    """All that was drawn, by the judge's own eyes; and that it was another colour and motion than asked."""
    pytest.importorskip("PIL")
    spec = {"bg": "navy", "objects": [{"shape": "cross", "color": "green", "motion": "moves right", "r": 0.2, "a": 0.0, "x": 0.5, "y": 0.5, "speed": 1.0, "phase": 0.0}]}
    for number, frame in enumerate(seen.synth.render(spec, 49, 64, 64).transpose(1, 2, 3, 0)):
        picture.write_png(tmp_path / f"{number:05}.png", ((frame + 1) * 127.5).astype(np.uint8))
    found = seen.scores(tmp_path, "a big green cross moves right on a navy background")
    assert found["shape"] > 0.85 and found["colour"] == found["motion"] == 1
    other = seen.scores(tmp_path, "a big red circle moves left on a navy background")
    assert other["shape"] < found["shape"] - 0.1 and other["colour"] == other["motion"] == 0
    assert seen.scores(tmp_path, "a red star spins and a blue ring grows on a gray background") is None


class Comparing:
    """Writes frames as `equitile compare` does: an empty folder per video."""

    def __init__(self):
        self.frames = None

    def json(self, *words):
        sides, words = words.count("--b"), list(map(str, words))
        prompts = pathlib.Path(words[words.index("--prompts") + 1]).read_text().splitlines()
        self.frames = pathlib.Path(words[words.index("--save-frames") + 1]) if "--save-frames" in words else None
        for name in ["a", *(["b"] if sides == 1 else [f"b{number + 1}" for number in range(sides)])] if self.frames else []:
            for task in range(len(prompts)):
                (self.frames / name / f"{task + 1:04}").mkdir(parents=True)
        sparsity = {"attention_seconds": 1.0, "mask_seconds": 0.0, "density": 1.0, "steps_skipped": 0}
        made = {"prompts": [{"psnr_mean": 30.0, "ssim_mean": 0.9, "speed": 1.5, "seconds_a": 2.0, "sparsity_a": sparsity, "sparsity_b": sparsity}] * len(prompts)}
        return made if sides == 1 else {"comparisons": [made] * sides}

    def fingerprint(self):
        return ABOUT["fingerprint"]


@pytest.mark.parametrize("sides", [1, 3])
def test_frames_are_judged_and_gone(monkeypatch, tmp_path, sides):
    """Each side's own, beside those of dense; kept where they are asked for."""
    monkeypatch.setattr(seen, "judging", lambda: True)
    monkeypatch.setattr(seen, "scores", lambda folder, prompt: {"shape": folder.parent.name} if folder.is_dir() and prompt != "two" else None)
    program, ways = Comparing(), curve_table.sides("curve")[:sides]
    found = curve_table.compare(program, "curve", True, [(1, "one"), (2, "two")], ways, None, 1)
    assert not program.frames.exists() and len(found["sides"]) == sides
    for number, facts in enumerate(found["sides"].values(), start=1):
        assert facts[0]["seen"] == {"shape": "b" if sides == 1 else f"b{number}"} and facts[0]["dense_seen"] == {"shape": "a"}
        assert not {"seen", "dense_seen"} & set(facts[1])
    kept = curve_table.compare(program, "curve", True, [(1, "one")], ways, tmp_path / "kept", 1)
    assert kept["sides"][ways[0]["label"]][0]["seen"] and (tmp_path / "kept/a/0001").is_dir()
    curve_table.compare(program, "speed", True, [(1, "one")], ways, None, 1)
    assert program.frames is None  # writing pictures is no part of a time


def test_without_pillow_one_line_and_no_columns(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "judge", raising=False)
    seen.judging.cache_clear()
    program, ways = Comparing(), curve_table.sides("curve")[:2]
    found = [curve_table.compare(program, "curve", True, [(1, "a red star spins on a gray background")], ways, None, 1) for _ in range(2)]
    assert program.frames is None and not any("seen" in fact for one in found for facts in one["sides"].values() for fact in facts)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "python3-pil" in said and seen.identity() is None
    seen.judging.cache_clear()


def test_what_is_seen_stands_on_the_page(tmp_path):
    """Of prompts that were judged: none of a file of before, some of one that went on."""
    (tmp_path / "data").mkdir()
    fact = lambda seed, **more: {"seed": seed, "psnr": 30.0, "ssim": 0.9, "speed": 1.5, "density": 0.5, "attention": 0.7, "masks": 0.0, "steps_skipped": 0, "dense_attention_share": 0.5, **more}
    judged = lambda seed, shape, motion: fact(seed, seen={"shape": shape, "colour": 1.0, "motion": motion}, dense_seen={"shape": 0.8, "colour": 1.0, "motion": 1.0})
    first, second, third = curve_table.sides("curve")[:3]
    sides = {first["label"]: [judged(1000, 0.7, 0.0), judged(1001, 0.8, 1.0)], second["label"]: [judged(1000, 0.5, 1.0), fact(1001)], third["label"]: [fact(1000), fact(1001)]}
    put = lambda sides: (tmp_path / "data/sparsity-curve.json").write_text(json.dumps({"about": ABOUT, **curve_table.data({"x": {
        "prompts": [(1000, "a"), (1001, "b")], "sides": sides}}, False, "curve")}))
    text = lambda: (page.write(tmp_path), (tmp_path / "sparsity.md").read_text())[1].partition("## What is seen")[2].partition("\n## ")[0]
    put(sides)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text().splitlines() if line.startswith("|")][2:]
    assert cells == [["dense", "0.800", "", "1.00", "1.00", "2"], [f"`{first['label']}`", "0.750", "-0.050", "1.00", "0.50", "2"],
                     [f"`{second['label']}`", "0.500", "-0.300", "1.00", "1.00", "1"]] and text().count("substitute") == 1
    put({label: [{key: value for key, value in one.items() if "seen" not in key} for one in facts] for label, facts in sides.items()})
    assert text() == ""


def test_searches_are_made_once_per_program(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "KEPT", tmp_path)
    asked = []

    class Fake:
        path = tmp_path / "program"

        def run(self, *words):
            asked.append([str(word) for word in words])
            out = pathlib.Path(words[-1])
            assert not out.exists()
            if len(asked) == 1:
                out.with_suffix(".ckpt").write_text("half")
                raise KeyboardInterrupt
            out.write_text("found")

    Fake.path.write_text("1")
    search, video = searches.Search("paper", "epsilon=0.5,lambda=0.1", 1), ["-m", "model", "--video-frames", 49, "-W", 256, "-H", 256, "--steps", 20]
    with pytest.raises(KeyboardInterrupt):
        search.attention(Fake(), video)
    first = search.attention(Fake(), video)
    assert first == search.attention(Fake(), video) and len(asked) == 2 and "--objective paper --epsilon=0.5 --lambda=0.1" in " ".join(asked[1])
    kind, path = first[1].split(":")
    assert first[0] == "--attention" and kind == "pattern" and pathlib.Path(path).read_text() == "found" and not {*"=,"} & {*path.removeprefix(str(tmp_path))}
    others = [search.attention(Fake(), [*video[:-1], 10]), searches.Search("paper", "epsilon=0.3", 1).attention(Fake(), video), searches.Search("static", "density=0.5", 1).attention(Fake(), video)]
    Fake.path.write_text("2")
    assert len({str(flags) for flags in [first, *others, search.attention(Fake(), video)]}) == 5 and len(asked) == 6
    assert others[2][1].startswith("static:")


def test_times_of_another_machine_are_left_out():
    side = {"label": "x", "speed": 2.0, "attention": 0.5, "masks": 0.0, "timed": [1]}
    data = lambda timed, **rates: {"about": ABOUT, "video": {}, "sides": [side], "speed": {"about": {**ABOUT, **rates}, "prompts": [timed]}}
    for rates, same in ({}, True), ({"peak_gflops": 108.0}, True), ({"peak_gflops": 130.0}, False), ({"threads": 4}, False):
        both = page.joined(data(12), data(1, **rates))
        assert (both["sides"][1]["speed"] is not None) == same and both["speed"]["prompts"] == [12, 1][:1 + same], rates


def test_density_counts_layers_that_keep_everything():
    # Ten steps, two of them dense: eight at 0.5 make 0.6 over all.
    assert curve_table.density({"density": 0.6, "steps_skipped": 0}, 10) == pytest.approx(0.5)
    # Four of them skipped: (2 + 4 * 0.5) / 6.
    assert curve_table.density({"density": 4 / 6, "steps_skipped": 4}, 10) == pytest.approx(0.5)


def test_what_balance_could_gain():
    found = cluster_table.judge({"step": 10.0, "attention": 6.0}, 4, {"ring": {"step": 3.7, "rho": 1.5}, "auto": {"step": 2.6, "rho": 1.0}})
    assert found["rest"] == pytest.approx(0.4) and found["attention"] == pytest.approx(0.6)
    ring = found["layouts"][0]  # rest 1 and attention 1.5: 3.25 over 2.5
    assert ring["possible"] == pytest.approx(1.3) and ring["asked"] == pytest.approx(0.95 * 1.3) and ring["gain"] == pytest.approx(3.7 / 2.6)
    assert ring["speedup"] == pytest.approx(10 / 3.7)


def test_steps_that_make_masks_count_as_often_as_they_come():
    default = cluster_table.MASKS[0]
    assert default.attention == "predict" and default.steps() == 13 and list(default.measured()) == list(range(6, 14))
    calls = [{"step": step, "attention_seconds": seconds, "density": density, "rho_after": rho}
             for step in (1, 2, 3) for seconds, density, rho in ((2.0, 0.6, 1.1), (1.0, 0.2, 1.5))]
    found = cluster_table.step_of({"step_seconds": [99.0, 8.0, 4.0], "calls": calls}, range(2, 4))
    assert found["step"] == 6.0 and found["attention"] == 3.0 and found["density"] == pytest.approx(0.4)
    assert found["rho"] == pytest.approx(1.3)


def test_costs_are_shares_of_a_dense_step():
    def calls(step, attention, mask):
        return [{"step": step, "layer": layer, "attention_seconds": attention, "mask_seconds": mask, "plan_seconds": 0.0, "density": 0.5} for layer in (0, 1)]

    dense = [9.0, 3.0, 5.0]  # the first one warms up
    made = {"predict": [call for step in range(1, 8) for call in calls(step, *((dense[step - 1], 0.0) if step <= 3 else (2.0, 0.4 if step == 4 else 0.0)))],
            "observe:at=4": [call for step in range(1, 6) for call in calls(step, (dense + [4.0, 2.0])[step - 1], 0.4 if step == 5 else 0.0)]}

    class Fake:
        def generate(self, *flags):
            return {"run": {"calls": made[flags[-1]], "step_seconds": [30.0, 15.0, 17.0, 18.0, 40.0]}}

    assert cost_table.prediction(Fake(), [])["masks"] == pytest.approx(0.1 / 4) and cost_table.prediction(Fake(), [])["attention"] == pytest.approx(0.5)
    found = cost_table.observation(Fake(), [])
    assert found["of_attention"] == pytest.approx(0.8 / 8) and found["of_step"] == pytest.approx(0.8 / 16)


def test_a_search_is_counted_in_dense_passes_and_foretells_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(search_table.shape13, "checkpoint", lambda: "shape-1.3b")
    lines = [(30.0, "pass 1/3, prompt 1/8, step 2/20  ETA 1 h 40 min"), (61.0, "loading"), (70.0, "pass 1/3, prompt 2/8, step 5/20  ETA 1 min 50 s"), (100.0, "choosing by videos  ETA 50 s")]

    class Fake:
        def watched(self, *flags):
            return {"seconds": 30.0, "dense_seconds": 10.0}, lines if "--choice-videos" not in flags else lines[:1], 200.0

    made = {row.key: row.make() for row in search_table.rows(Fake(), False)}
    large, mini = search_table.data(made, False)["searches"]
    assert large["denoising"] == mini["denoising"] == 3 and large["passes"] == 3 / 1.5 and mini["passes"] == 3 / 1.25  # of 2 prompts 1, of 8 prompts 2
    assert large["foretold"] is None and mini["foretold"] == {"first": 0.9, "furthest": 0.75}
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sparsity-search-cost.json").write_text(json.dumps({"about": ABOUT, **search_table.data(made, False)}))
    page.write(tmp_path)
    row = lambda start: next(line for line in (tmp_path / "sparsity.md").read_text().splitlines() if line.startswith(start))
    assert row("| 1.3B shape, 8192 tokens").endswith("| 2 | 5 | 3.00 | 2.00 | 2 × dense passes | yes | – | – |  |")
    assert row("| wan-mini, 3328 tokens").endswith("| 8 | 20 | 3.00 | 2.40 | 5 × denoising | yes | 0.90 | 0.75 | **no** |")


def test_what_a_program_says_on_the_way(tmp_path):
    """More of an answer than a pipe holds, and lines as they come."""
    script = tmp_path / "program"
    script.write_text("#!/bin/sh\n[ $1 = bad ] && echo reason >&2 && exit 2\necho one >&2; printf '\"%0200000d\"' 0; sleep 0.2; echo two >&2\n")
    script.chmod(0o755)
    said, lines, seconds = runs.Program(script).watched("x")
    assert len(said) == 200000 and [line for _, line in lines] == ["one", "two"] and lines[1][0] - lines[0][0] > 0.1 and seconds >= lines[1][0]
    with pytest.raises(SystemExit, match="reason"):
        runs.Program(script).watched("bad")


@pytest.mark.parametrize("text, seconds", [("9.5 s", 9.5), ("1 min 50 s", 110), ("2 h", 7200), ("1 d 3 h", 97200)])
def test_durations(text, seconds):
    assert search_table.seconds_in(text) == seconds


def test_the_oracle_is_asked_for_our_density(monkeypatch):
    monkeypatch.setattr(oracle_table, "sides", lambda: ["predict:mass=0.8"])
    asked = []

    class Fake:
        def generate(self, *flags):
            asked.append(flags[flags.index("--attention") + 1])
            # One dense step of five, the others at 0.5: 0.6 over all.
            return {"run": {"sparsity": {"density": 0.6, "mass_held": 0.9 if asked[-1].startswith("oracle") else 0.72, "mass_held_p5": 0.5}}}

    made = {"x": oracle_table.measure(Fake(), True, 1, "star")}
    assert asked == ["predict:mass=0.8", "oracle:density=0.5000"]
    found = oracle_table.data(made, True)["sides"][0]
    assert found["share"] == pytest.approx(0.8) and found["density"] == pytest.approx(0.5) and found["oracle"] == pytest.approx(0.9)


class Machine:
    def machine(self):
        return {"target": "avx2", "threads": 2, "peak_gflops": 1.0}


def test_rows_are_made_once_and_forgotten_with_the_program(tmp_path):
    made = []

    def rows(*broken):
        def make(key):
            if key in broken:
                raise KeyboardInterrupt
            made.append(key)
            return {"value": key}
        return [runs.Row(key, 1.0, lambda key=key: make(key)) for key in ("a", "b", "c")]

    worker = runs.Worker(Machine(), tmp_path, 1.0)
    with pytest.raises(KeyboardInterrupt):
        worker.finish("t", rows("b"), {"program": "1"})
    assert made == ["a"] and list(worker.finished("t", rows(), {"program": "1"})) == ["a"]
    found = runs.Worker(Machine(), tmp_path, 1.0).finish("t", rows(), {"program": "1"})
    assert made == ["a", "b", "c"] and [row["value"] for row in found.values()] == ["a", "b", "c"]
    runs.Worker(Machine(), tmp_path, 1.0).finish("t", rows(), {"program": "2"})
    assert made == ["a", "b", "c", "a", "b", "c"]
    runs.Worker(Machine(), tmp_path, 1.0).finish("t", rows(), {"program": "3"}, at_once=2)
    assert sorted(made[6:]) == ["a", "b", "c"]


def test_figures_are_of_held_out_prompts():
    figures, tries = curve_table.prompts(False, 12), curve_table.prompts(True, 2)
    assert len(figures) == 12 and figures[0][0] == 1000 and not {prompt for _, prompt in figures} & {prompt for _, prompt in tries}


def test_every_side_has_a_name_of_its_own():
    for table in curve_table.SIZES:
        names = [one["label"] for one in curve_table.sides(table)]
        assert len(set(names)) == len(names)
    plain = {*curve_table.INTEGERS}  # not in the chart: they lie far above it
    both = curve_table.sides("curve") + curve_table.sides("searched")
    assert len({one["label"] for one in both}) == len(both) and {one["source"] for one in both} - plain == set(page.COLOURS)
    assert {one["source"] for one in curve_table.sides("speed")} - plain - set(page.COLOURS) == {curve_table.AGAIN}


def test_every_searched_source_is_there_with_and_without_the_cache():
    labels = {one["label"]: one["flags"] for one in curve_table.sides("searched")}
    cached = [label.removesuffix(curve_table.CACHE) for label in labels if curve_table.CACHE in label]
    sources = lambda some: {label.split(":")[0] for label in some}
    assert sources(cached) == sources(labels) == {"pattern+predict", "paper", "relative", "static", "sta"}
    assert all(labels[label + curve_table.CACHE] == [*labels[label], "--cache", "easy"] for label in cached)
    assert [label.split("error=")[1] for label in labels if label.startswith("pattern+predict")] == [
        "0.003", "0.006", "0.01", "0.02", "0.04", "0.006 + cache", "0.01 + cache", "0.02 + cache"]


def test_sides_compared_at_equal_density_share_a_dense_video():
    """They are the first group of a row, for all prompts."""
    every = curve_table.sides("curve")
    compared = [place for place, one in enumerate(every) if one["source"] in [*curve_table.OURS, *curve_table.FIXED, "radial"]]
    assert max(compared) < curve_table.TOGETHER
    assert len(every) <= 2 * curve_table.TOGETHER  # a third group would make every dense video once more


def test_the_page(tmp_path):
    """From data as the tables write it, one verdict of each kind."""
    (tmp_path / "data").mkdir()
    curve = {"video": {"frames": 49, "width": 256, "height": 256, "steps": 20}, "prompts": [{"seed": 1000, "prompt": "a"}], "attention_share": 0.5,
             "sides": [curve_table.summary(one, [{"psnr": 30.0 + i, "ssim": 0.9, "speed": 1.0 + i / 50, "density": 0.5, "attention": 0.7,
                                                  "masks": 0.0, "steps_skipped": 0}] * 2) for i, one in enumerate(curve_table.sides("curve"))]}
    curve["differences"] = [{"ours": "predict", "baseline": "radial", "density": 0.5, "psnr": {"mean": 1.0, "low": 0.5, "high": 1.5, "count": 12},
                             "ssim": {"mean": 0.0, "low": -0.1, "high": 0.1, "count": 12}},
                            {"ours": "predict", "baseline": "sta", "density": 0.5, "psnr": {"mean": -1.0, "low": -1.5, "high": -0.5, "count": 12},
                             "ssim": {"mean": 0.0, "low": -0.1, "high": 0.1, "count": 12}},
                            {"ours": "observe", "baseline": "sta", "density": 0.5, "psnr": {"mean": -1.0, "low": -1.5, "high": -0.5, "count": 2},
                             "ssim": {"mean": 0.0, "low": -0.1, "high": 0.1, "count": 2}}]
    cluster = cluster_table.data({"x": {"masks": "m", "density": 0.5, "machine": {}, **cluster_table.judge(
        {"step": 10.0, "attention": 6.0}, 4, {"ring": {"step": 3.0, "rho": 1.5}, "auto": {"step": 2.6, "rho": 1.0}})}}, False)
    density = {"shapes": [{"shape": "head_dim 32", "tokens": 64, "settings": [{"asked": 0.5, "density": 0.5, "tail": tail, "time": 0.6} for tail in ("none", "mean")]}]}
    perceptual = {"curve": {"fingerprint": ABOUT["fingerprint"], "every": 4, "sides": [
        {"label": "predict:error=0.01", "lpips_alex": {"mean": 0.1234, "low": None, "high": None, "count": 1}, "lpips_vgg": None, "vmaf": None}]}}
    speed = curve | {"sides": curve["sides"][:-1]}  # one side was not timed
    for name, data in ("curve", curve), ("speed", speed), ("cluster", cluster), ("density", density):
        (tmp_path / f"data/sparsity-{name}.json").write_text(json.dumps({"about": ABOUT, **data}))
    (tmp_path / "data/sparsity-perceptual.json").write_text(json.dumps(perceptual))
    page.write(tmp_path)
    text = (tmp_path / "sparsity.md").read_text()
    row = lambda start: next(line for line in text.splitlines() if line.startswith(start))
    assert ABOUT["fingerprint"] in text and "×2.00" in text and "0.123" in row("| `predict:error=0.01` ") and "quick" not in text
    assert row("| `predict` | `radial`").endswith("| yes |") and row("| `predict` | `sta`").endswith("| **no** |")
    assert row("| `observe` | `sta`").endswith("| -1.00 | 0.0000 | too few prompts |") and "A first look at 1 prompts" in text
    assert row("| `ring`").endswith("| **no** |") and "| 0.546 | **no** |" in row("| 0.500 | 0.600")
    assert row(f"| `{curve['sides'][-1]['label']}` ").split("|")[3].strip() == "–" and "the first 2 prompts, made in turns" in text
    svg = xml.etree.ElementTree.parse(tmp_path / "sparsity.svg")
    assert len(svg.findall(".//{*}polyline")) >= len(page.COLOURS)
    # Figures of other weights are not mixed in.
    (tmp_path / "data/sparsity-perceptual.json").write_text(json.dumps({"curve": perceptual["curve"] | {"fingerprint": "f"}}))
    page.write(tmp_path)
    assert "0.123" not in (tmp_path / "sparsity.md").read_text()


def test_searched_sides_stand_beside_the_curve(tmp_path):
    """In the same table and chart, unless they are of other weights."""
    (tmp_path / "data").mkdir()
    facts = lambda i: [{"seed": seed, "psnr": 30.0 + i, "ssim": 0.9, "speed": 1.5, "density": 0.5, "attention": 0.7, "masks": 0.0, "steps_skipped": 0} for seed in range(1000, 1012)]
    video = {"frames": 49, "width": 256, "height": 256, "steps": 20}
    data = lambda table: {"about": ABOUT, "video": video, "prompts": [{"seed": seed, "prompt": "a"} for seed in range(1000, 1012)], "attention_share": 0.5, "differences": [],
                          "sides": [curve_table.summary(one, facts(i % 9)) for i, one in enumerate(curve_table.sides(table))]}
    put = lambda name, what: (tmp_path / f"data/sparsity-{name}.json").write_text(json.dumps(what))
    for name in "curve", "searched":
        put(name, data(name))
    put("speed-searched", data("searched") | {"about": ABOUT | {"target": "avx512"}})
    lines = lambda: (page.write(tmp_path), (tmp_path / "sparsity.md").read_text().splitlines())[1]
    label = curve_table.sides("searched")[5]["label"]
    cells = lambda: [line.split("|")[3].strip() for line in lines() if line.startswith(f"| `{label}` |")][:1]
    assert label.startswith("paper:FILE") and cells() == ["1.50 (1.50 to 1.50)"] and "## At equal PSNR" in lines()
    assert "paper:FILE" in (tmp_path / "sparsity.svg").read_text()
    put("speed", data("curve"))  # on another machine: ratios that do not belong together
    assert cells() == ["–"]
    put("searched", data("searched") | {"about": ABOUT | {"fingerprint": "f"}})
    assert cells() == [] and "## At equal PSNR" not in lines() and "paper:FILE" not in (tmp_path / "sparsity.svg").read_text()
    (tmp_path / "data/sparsity-curve.json").unlink()
    assert cells() and "## At equal density" not in lines()


def test_a_curve_for_real(program, monkeypatch):
    chosen = [one for one in curve_table.sides("speed") if one["label"] in (curve_table.AGAIN, "predict:error=0.04", "sparge:density=0.5")]
    monkeypatch.setattr(curve_table, "sides", lambda table: chosen)
    monkeypatch.setattr(curve_table, "TOGETHER", 2)
    made = {row.key: row.make() for row in curve_table.rows(program, True, "curve")}
    data = curve_table.data(made, True, "curve")
    assert len(made) == 4 and len(data["prompts"]) == 2 and all(len(one["prompts"]) == 2 for one in data["sides"])
    again, predict, sparge = data["sides"]
    assert again["psnr"] is None and again["ssim"]["mean"] == 1 and again["density"] == pytest.approx(1)
    assert 5 < predict["psnr"]["mean"] < 60 and 0 < predict["density"] < 1 and predict["speed"]["count"] == 2
    assert 0.3 < sparge["density"] < 0.7 and 0 < data["attention_share"] < 1
    assert "seconds" not in json.dumps(data)
    # Going on: the first prompt is made again; of sides that came out the same the other one is kept.
    first = {row.key: row.make() for row in curve_table.rows(program, True, "curve", up_to=1)}
    data["sides"][2]["prompts"][0]["psnr"] += 1e-9
    known = curve_table.still_true(data, first)
    assert {label: list(facts) for label, facts in known.items()} == {again["label"]: [2], predict["label"]: [2]}
    left = [row for row in curve_table.rows(program, True, "curve", known=known) if row.key not in first]
    assert len(left) == 1 and "1 sides from sparge" in left[0].key
    whole = curve_table.data(first | {left[0].key: left[0].make()}, True, "curve", known)
    assert [one["psnr"] for one in whole["sides"][:2]] == [one["psnr"] for one in data["sides"][:2]] and len(whole["sides"][2]["prompts"]) == 2


def test_densities_for_real(program):
    flags, tokens, heads, _ = density_table.shapes(True)["head_dim 32"]
    found = density_table.measure(program, flags, tokens, heads)["settings"]
    assert len(found) == 8 and all(one["time"] > 0 for one in found)
    assert [one["density"] for one in found if one["tail"] == "none"] == [one["density"] for one in found if one["tail"] == "mean"]


def test_pictures_come_back(program, tmp_path):
    """As they were written, by whomever."""
    small = ["-m", runs.MINI, "-p", "star", "-W", 64, "-H", 32, "--video-frames", 5, "--steps", 2]
    for folder in "theirs", "ours":
        (tmp_path / folder).mkdir()
    program.run("generate", *small, "-o", tmp_path / "theirs/%05d.png")
    for path in (tmp_path / "theirs").iterdir():
        picture.write_png(tmp_path / "ours" / path.name, picture.read_png(path))
    assert program.json("compare", tmp_path / "theirs", tmp_path / "ours")["identical_frames"] == 5


def test_one_call_makes_all_pictures(tmp_path):
    """A row per video."""
    subprocess.run([ROOT / "scripts/remake-results", "--pictures", "--quick", "--out", tmp_path], check=True, capture_output=True)
    made = {path.name: picture.read_png(path) for path in tmp_path.iterdir()}
    assert {name: image.shape for name, image in made.items()} == {
        name: (16 * rows + picture.GAP * (rows - 1), 32 * 7 + 6 * picture.GAP, 3)
        for name, rows in (("star.png", 1), ("sparse.png", 2), ("presets.png", 4))}


def test_every_preset_has_a_row(program):
    said = re.search(r"--quality WORD [^:]*: (.*?) --config", " ".join(program.run("generate", "--help").split()))[1]
    assert picture.PRESETS == [part.split()[0] for part in said.split("; ")]


def test_pictures_are_of_the_commands_that_readme_gives():
    readme = (ROOT / "README.md").read_text()
    for name in "star.png", "sparse.png":
        for flags in picture.pictures()[name]:
            words = " ".join(f'"{word}"' if " " in str(word) else str(word) for word in flags)
            assert f"scripts/run generate {words} -o" in readme, words


@pytest.mark.parametrize("words, mentions", [(["tables"], "tables are"), (["--quick"], "--out"), (["curve", "--timed", "x"], "--timed"),
                                             (["curve", "--go-on", "--timed", "2"], "--timed 2"), (["curve", "--timed", "--at-once", "2"], "--at-once 2"),
                                             (["curve", "--up-to", "0"], "--up-to 0"), (["density", "--up-to", "2"], "--up-to 2")])
def test_refusals(words, mentions):
    done = subprocess.run([ROOT / "scripts/remake-results", *words], capture_output=True, text=True)
    assert done.returncode == 2 and mentions in done.stderr
