"""`equitile plan`, `equitile inspect plan.json`, `equitile bench plan`: against the stored plans of db-SP, against figures worked
out here with numpy, and that what cannot be used is refused in one line."""
import csv
import json
import re

import numpy as np
import pytest

HEAD_DIM = 128
VARIANTS = {
    "v4r2": [],
    "v4r0": ["--reward", "0"],
    "v5": ["--dbsp-blocks", "swap"],
    "v4r2c": ["--dbsp-head-order", "weight"],
}
MASKS = ["busy_h24_b64", "chess_h16_b64", "half_h16_b64", "one_h24_b64", "swat_h40_b64", "text_h12_b64", "unif_h12_b64",
         "wan_h12_b128", "wan_h24_b128", "wan_h40_b128", "wan_h40_b64"]


def stored_plans(data, mask):
    """Lines of plans.tsv with their owners."""
    with open(data / "vectors/plans.tsv") as file:
        lines = [line for line in csv.DictReader(file, delimiter="\t") if line["mask"] == mask]
    arrays = np.load(data / f"vectors/{mask}.plans.npy")
    assert len(lines) == len(arrays)
    return list(zip(lines, arrays))


def plan(equitile, *args):
    outcome = equitile("plan", "--json", *args)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    return json.loads(outcome.out)


def save(path, mask, **description):
    np.save(path, mask)
    if description:
        path.with_suffix(".json").write_text(json.dumps(description))
    return path


def random_mask(heads, q, kv=None, density=0.4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.random((heads, q, kv or q)) < density * rng.random((heads, 1, 1)) * 2


def parts(total, count):
    """[total] which of `count` even parts an item is in."""
    bounds = [i * total // count for i in range(count + 1)]
    return np.repeat(np.arange(count), np.diff(bounds))


@pytest.mark.parametrize("mask_name", MASKS)
def test_stored_plans_are_reproduced(equitile, data, mask_name):
    mask = np.load(data / f"vectors/{mask_name}.mask.npy").astype(bool)
    heads, blocks, _ = mask.shape
    seen = 0
    stored = stored_plans(data, mask_name)
    for variant, flags in VARIANTS.items():
        wanted = [(line, owners) for line, owners in stored if line["variant"] == variant]
        by_ranks = {}
        for line, owners in wanted:
            by_ranks.setdefault(int(line["U"]) * int(line["R"]), []).append((line, owners))
        for ranks, group in by_ranks.items():
            layouts = [f"{kind}:{line['U']}x{line['R']}" for line, _ in group for kind in ("dbsp", "usp")]
            said = plan(equitile, "--mask", data / f"vectors/{mask_name}.mask.npy", "--for-ranks", ranks, "--planner",
                        ",".join(dict.fromkeys(layouts)), "--details", *flags)
            plans = {p["planner"]: p for p in said["plans"]}
            for line, owners in group:
                ours, static = plans[f"dbsp:{line['U']}x{line['R']}"], plans[f"usp:{line['U']}x{line['R']}"]
                assert ours["head_perm"] == owners[:heads].tolist()
                assert ours["q_owner"] == owners[heads:heads + blocks].tolist()
                assert ours["kv_owner"] == owners[heads + blocks:].tolist()
                total = int(line["total"])
                assert ours["rho"] == int(line["crit_after"]) * ranks / total
                assert ours["rho_paper"] == int(line["crit_paper_after"]) * ranks / total
                assert static["rho"] == int(line["crit_before"]) * ranks / total
                assert static["rho_paper"] == int(line["crit_paper_before"]) * ranks / total
                assert ours["moved_q_blocks"] == int(line["moved_q"])
                assert ours["moved_kv_blocks"] == int(line["moved_kv"])
                assert static["moved_q_blocks"] == 0 and static["moved_kv_blocks"] == 0
                assert sum(ours["work_per_rank"]) == mask.sum() == total
                seen += 1
    assert seen == len(stored)


def bytes_by_hand(mask, row_owner, ranks, needed_only):
    """Sent + received per rank for whole rows, block 64, batch 1: Q and O of a row's tokens, K and V of the columns."""
    heads, q_blocks, kv_blocks = mask.shape
    q_home, kv_home = parts(q_blocks, ranks), parts(kv_blocks, ranks)
    total = np.zeros(ranks, int)
    for head in range(heads):
        for rank in range(ranks):
            rows = np.flatnonzero(row_owner[head] == rank)
            foreign = q_home[rows[q_home[rows] != rank]]
            cost = 64 * (2 * HEAD_DIM * 4 + 4)
            total[rank] += cost * len(foreign)
            np.add.at(total, foreign, cost)
            if len(rows) == 0:
                continue
            columns = np.flatnonzero(mask[head, rows].any(axis=0)) if needed_only else np.arange(kv_blocks)
            foreign = kv_home[columns[kv_home[columns] != rank]]
            cost = 64 * 2 * HEAD_DIM * 4
            total[rank] += cost * len(foreign)
            np.add.at(total, foreign, cost)
    return total


@pytest.mark.parametrize("ranks", [1, 3, 7, 8])
def test_figures_agree_with_numpy(equitile, tmp_path, ranks):
    mask = random_mask(12, 29, seed=ranks)
    save(tmp_path / "m.npy", mask)
    said = plan(equitile, "--mask", "m.npy", "--for-ranks", ranks, "--planner", "ulysses,fractional", "--details")
    assert said["mask"]["kept_blocks"] == mask.sum() and said["ranks"] == ranks
    assert said["cost"] == {"block": 1, "row": 0}
    for p in said["plans"]:
        owner = np.array(p["row_owner"])
        assert owner.shape == (12, 29)
        work = np.bincount(owner.ravel(), weights=mask.sum(axis=2).ravel(), minlength=ranks)
        assert p["work_per_rank"] == work.tolist()
        assert p["rho"] == pytest.approx(work.max() * ranks / work.sum(), rel=1e-15)
        assert p["rho"] == p["rho_paper"] >= p["bound"] >= p["bound_any"] >= 1
        hand = bytes_by_hand(mask, owner, ranks, needed_only=p["planner"] == "fractional")
        assert p["bytes_max"] == hand.max() and p["bytes_mean"] == pytest.approx(hand.mean())
        assert p["predicted_seconds"] == pytest.approx(
            p["predicted_compute"] + p["predicted_exchange"] + p["predicted_wait"])
        if p["planner"] == "fractional":
            assert p["moved_q_blocks"] is None and p["moved_kv_blocks"] is None
            assert p["split_lanes"] == sum(len(set(lane)) > 1 for lane in owner.tolist())
        else:
            assert p["moved_q_blocks"] == 0


def test_all_planners_of_every_shape(equitile, tmp_path):
    save(tmp_path / "m.npy", random_mask(5, 13, 17))
    for ranks in (1, 6, 7, 16):
        plans = plan(equitile, "--mask", "m.npy", "--for-ranks", ranks, "--planner", "all")["plans"]
        degrees = [(u, ranks // u) for u in range(1, ranks + 1) if ranks % u == 0]
        expected = {"ulysses", "ring", "fractional", "auto", "dbsp:auto"} | {
            f"{kind}:{u}x{r}" for kind in ("usp", "dbsp", "dbsp+") for u, r in degrees}
        assert {p["planner"] for p in plans} == expected
        seconds = [p["predicted_seconds"] for p in plans]
        assert seconds == sorted(seconds)
        auto = next(p for p in plans if p["planner"] == "auto")
        assert auto["chosen"] in expected
        published = next(p for p in plans if p["planner"] == "dbsp:auto")
        least = min((p for p in plans if p["planner"].startswith("dbsp:") and p is not published), key=lambda p: p["paper_seconds"])
        assert published["chosen"].startswith("dbsp:") and published["paper_seconds"] == least["paper_seconds"]


@pytest.mark.parametrize("spec", ["wan,heads=12,blocks=64", "uniform,heads=3,blocks=1,density=0", "one-dense,heads=1,blocks=1",
                                  "headline,heads=7,blocks=33,batch=2"])
@pytest.mark.parametrize("ranks", [7, 8, 512])
def test_awkward_sizes(equitile, spec, ranks):
    planners = "ulysses,ring,fractional,auto,usp:1x%d,dbsp:%dx1,dbsp+:1x%d" % (ranks, ranks, ranks)
    for p in plan(equitile, "--synthetic", spec, "--for-ranks", ranks, "--planner", planners)["plans"]:
        assert p["rho"] >= p["bound"] * (1 - 1e-12)


def test_auto_keeps_rows_whole_unless_told_otherwise(equitile):
    args = ["--synthetic", "wan,heads=2,blocks=64", "--for-ranks", "8", "--planner", "auto"]
    kept = plan(equitile, *args)["plans"][0]["chosen"]
    assert kept in ("fractional", "ulysses", "usp:8x1", "dbsp:8x1", "dbsp+:8x1")
    plan(equitile, *args, "--no-reproducible")


def test_layers(equitile, tmp_path):
    np.save(tmp_path / "m.npy", np.stack([random_mask(4, 10, seed=s) for s in range(3)]))
    said = plan(equitile, "--mask", "m.npy", "--for-ranks", 4, "--planner", "ulysses,ring")
    assert [layer["layer"] for layer in said["layers"]] == [0, 1, 2]
    for summary in said["summary"]["plans"]:
        rhos = [p["rho"] for layer in said["layers"] for p in layer["plans"] if p["planner"] == summary["planner"]]
        assert summary["rho_max"] == max(rhos) and summary["rho_mean"] == pytest.approx(sum(rhos) / 3)
    one = plan(equitile, "--mask", "m.npy", "--for-ranks", 4, "--planner", "ulysses,ring", "--layer", 1)
    assert one["layer"] == 1 and one["plans"][0]["rho"] == said["layers"][1]["plans"][0]["rho"]
    equitile("plan", "--mask", "m.npy", "--for-ranks", 4, "--out", "p.json").must_be_refused("--layer")


def test_table_is_best_first_and_says_why(equitile):
    outcome = equitile("plan", "--synthetic", "wan,heads=12,blocks=64", "--for-ranks", 8)
    assert outcome.code == 0 and outcome.err == ""
    assert "fractional" in outcome.out and "100 GFLOP/s" in outcome.out and "100Gb/s,2us" in outcome.out
    assert "ms predicted" in outcome.out


def test_text_fits_a_terminal(equitile, tmp_path):
    outcome = equitile("plan", "--synthetic", "wan,heads=24,blocks=128", "--for-ranks", 8, "--planner", "all", "--node-size", 4)
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and max(map(len, lines)) <= 80, max(lines, key=len)
    table = [line for line in lines if re.match(r"\S.* \d+\.\d{4} ", line)]
    first = [line.split("  ")[0] for line in table]
    assert any(set(name.split(" = ")) >= {"ulysses", "usp:8x1"} for name in first), first  # the same plan
    assert any(set(name.split(" = ")) >= {"fractional", "auto"} for name in first), first
    heading = next(line for line in lines if line.startswith("planner"))
    assert heading.split()[:4] == ["planner", "rho", "bound", "speed-up"]
    ulysses = next(line for line in table if "ulysses" in line)
    assert "1.00" in ulysses.split() and "speed-up: of the predicted time, over ulysses" in outcome.out.replace("\n", " ")
    for of in ["uniform,heads=16,blocks=64,density=1"], ["wan,heads=24,blocks=128", "--link", "1Mb/s,20us"]:
        for ranks in 16, 64:
            out = equitile("plan", "--synthetic", *of, "--for-ranks", ranks, "--planner", "all").out
            assert max(map(len, out.splitlines())) <= 80, out
    assert " min" in out and re.search(r"takes [\d.]+ % longer", out.replace("\n", " ")), out
    many = ["plan", "--synthetic", "uniform,heads=16,blocks=64,density=1", "--for-ranks", 16, "--planner", "all"]
    assert re.search(r" = \d+ more ", equitile(*many).out) and not re.search(r" = \d+ more ", equitile(*many, "--wide").out)
    wide = equitile("plan", "--synthetic", "wan,heads=24,blocks=64", "--for-ranks", 8, "--wide").out
    for column in "moved q+kv:", "buffer MB:", "compute, exchange, wait:", "planning ms:":
        assert column in wide.replace("\n", " "), wide
    assert "buffer MB" in wide and "buffer MB" not in outcome.out


def test_the_summary_comes_before_the_layers(equitile, tmp_path):
    save(tmp_path / "m.npy", np.stack([random_mask(6, 9), random_mask(6, 9)]))
    out = equitile("plan", "--mask", "m.npy", "--for-ranks", 3, "--planner", "ring,fractional").out
    assert 0 < out.index("all layers together") < out.index("\nlayer 0\n") < out.index("\nlayer 1\n")
    assert "over ring" in out


def test_batch_and_block(equitile, tmp_path):
    save(tmp_path / "m.npy", random_mask(6, 9))
    said = plan(equitile, "--mask", "m.npy", "--for-ranks", 4, "--planner", "ring", "--batch", 2, "--block", 128)
    assert (said["mask"]["batch"], said["mask"]["block"], said["mask"]["q_tokens"]) == (2, 128, 9 * 128)
    # Both items have their own two ranks: nothing crosses, and what a rank sends is the other half of one item's K and V.
    assert said["plans"][0]["rho"] == pytest.approx(
        plan(equitile, "--mask", "m.npy", "--for-ranks", 2, "--planner", "ring", "--block", 128)["plans"][0]["rho"])


def test_machine_file_gives_costs_and_rates(equitile, tmp_path):
    save(tmp_path / "m.npy", random_mask(6, 9))
    machine = {"version": 1, "target": "avx2", "threads": 1, "peak_gflops": 80,
               "kernel": [{"head_dim": 128, "block": 64, "dtype": "f32", "gflops": 50, "row_seconds": 1e-6}],
               "links": [{"class": "network", "latency_seconds": 1e-5, "bytes_per_second": 1e9}]}
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    args = ["--mask", "m.npy", "--for-ranks", 3, "--planner", "ulysses"]
    said = plan(equitile, *args, "--machine", "machine.json")
    machine["kernel"].append({**machine["kernel"][0], "dtype": "int8", "gflops": 3 * machine["kernel"][0]["gflops"]})
    (tmp_path / "integers.json").write_text(json.dumps(machine))
    int8 = plan(equitile, *args, "--machine", "integers.json", "--compute", "int8")
    assert int8["cluster"]["gflops"] == 3 * said["cluster"]["gflops"]
    assert int8["cluster"]["q_bytes"] < 0.3 * said["cluster"]["q_bytes"] and int8["cluster"]["out_bytes"] < 0.6 * said["cluster"]["out_bytes"]
    assert said["cost"] == {"block": 41943040, "row": 1000000}
    assert said["cluster"]["link"]["bytes_per_second"] == 1e9
    assert plan(equitile, *args, "--machine", "machine.json", "--kernel-gflops", 100)["cost"]["block"] == 20971520


# --- Plan files ------------------------------------------------------------------------------------------------------------

@pytest.fixture
def plan_file(equitile, tmp_path):
    def make(planner, **description):
        save(tmp_path / "m.npy", random_mask(6, 11), **description)
        said = plan(equitile, "--mask", "m.npy", "--for-ranks", 4, "--planner", planner, "--out", "p.json")
        file = json.loads((tmp_path / "p.json").read_text())
        assert file["hash"] == said["plans"][0]["hash"]
        return file
    return make


PLANNERS = ["ulysses", "ring", "usp:2x2", "dbsp:2x2", "dbsp+:1x4", "fractional"]


@pytest.mark.parametrize("planner", PLANNERS)
def test_plan_file_is_believed(equitile, plan_file, planner):
    file = plan_file(planner)
    assert set(file) >= {"version", "hash", "mask_hash", "ranks", "grid", "batch", "homes", "orders", "planner", "row_owner",
                         "stages", "work_per_rank"}
    outcome = equitile("inspect", "p.json", "--mask", "m.npy")
    assert outcome.code == 0 and outcome.err == "" and planner in outcome.out, outcome.err
    assert json.loads(equitile("inspect", "p.json", "--mask", "m.npy", "--json").out)["ok"] is True


@pytest.mark.parametrize("planner", PLANNERS)
def test_an_edited_owner_is_noticed(equitile, plan_file, tmp_path, planner):
    file = plan_file(planner)
    kept = np.load(tmp_path / "m.npy").sum(axis=2)
    lane, row = np.argwhere(kept > 0)[0]
    before = file["row_owner"][lane][row]
    after = (before + 1) % 4
    file["row_owner"][lane][row] = after
    (tmp_path / "p.json").write_text(json.dumps(file))
    outcome = equitile("inspect", "p.json")
    assert outcome.code == 1 and "content does not match its hash" in outcome.err
    outcome = equitile("inspect", "p.json", "--mask", "m.npy")
    assert outcome.code == 1 and "content does not match its hash" in outcome.err
    assert f"work differs on ranks {min(before, after)}, {max(before, after)}" in outcome.err


def test_another_mask_is_noticed(equitile, plan_file, tmp_path):
    plan_file("fractional")
    other = np.load(tmp_path / "m.npy")
    other[0, 0, 0] ^= True
    save(tmp_path / "other.npy", other)
    outcome = equitile("inspect", "p.json", "--mask", "other.npy")
    assert outcome.code == 1 and "another mask" in outcome.err


def test_orders_and_batch_go_through_a_file(equitile, plan_file):
    plan_file("fractional", batch=2, heads=3, grid=[11, 8, 8], orders=["fhw", "hwf", "whf", "fhw", "hwf", "whf"])
    outcome = equitile("inspect", "p.json", "--mask", "m.npy")
    assert outcome.code == 0 and "4 of 6 lanes" in outcome.out, outcome.err


# --- What cannot be used ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("args, mentions", [
    (["--for-ranks", "0"], ["--for-ranks 0"]),
    (["--for-ranks", "-3"], ["-3"]),
    (["--for-ranks", "8", "--planner", "usp:3x2"], ["usp:3x2", "6", "8"]),
    (["--for-ranks", "8", "--planner", "usp"], ["usp"]),
    (["--for-ranks", "8", "--planner", "fastest"], ["fastest"]),
    (["--for-ranks", "8", "--planner", "ring:8"], ["ring:8"]),
    (["--for-ranks", "8", "--planner", "ring,"], ["unknown planner"]),
    (["--for-ranks", "8", "--link", "fast"], ["fast"]),
    (["--for-ranks", "8", "--link", "10Gb/s"], ["10Gb/s"]),
    (["--for-ranks", "8", "--speeds", "1,1"], ["2 speeds"]),
    (["--for-ranks", "2", "--speeds", "1,0"], ["0"]),
    (["--for-ranks", "8", "--kernel-gflops", "0"], ["gflops"]),
    (["--for-ranks", "8", "--reward", "-1"], ["-1"]),
    (["--for-ranks", "8", "--head-dim", "0"], ["0"]),
    (["--for-ranks", "8", "--block", "20"], ["20"]),
    (["--for-ranks", "8", "--layer", "1"], ["--layer 1"]),
    (["--for-ranks", "8", "--machine", "absent.json"], ["absent.json"]),
    (["--for-ranks", "8", "--node-link", "10Gb/s,1us"], ["--node-size"]),
    (["--for-ranks", "8", "--dbsp-blocks", "magic"], ["magic"]),
    ([], ["--for-ranks"]),
])
def test_flags_that_cannot_be_used(equitile, tmp_path, args, mentions):
    save(tmp_path / "m.npy", random_mask(3, 5))
    equitile("plan", "--mask", "m.npy", *args).must_be_refused(*mentions)


def test_masks_that_cannot_be_used(equitile, tmp_path):
    equitile("plan", "--for-ranks", "4").must_be_refused("--mask", "--synthetic")
    equitile("plan", "--mask", "absent.npy", "--for-ranks", "4").must_be_refused("absent.npy")
    np.save(tmp_path / "flat.npy", np.zeros((4, 4), bool))
    equitile("plan", "--mask", "flat.npy", "--for-ranks", "4").must_be_refused("flat.npy")
    equitile("plan", "--synthetic", "squares", "--for-ranks", "4").must_be_refused("squares")


def test_profiles_have_the_densities_of_the_file(equitile, tmp_path):
    densities = np.random.default_rng(3).random((4, 3, 5)).astype(np.float16)
    np.save(tmp_path / "d.npy", densities)
    spec = "profile,file=d.npy,step=2,blocks=64"
    said = plan(equitile, "--synthetic", spec, "--for-ranks", "2", "--planner", "ulysses,fractional")
    assert len(said["layers"]) == 3
    for layer, wanted in zip(said["layers"], densities[1]):
        assert layer["mask"]["density"] == pytest.approx(wanted.astype(float).mean(), abs=0.04)
    equitile("plan", "--synthetic", "profile,file=d.npy,step=5", "--for-ranks", "2").must_be_refused("step 5", "4 steps")
    equitile("plan", "--synthetic", "profile", "--for-ranks", "2").must_be_refused("file=FILE")
    equitile("plan", "--synthetic", "profile,file=absent.npy", "--for-ranks", "2").must_be_refused("absent.npy")


# As few heads as Wan2.1 1.3B has, dealt out whole, leave most of eight ranks idle.
def test_the_stored_profile_is_uneven(equitile, data):
    spec = f"profile,file={data.parent.parent}/models/profiles/wan21_1.3b.density.npy,step=25,blocks=64"
    said = plan(equitile, "--synthetic", spec, "--for-ranks", "8", "--planner", "ulysses,fractional")
    rho = {summary["planner"]: summary["rho_mean"] for summary in said["summary"]["plans"]}
    assert rho["ulysses"] > 2 and rho["fractional"] < 1.05


@pytest.mark.parametrize("text", ["{", "{}", '{"version": 2}', "[]", '{"version": 1, "row_owner": 3}', "nonsense"])
def test_files_that_are_no_plan(equitile, tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    equitile("inspect", "p.json").must_be_refused("p.json")


def test_bench_plan(equitile):
    outcome = equitile("bench", "plan", "--heads", "4,8", "--blocks", "32", "--ranks", "4", "--repeat", "1", "--json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)
    assert {(row["heads"], row["planner"]) for row in rows} == {
        (heads, planner) for heads in (4, 8) for planner in ("ulysses", "dbsp:2x2", "fractional")}
    assert all(row["plan_seconds"] > 0 for row in rows)


def test_reuse_walks_the_steps_of_a_profile(equitile, tmp_path):
    np.save(tmp_path / "p.npy", np.random.default_rng(4).random((3, 2, 5)).astype(np.float16))
    source = "profile,file=p.npy,blocks=16"
    outcome = equitile("bench", "reuse", "--json", "--synthetic", source, "--layer", 1, "--for-ranks", 2, "--planner", "ulysses")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    said = said[0] if isinstance(said, list) else said
    steps = [plan(equitile, "--synthetic", f"{source},step={step}", "--layer", 1, "--for-ranks", 2, "--planner", "ulysses") for step in (1, 2, 3)]
    seconds = [one.get("layers", [one])[0]["plans"][0]["predicted_seconds"] for one in steps]
    assert said["steps"] == 3 and len(set(seconds)) == 3 and said["attention_seconds"] == pytest.approx(sum(seconds), abs=2e-5)
    equitile("bench", "reuse", "--synthetic", source, "--layer", 2, "--for-ranks", 2).must_be_refused("--layer 2", "2 layers")
