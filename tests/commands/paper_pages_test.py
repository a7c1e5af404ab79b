"""bench/paper: what its pages compute from what the program says, and every page for real with tiny sizes."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAPER = ROOT / "bench/paper"
sys.dont_write_bytecode = True
sys.path.insert(0, str(PAPER))

import charts  # noqa: E402
import shapes  # noqa: E402
import tables  # noqa: E402


def script(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(PAPER / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_flops_of_a_layer():
    # Wan2.1 14B: 4 d^2 for self-attention, 2 d^2 for cross-attention, two matrices of the inner width.
    assert shapes.WAN_LARGE.linear == 6 * 5120 ** 2 + 2 * 5120 * 13824 and shapes.WAN_LARGE.blocks == 1182
    assert shapes.COGVIDEO.blocks == 705 and shapes.HUNYUAN.width == 3072
    assert 0.70 < shapes.WAN_LARGE.attention_share(1) < 0.73 and shapes.WAN_LARGE.attention_share(0) == 0


def test_the_papers_latency():
    terms = script("dbsp-terms")
    assert terms.paper_latency(8, 1, 0.5, 1.2) == pytest.approx(3.6 + (40 + 0.5) * 1.2)
    # A stage computes 80 / 8 * 0.1 + 0.5 = 1.5, less than the 2.3 of passing on.
    assert terms.paper_latency(1, 8, 0.1, 1.0) == pytest.approx(7 * 2.3 + 1.5)


def test_gains_are_over_the_static_layout():
    terms = script("dbsp-terms")
    plans = lambda layouts: {f"{kind}:{layout}": {"rho": rho, "seconds": seconds} for layout in layouts for kind, rho, seconds in (("usp", 1.5, 3.0), ("dbsp", 1.1, 2.0))} | {
        name: {"rho": 1.0, "seconds": 1.5} for name in ("dbsp:auto", "fractional", "auto")}
    found = terms.gains({"shape": "Wan2.1 14B", "ranks": {str(ranks): plans(layouts) for ranks, layouts in terms.LAYOUTS.items()}})
    assert [one["layout"] for one in found] == ["4x1", "2x2", "1x4", "8x1", "4x2", "2x4", "1x8"]
    assert found[0]["attention"]["dbsp, same layout"] == pytest.approx(1.5) and found[0]["attention"]["auto"] == pytest.approx(2)
    rest = shapes.WAN_LARGE.rest_flops() / (4 * 100e9)
    assert found[0]["step"]["auto"] == pytest.approx((rest + 3) / (rest + 1.5))
    # The published pair: attention 1.40 times as fast makes 1.25 of the whole.
    assert 1 / (1 - terms.PUBLISHED_SHARE + terms.PUBLISHED_SHARE / 1.40) == pytest.approx(1.25)


def test_sums_and_stages():
    """Rows and columns even, cells not: two ranks, all work on the diagonal."""
    terms = script("dbsp-terms")
    mask = np.eye(4, dtype=bool)[None]
    mask[0, 0, 0] = False
    mask[0, 0, 3] = True
    owner = np.array([0, 0, 1, 1])
    found = terms.marginals(mask, owner, owner, 2)
    # Cells: [[1, 1], [0, 2]]; stage 0 takes 2, stage 1 takes 1; two per rank would be even.
    assert found == {"rows": pytest.approx(1.0), "columns": pytest.approx(1.5), "stages": pytest.approx(1.5)}


def test_only_the_cheapest_heads_are_skipped():
    vdit = script("sparse-vdit")
    head = lambda error: {"mode": "skip", "density": 0.0, "error": error}
    pattern = {"ranges": [{"layers": [[head(0.3), head(0.1)], [head(0.2), head(0.9)]]}]}
    kept = vdit.cheapest_skips(pattern, 0.5)["ranges"][0]["layers"]
    assert [[one["mode"] for one in layer] for layer in kept] == [["full", "skip"], ["skip", "full"]]
    assert pattern["ranges"][0]["layers"][0][0]["mode"] == "skip"


def test_masks_of_modes_have_the_papers_density():
    vdit = script("sparse-vdit")
    for mode in "diagonal", "stripes":
        assert vdit.mode_mask(mode, 130).mean() == pytest.approx(0.30, abs=0.02)
    assert vdit.mode_mask("full", 5).all() and not vdit.mode_mask("skip", 5).any()


def test_errors_are_read_from_the_page():
    predictions = script("predictions")
    page = ("## `m`, 100g\n\n| layout | ρ | predicted / seconds |\n|---|---:|---:|\n| `ring` | 1.2 | 0.98 |\n| `usp` | 1.1 | 1.00 |\n\n## Measured compute\n\n"
            "| layout | predicted / seconds | gain |\n|---|---:|---:|\n| `ring` | 1.10 | 1 (1) |\n\n## Two\n\n| layout | real / simulated seconds |\n|---|---:|\n| `ring` | 1.05 |\n")
    found = predictions.errors(page)
    assert found["predicted / simulated, computing modelled"] == {"low": 0.98, "median": 1.0, "high": 1.0, "count": 2}
    assert found["predicted / simulated, computing measured"]["high"] == 1.1 and found["two real ranks / two simulated ones"]["median"] == 1.05
    assert predictions.errors((ROOT / "docs/results/scaling.md").read_text())["predicted / simulated, computing measured"]["count"] > 20


def test_charts_are_xml():
    for text in (charts.bar_chart("a & b", ["x"], {"s": [1.2]}, 1, 2, 0.5), charts.line_chart("t", [8, 16], {"s": [0.5, None]}, 0, 1, 0.5, "n"),
                 charts.scatter_chart("t", {"s": [(1.1, 1.2)]}, 1, 2, 0.5, "n")):
        xml.etree.ElementTree.fromstring(text)


@pytest.mark.parametrize("name", ["dbsp-terms", "densities", "predictions", "sparse-vdit"])
def test_a_page_for_real(name, tmp_path):
    done = subprocess.run([PAPER / name, "--quick", "--out", tmp_path], capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    page = next(tmp_path.glob("*.md")).read_text()
    for table in script(name).PAGE.tables:
        assert f"## {table.title}\n" in page and f"`bench/paper/{name} {table.name}`" in page
    assert "nan" not in page and "--quick" in page
    for picture in tmp_path.glob("*.svg"):
        xml.etree.ElementTree.parse(picture)
        assert picture.name in page


@pytest.mark.parametrize("words, mentions", [(["nothing"], "tables are"), (["--quick"], "--out")])
def test_refusals(words, mentions):
    done = subprocess.run([PAPER / "densities", *words], capture_output=True, text=True)
    assert done.returncode == 2 and mentions in done.stderr
