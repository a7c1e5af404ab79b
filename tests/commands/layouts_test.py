"""Layouts that split rows, chosen while a video is made: what is recorded repeats it."""
import json

import pytest
from made_videos import sha256

RUN = ["-p", "a red circle", "-W", 96, "-H", 96, "--video-frames", 33, "--steps", 4, "--threads", 1]
SPARSE = ["--attention", "predict:mass=0.6,tail=none", "--dense-steps", 1]


def make(equitile, tmp_path, name, *args):
    outcome = equitile("generate", "--save-latents", f"{name}.st", "-o", f"{name}.mp4", "--perf-dump-path", f"{name}.perf", *args)
    assert outcome.code == 0, outcome.err
    sidecar = json.loads((tmp_path / f"{name}.mp4.json").read_text())
    calls = json.loads((tmp_path / f"{name}.perf").read_text())["calls"]
    return sha256(tmp_path / f"{name}.st"), sidecar["parameters"], calls


@pytest.mark.parametrize("planner", [["--planner", "dbsp:auto"], ["--no-reproducible"], ["--planner", "dbsp:3x1", "--wire", "bf16"]])
def test_from_repeats_the_layouts(equitile, tmp_path, planner):
    bits, parameters, calls = make(equitile, tmp_path, "a", *RUN, *SPARSE, "--ranks", 3, *planner)
    if "dbsp:auto" in planner:
        assert all(call["planner"].startswith("dbsp:") for call in calls)
    assert parameters["layouts"] and (parameters["rates"] is None) == (planner[-1] == "bf16")
    again, repeated, calls_again = make(equitile, tmp_path, "b", "--from", "a.mp4.json", "--threads", 1)
    assert again == bits
    assert repeated["layouts"] == parameters["layouts"] and repeated["rates"] == parameters["rates"]
    assert [call["planner"] for call in calls_again] == [call["planner"] for call in calls]
    # Another video has layouts of its own, recorded as such.
    _, other, _ = make(equitile, tmp_path, "c", "--from", "a.mp4.json", "--threads", 1, "-s", 7)
    assert other["layouts"].split()[0] != parameters["layouts"].split()[0]


def test_nothing_is_recorded_where_layouts_decide_no_bits(equitile, tmp_path):
    _, parameters, _ = make(equitile, tmp_path, "a", *RUN, *SPARSE, "--ranks", 2)
    assert parameters["layouts"] is None and parameters["rates"] is None

