"""`equitile inspect pattern.json`: what it says about a pattern file, its pictures, and that bad ones are refused in one line."""
import json
import struct

import pytest


def head(mode="full", density=1.0, error=0.0, **more):
    return {"mode": mode, **more, "density": density, "error": error}


def pattern(**changes):
    layer = [head(), head("skip", 0.0, 0.2), head("diagonal", 0.3, 0.01, size=1.5, p=0.9),
             head("multi-diagonal", 0.25, 0.02, size=12, theta=0.95), head("stripes", 0.1, 0.03, columns=[[0, 4], [8, 9]]),
             head("mean", 0.0, 0.04)]
    return {"version": 1, "kind": "pattern", "model": "0123456789abcdef", "grid": [13, 16, 16], "text": {"before": 0, "after": 0},
            "block": 64, "home_order": "fhw", "layers": 3, "heads": 6, "calibration": {"prompts": ["a fox"], "seeds": [1, 2]},
            "objective": "relative", "dials": {"epsilon": 0.1}, "totals": {"density": 0.31, "predicted_speedup": 1.4},
            "measured": {"psnr": 31.5, "search_seconds": 4000}, "ranges": [{"sigma": [0.6, 1], "layers": [layer] * 3},
                                                   {"sigma": [0, 0.6], "layers": [layer[::-1]] * 3}], **changes}


def save(path, content):
    path.write_text(json.dumps(content))
    return path


def test_text_shows_every_head(equitile, tmp_path):
    outcome = equitile("inspect", save(tmp_path / "p.json", pattern()))
    assert outcome.code == 0 and outcome.err == "" and "\x1b" not in outcome.out
    assert outcome.out.count("F - D M S o") == 3 and outcome.out.count("o S M D - F") == 3
    for words in ["0123456789abcdef", "13 frames of 16 x 16", "relative: epsilon 0.1", "1 prompt, 2 seeds", "psnr 31.5, search 1 h 7 min",
                  "multi-diagonal", "sigma 1 to 0.6"]:
        assert words in outcome.out
    layer = equitile("inspect", "p.json", "--layer", "2")
    assert "1.5 frames" in layer.out and "12 places" in layer.out and "5 tokens in 2 stripes" in layer.out


def test_json_holds_everything(equitile, tmp_path):
    said = json.loads(equitile("inspect", save(tmp_path / "p.json", pattern()), "--json").out)
    assert (said["kind"], said["layers"], said["heads"], said["density"]) == ("pattern", 3, 6, 0.31)
    assert len(said["pattern"]) == 2 * 3 * 6
    assert {row["mode"]: row["heads"] for row in said["modes"]} == dict.fromkeys(
        ["full", "skip", "diagonal", "multi-diagonal", "stripes", "mean"], 3)
    assert said["pattern"][2] | {"sigma": ""} == {"sigma": "", "layer": 0, "head": 2, "mode": "diagonal", "size": "1.5 frames",
                                                  "density": 0.3, "error": 0.01, "p": 0.9, "theta": None}


def test_pictures(equitile, tmp_path):
    save(tmp_path / "p.json", pattern())
    outcome = equitile("inspect", tmp_path / "p.json", "--png", "p.png", "--html", "p.html")
    assert outcome.code == 0 and outcome.err == ""
    png = (tmp_path / "p.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG") and width > 2 * 6 * 20 and height > 4 * 20  # cells, numbers and a legend
    page = (tmp_path / "p.html").read_text()
    assert page.count("<td ") == 2 * 3 * 6 and "http" not in page and "diagonal, 1.5 frames" in page
    assert "<h1>p.json</h1>" in page and "prefers-color-scheme: dark" in page and str(tmp_path) not in page


@pytest.mark.parametrize("changes, words", [
    ({"version": 3}, ["version", "reads versions 1 and 2"]),
    ({"version": 2}, ["error_weights", "missing"]),
    ({"heads": 7}, ["7 entries"]),
    ({"ranges": []}, ["sigma 0"]),
    ({"home_order": "zigzag"}, ["hilbert"]),
    ({"grid": [2, 1, 1]}, ["video tokens"]),
])
def test_bad_files_are_refused(equitile, tmp_path, changes, words):
    save(tmp_path / "p.json", pattern(**changes))
    equitile("inspect", "p.json").must_be_refused("p.json", *words)


def test_flags_of_other_kinds_are_refused(equitile, tmp_path, data):
    save(tmp_path / "p.json", pattern())
    equitile("inspect", "p.json", "--layer", "3").must_be_refused("--layer 3", "3 layers")
    equitile("inspect", "p.json", "--head", "1").must_be_refused("--head")
    equitile("inspect", data / "vectors/wan_h12_b128.mask.npy", "--html", "m.html").must_be_refused("--html")
    assert not (tmp_path / "m.html").exists()
