"""`equitile compare`: PSNR and SSIM as scikit-image gives them (tests/data/compare, with the script that made it), and one
line for what cannot be compared."""
import json
import shutil

import pytest


def test_agrees_with_scikit_image(equitile, data):
    expected = json.loads((data / "compare/expected.json").read_text())
    outcome = equitile("compare", data / "compare/a", data / "compare/b", "--json")
    assert outcome.code == 0 and outcome.err == ""
    said = json.loads(outcome.out)
    assert list(said) == ["psnr_mean", "psnr_min", "ssim_mean", "identical_frames", "frames"]
    assert len(said["frames"]) == len(expected)
    for frame, right in zip(said["frames"], expected):
        assert frame["frame"] == right["frame"]
        assert frame["psnr"] == (right["psnr"] and pytest.approx(right["psnr"], abs=1e-4))
        assert frame["ssim"] == pytest.approx(right["ssim"], abs=1e-4)
    different = [frame["psnr"] for frame in expected if frame["psnr"] is not None]
    assert said["identical_frames"] == len(expected) - len(different)
    assert said["psnr_mean"] == pytest.approx(sum(different) / len(different))
    assert said["psnr_min"] == pytest.approx(min(different))
    assert said["ssim_mean"] == pytest.approx(sum(frame["ssim"] for frame in expected) / len(expected), abs=1e-4)


def test_identical(equitile, data):
    said = json.loads(equitile("compare", data / "compare/a", data / "compare/a", "--json").out)
    assert said["psnr_mean"] is None and said["psnr_min"] is None
    assert said["ssim_mean"] == 1 and said["identical_frames"] == 4
    assert "identical" in equitile("compare", data / "compare/a", data / "compare/a").out


def test_text_and_page(equitile, data, tmp_path):
    outcome = equitile("compare", data / "compare/a", data / "compare/b", "--html", "report.html")
    assert outcome.code == 0 and outcome.err == ""
    assert "4 frames, 1 identical" in outcome.out and "worst frame 3" in outcome.out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 * 3
    assert "http" not in page


def test_latents(equitile, data):
    golden = data.parent / "golden"
    outcome = equitile("compare", golden / "vae.safetensors", golden / "vae.safetensors")
    outcome.must_be_refused("vae.safetensors", "tensors")


def test_what_cannot_be_compared(equitile, data, tmp_path):
    a = data / "compare/a"
    equitile("compare", a, "missing").must_be_refused("missing")
    shorter = tmp_path / "shorter"
    shutil.copytree(a, shorter)
    (shorter / "00003.png").unlink()
    equitile("compare", a, shorter).must_be_refused("ends after 3 frames")
    (tmp_path / "empty").mkdir()
    equitile("compare", a, "empty").must_be_refused("empty")
    (tmp_path / "bad.mp4").write_text("not a video")
    equitile("compare", a, "bad.mp4").must_be_refused("bad.mp4")
    equitile("compare", a, "x.safetensors").must_be_refused("latents")
    equitile("compare", a, a, "--html", "missing/report.html").must_be_refused("missing")
