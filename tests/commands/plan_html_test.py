"""`equitile plan --html`: one page that needs no network, holds what the plans say, and is written whole or not at all."""
import base64
import json
import pathlib
import re

import numpy as np
import pytest


ROOT = pathlib.Path(__file__).resolve().parents[2]


def embedded(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))["layers"]


def shorts(text):
    return np.frombuffer(base64.b64decode(text), "<u2")


def mask_of(layer):
    shape = layer["mask"]
    lanes, rows, columns = shape["batch"] * shape["heads"], shape["q_blocks"], shape["kv_blocks"]
    bits = np.frombuffer(base64.b64decode(layer["bits"]), np.uint8).reshape(lanes, rows, -1)
    return np.unpackbits(bits, axis=2, bitorder="little")[:, :, :columns].astype(bool)


def make(equitile, tmp_path, mask, ranks, *args):
    np.save(tmp_path / "m.npy", mask)
    outcome = equitile("plan", "--mask", "m.npy", "--for-ranks", ranks, "--json", "--details", "--html", "r.html", *args)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    return json.loads(outcome.out), (tmp_path / "r.html").read_text()


def random_mask(*shape):
    return np.random.default_rng(7).random(shape) < 0.4


def test_page_is_self_contained_and_names_every_planner(equitile, tmp_path):
    said, page = make(equitile, tmp_path, random_mask(5, 13, 11), 6)
    assert not re.search(r"http|<link|\bsrc=|@import|url\(", page)
    assert page.rstrip().endswith("</html>")
    for plan in said["plans"]:
        assert f'"planner":"{plan["planner"]}"' in page


@pytest.mark.parametrize("shape, ranks", [((5, 13, 11), 6), ((3, 70, 67), 4), ((1, 1, 1), 3), ((2, 9, 8), 70)])
def test_page_holds_mask_owners_and_times(equitile, tmp_path, shape, ranks):
    mask = random_mask(*shape)
    said, page = make(equitile, tmp_path, mask, ranks)
    layer, = embedded(page)
    assert (mask_of(layer) == mask).all()
    for plan, shown in zip(said["plans"], layer["plans"], strict=True):
        owners = [shorts(shown["row_maps"][i]).tolist() for i in shown["map_of_lane"]]
        assert owners == plan["row_owner"]
        timeline = shown["timeline"]
        times = shorts(timeline["times"]).reshape(len(timeline["ranks"]), 3 * timeline["stages"] + 2).astype(int)
        assert len(timeline["ranks"]) == min(ranks, 64)
        assert (np.diff(times, axis=1) >= 0).all()
        if len(timeline["ranks"]) == ranks and plan["predicted_seconds"] > 0:
            # Compute and exchange of the picture are those of the table, up to rounding of every edge.
            steps = np.diff(times, axis=1, prepend=0)
            compute = steps[:, 2:-2:3].sum() / ranks / 65535
            exchange = (steps[:, 1:-2:3].sum() + steps[:, -1].sum()) / ranks / 65535
            rounding = 2 * (timeline["stages"] + 1) / 65535
            assert compute == pytest.approx(plan["predicted_compute"] / plan["predicted_seconds"], abs=rounding)
            assert exchange == pytest.approx(plan["predicted_exchange"] / plan["predicted_seconds"], abs=rounding)


def test_layers_are_in_one_page(equitile, tmp_path):
    mask = random_mask(3, 4, 6, 7)
    _, page = make(equitile, tmp_path, mask, 2, "--planner", "ulysses,ring")
    layers = embedded(page)
    assert [layer["layer"] for layer in layers] == [0, 1, 2]
    assert all((mask_of(layer) == one).all() for layer, one in zip(layers, mask))


def test_page_stays_small(equitile, tmp_path):
    outcome = equitile("plan", "--synthetic", "wan,heads=40,blocks=512", "--for-ranks", 8, "--html", "r.html")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "r.html").stat().st_size < 5_000_000


def test_a_large_mask_in_cells(equitile, tmp_path):
    np.save(tmp_path / "m.npy", random_mask(12, 1184, 1184))
    outcome = equitile("plan", "--mask", tmp_path / "m.npy", "--for-ranks", 8, "--planner", "all", "--html", "r.html")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "r.html").stat().st_size < 2_000_000
    page = (tmp_path / "r.html").read_text()
    layer, = embedded(page)
    assert layer["cell"] == 2 and layer["mask"]["source"] == "m.npy" and str(tmp_path) not in page
    cells = np.unpackbits(np.frombuffer(base64.b64decode(layer["bits"]), np.uint8).reshape(12, 592, -1), axis=2, bitorder="little")
    assert cells.mean() == pytest.approx(0.4, abs=0.05)  # as many are filled as blocks are kept


def test_a_profile_is_named_without_its_folder(equitile, tmp_path):
    profile = ROOT / "models/profiles/wan21_1.3b.density.npy"
    spec = f"profile,file={profile},blocks=16"
    outcome = equitile("plan", "--synthetic", spec, "--layer", 3, "--for-ranks", 2, "--html", "r.html")
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "r.html").read_text()
    assert embedded(page)[0]["mask"]["source"] == f"profile,file={profile.name},blocks=16" and str(ROOT) not in page


def test_a_name_cannot_end_the_script(equitile, tmp_path):
    np.save(tmp_path / "m.npy", random_mask(2, 3, 3))
    (tmp_path / "m.npy").rename(tmp_path / "<script><!--.npy")
    outcome = equitile("plan", "--mask", "<script><!--.npy", "--for-ranks", 2, "--html", "r.html")
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "r.html").read_text()
    assert "<script><!--" not in page and embedded(page)[0]["mask"]["source"] == "<script><!--.npy"


@pytest.mark.parametrize("path", ["absent/r.html", "folder", "m.npy/r.html"])
def test_a_page_that_cannot_be_written(equitile, tmp_path, path):
    np.save(tmp_path / "m.npy", random_mask(2, 3, 3))
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    equitile("plan", "--mask", "m.npy", "--for-ranks", 2, "--out", "p.json", "--html", path).must_be_refused(path)
    assert sorted(tmp_path.rglob("*")) == before  # not even the plan: refused before work
