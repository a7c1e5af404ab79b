"""`equitile bench parallel` and `bench machine`: what they say, that traces open, and what they refuse. How fast is not tested
here."""
import json

import pytest

TOP = ["ranks", "simulated", "platform", "threads", "target", "compute", "plans"]
KEYS = ["planner", "seconds", "compute_max", "compute_mean", "wait_mean", "exchange_exposed", "pack_seconds", "plan_seconds",
        "lower_seconds", "bytes_max", "rho", "predicted_seconds", "efficiency"]
SMALL = ["--synthetic", "wan,heads=4,blocks=8,density=0.5,block=32", "--head-dim", "16", "--repeat", "2", "-t", "1"]


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """A machine file by hand: two ranks of a slow kernel and a fast link."""
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    path.write_text(json.dumps({
        "version": 1, "target": "avx2", "threads": 1, "peak_gflops": 50,
        "kernel": [{"head_dim": 16, "block": 32, "dtype": "f32", "gflops": 20, "row_seconds": 1e-6}],
        "links": [{"class": "network", "latency_seconds": 1e-6, "bytes_per_second": 1e9}]}))
    return str(path)


def test_json_has_all_figures(equitile, machine):
    outcome = equitile("bench", "parallel", "--ranks", "4", "--planner", "ulysses,ring,usp:2x2,dbsp:2x2,fractional,auto",
                       "--machine", machine, *SMALL, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert list(said) == TOP and said["ranks"] == 4 and said["simulated"] is False and said["threads"] == 1
    assert [plan["planner"] for plan in said["plans"]] == ["ulysses", "ring", "usp:2x2", "dbsp:2x2", "fractional", "auto"]
    for plan in said["plans"]:
        assert list(plan) == KEYS
        assert 0 < plan["compute_mean"] <= plan["compute_max"] <= plan["seconds"]
        assert plan["efficiency"] == pytest.approx(plan["compute_mean"] / plan["seconds"])
        assert plan["rho"] >= 1 and plan["predicted_seconds"] > 0 and plan["bytes_max"] > 0
        assert plan["exchange_exposed"] >= 0 and plan["pack_seconds"] > 0


def test_bytes_are_the_plans(equitile, machine):
    mask = SMALL[:4]
    ran = json.loads(equitile("bench", "parallel", "--ranks", "4", "--planner", "fractional,dbsp:2x2", "--machine", machine,
                              *SMALL, "--json").out)
    planned = json.loads(equitile("plan", *mask, "--for-ranks", "4", "--planner", "fractional,dbsp:2x2", "--machine", machine,
                                  "--json").out)
    said = {plan["planner"]: plan["bytes_max"] for plan in planned["plans"]}
    for plan in ran["plans"]:
        assert plan["bytes_max"] == said[plan["planner"]]


@pytest.mark.parametrize("compute, part", [("int16", 0.7), ("int8", 0.6)])
def test_integers_move_fewer_bytes_as_planned(equitile, machine, compute, part):
    flags = ["--planner", "ulysses", "--machine", machine]
    said = {word: json.loads(equitile("bench", "parallel", "--ranks", "4", *flags, "--compute", word, *SMALL, "--json").out)
            for word in ("f32", compute)}
    moved = {word: each["plans"][0]["bytes_max"] for word, each in said.items()}
    assert said[compute]["compute"] == compute and moved[compute] < part * moved["f32"]
    planned = equitile("plan", *SMALL[:4], "--for-ranks", "4", *flags, "--compute", compute, "--json")
    assert json.loads(planned.out)["plans"][0]["bytes_max"] == moved[compute]
    assert f"no rates of attention in {compute}" in planned.err and planned.err.count("\n") == 1
    refused = equitile("bench", "parallel", "--ranks", "2", "--compute", compute, "--wire", "bf16", *SMALL)
    refused.must_be_refused("--wire bf16", compute)


@pytest.mark.parametrize("flags", [["--no-overlap"], ["--wire", "bf16"]])
def test_variants_run(equitile, machine, flags):
    outcome = equitile("bench", "parallel", "--ranks", "3", "--machine", machine, *SMALL, *flags)
    assert outcome.code == 0, outcome.err


def test_trace_has_all_ranks_and_nests(equitile, machine, tmp_path):
    path = tmp_path / "trace.json"
    outcome = equitile("bench", "parallel", "--ranks", "3", "--planner", "fractional,ring", "--machine", machine, *SMALL,
                       "--trace", str(path))
    assert outcome.code == 0, outcome.err
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert {"plan", "pack", "compute", "wait", "send", "receive"} <= {event["name"] for event in events}
    for rank in range(3):
        spans = sorted((e["ts"], -e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == rank)
        open_until = []
        for begin, minus_length in spans:
            assert begin >= 0 and minus_length <= 0
            end = begin - minus_length
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)
    transfers = {}
    for event in events:
        if event["ph"] in "be":
            transfers.setdefault(event["id"], {})[event["ph"]] = event
    for pair in transfers.values():
        assert 0 <= pair["b"]["ts"] <= pair["e"]["ts"] and pair["b"]["args"]["bytes"] > 0


def test_machine_file_is_read_by_plan(equitile, tmp_path):
    path = tmp_path / "machine.json"
    outcome = equitile("bench", "machine", "--ranks", "2", "-t", "1", "--head-dim", "16", "--block", "32", "--out", str(path),
                       "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said == json.loads(path.read_text())
    assert said["kernel"][0]["gflops"] > 0 and said["links"][0]["bytes_per_second"] > 0
    assert equitile("plan", *SMALL[:4], "--for-ranks", "2", "--machine", str(path)).code == 0


@pytest.mark.parametrize("flags, words", [
    (["--for-ranks", "3"], "--for-ranks"),
    (["--head-dim", "12"], "--head-dim 12"),
    (["--wire", "f16"], "--wire"),
    (["--trace", "/nowhere/trace.json"], "/nowhere"),
])
def test_what_cannot_be_used(equitile, flags, words):
    outcome = equitile("bench", "parallel", "--synthetic", "wan,heads=4,blocks=8", *flags)
    assert outcome.code == 2 and words in outcome.err
