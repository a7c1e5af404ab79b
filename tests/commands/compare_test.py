"""`equitile compare`: PSNR and SSIM as scikit-image gives them (tests/data/compare, with the script that made it), and one
line for what cannot be compared."""
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

MINI = pathlib.Path(__file__).resolve().parent.parent.parent / "models/wan-mini"
TINY = f"-m {MINI} -W 48 -H 32 --video-frames 5 --steps 2"


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


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
    said = embedded(page)
    assert page.count("data:image/png;base64,") == 4 * 2 and not re.search(r"<link|@import|url\(", page)
    assert said["title"] == "a and b" and str(data) not in page  # a page travels
    row, = said["rows"]
    assert row["frames"] == [0, 1, 2, 3] and row["worst"] == 3 and [len(screen["frames"]) for screen in row["screens"]] == [4, 4]
    curve, = row["curves"]
    assert curve["psnr"].count(None) == 1 and len(curve["ssim"]) == 4
    frames = json.loads(equitile("compare", data / "compare/a", data / "compare/b", "--json").out)["frames"]
    assert [curve["psnr"], curve["ssim"]] == [[frame[key] for frame in frames] for key in ("psnr", "ssim")]


def test_a_page_of_prompts_keeps_the_videos(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n7\ta blue ring\n")
    flags = ["--prompts", "p.txt", "--a", TINY, "--b", TINY + " --cfg-scale 1", "--b", TINY]
    outcome = equitile("compare", *flags, "--html", "r.html")
    assert outcome.code == 0, outcome.err
    said = embedded((tmp_path / "r.html").read_text())
    assert said["title"] == "3 ways of 2 prompts" and [row["name"] for row in said["rows"]] == ["a red circle", "a blue ring"]
    for row in said["rows"]:
        assert [curve["label"] for curve in row["curves"]] == ["b1", "b2"] and row["curves"][1]["psnr"] == [None] * 5
        for screen in row["screens"]:
            assert (tmp_path / screen["video"]).stat().st_size > 0
    assert len(list((tmp_path / "r-videos").iterdir())) == 6
    equitile("compare", *flags, "--html", "none/r.html").must_be_refused("none/r.html")


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


def test_latents_of_two_seeds(equitile, tmp_path):
    for seed in 1, 2:
        outcome = equitile("generate", "-p", "a star", "--save-latents", f"{seed}.safetensors", "-s", seed, *TINY.split())
        assert outcome.code == 0, outcome.err
    same = equitile("compare", "1.safetensors", "1.safetensors")
    assert same.code == 0 and same.out == "latents [16, 2, 4, 6]: identical\n"
    said = json.loads(equitile("compare", "1.safetensors", "2.safetensors", "--json").out)
    assert said["shape"] == [16, 2, 4, 6] and not said["identical"] and 0 < said["different_elements"] <= 16 * 2 * 4 * 6
    assert said["max_difference"] > 0 and 0 < said["relative_l2"] < 10
    assert "elements differ" in equitile("compare", "1.safetensors", "2.safetensors").out
    equitile("compare", "1.safetensors", "2.safetensors", "--html", "x.html").must_be_refused("--html")


def test_prompts_both_ways(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n7\ta blue ring\n")
    outcome = equitile("compare", "--prompts", "p.txt", "--a", TINY, "--b", TINY + " --cfg-scale 1", "--json")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    said = json.loads(outcome.out)
    assert list(said) == ["a", "b", "psnr", "ssim", "speed", "prompts"]
    # The same frames as files: before they are encoded means without loss.
    for guidance in "", "--cfg-scale 1":
        folder = tmp_path / f"frames{len(guidance)}"
        folder.mkdir()
        flags = ["-p", "a blue ring", "-s", 7, "-o", folder / "%05d.png", *TINY.split(), *guidance.split()]
        assert equitile("generate", *flags).code == 0
    files = json.loads(equitile("compare", "frames0", "frames13", "--json").out)
    second = said["prompts"][1]
    assert second["prompt"] == "a blue ring" and second["seed_a"] == second["seed_b"] == 7 and second["frames"] == 5
    for key in "psnr_mean", "psnr_min", "ssim_mean", "identical_frames":
        assert second[key] == pytest.approx(files[key]), key
    # Student's t for two values: 12.7062 deviations of the mean.
    for key, of in ("psnr", "psnr_mean"), ("ssim", "ssim_mean"):
        x, y = (prompt[of] for prompt in said["prompts"])
        assert said[key]["mean"] == pytest.approx((x + y) / 2) and said[key]["prompts"] == 2
        assert said[key]["high"] - said[key]["mean"] == pytest.approx(12.7062047 * abs(x - y) / 2, rel=1e-6)
        assert said[key]["high"] + said[key]["low"] == pytest.approx(x + y)
    speeds = [prompt["seconds_a"] / prompt["seconds_b"] for prompt in said["prompts"]]
    assert said["speed"]["mean"] == pytest.approx(math.sqrt(speeds[0] * speeds[1]))
    assert said["speed"]["low"] <= said["speed"]["mean"] <= said["speed"]["high"]


def test_several_beside_one(equitile, tmp_path):
    """Each --b as if it were alone, and a, made once, in turn with them."""
    (tmp_path / "p.txt").write_text("a red circle\n7\ta blue ring\n3\ta star\n")
    ways = [TINY + " --cfg-scale 1", TINY, TINY + " --attention predict:mass=0.5 --dense-steps 1 --ranks 2"]
    several = [word for way in ways for word in ("--b", way)]
    said = json.loads(equitile("compare", "--prompts", "p.txt", "--a", TINY, *several, "--save-frames", "kept", "--json").out)
    assert list(said) == ["a", "comparisons"] and [one["b"] for one in said["comparisons"]] == ways
    alone = json.loads(equitile("compare", "--prompts", "p.txt", "--a", TINY, "--b", ways[0], "--json").out)
    for one, other in zip(said["comparisons"][0]["prompts"], alone["prompts"], strict=True):
        assert all(one[key] == other[key] for key in ("prompt", "seed_a", "psnr_mean", "psnr_min", "ssim_mean", "frames"))
    assert all(said["comparisons"][0][key] == alone[key] for key in ("psnr", "ssim"))
    assert [one["identical_frames"] for one in said["comparisons"][1]["prompts"]] == [5, 5, 5]
    for one in zip(*(comparison["prompts"] for comparison in said["comparisons"])):
        assert len({way["seconds_a"] for way in one}) == 1, "a was made more than once"
    sparse = said["comparisons"][2]["prompts"][0]
    assert sparse["sparsity_a"]["density"] == 1 and 0 < sparse["sparsity_b"]["attention_seconds"] < sparse["seconds_b"]
    assert sparse["sparsity_b"]["sparse_density"] is None or sparse["sparsity_b"]["sparse_density"] < 1
    # What was kept are the frames that were compared.
    files = json.loads(equitile("compare", "kept/a/0002", "kept/b1/0002", "--json").out)
    assert files["psnr_mean"] == pytest.approx(alone["prompts"][1]["psnr_mean"])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "b1", "b2", "b3"]


def test_intervals_of_few_prompts_are_not_shown(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\na blue ring\n")
    out = equitile("compare", "--prompts", "p.txt", "--a", TINY, "--b", TINY + " --cfg-scale 1").out
    assert out.count("(2 prompts: no interval)") == 3 and "95 %" not in out, out


def test_an_interrupted_comparison_says_so_and_leaves_no_empty_folder(tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n")
    long = "-W 64 -H 64 --video-frames 9 --steps 1000"
    command = [os.environ["EQUITILE"], "compare", "--prompts", "p.txt", "--a", long, "--b", long, "--html", "x.html"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "x-videos").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1 and err.count("\n") == 1 and "interrupted" in err, err
    assert [file.name for file in tmp_path.iterdir()] == ["p.txt"]


def test_several_in_words(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n")
    lines = equitile("compare", "--prompts", "p.txt", "--a", TINY, "--b", TINY, "--b", TINY + " -t 1").out.splitlines()
    assert len(lines) == 2 + 2 * 4 and " b2 " in lines[1] and lines[6] == f"b2: {TINY} -t 1", lines


@pytest.mark.parametrize("launched", [False, pytest.param(True, marks=pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun"))])
def test_prompts_on_ranks(equitile, tmp_path, launched):
    (tmp_path / "p.txt").write_text("a red circle\n")
    command = ["compare", "--prompts", "p.txt", "--a", TINY + " -t 1", "--b", TINY + ("" if launched else " --ranks 3")]
    if launched:
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", os.environ["EQUITILE"]]
        done = subprocess.run([*start, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    else:
        out = equitile(*command).out
    lines = out.splitlines()
    assert len(lines) == 4 and "identical" in lines[0] and lines[0].endswith("a red circle"), out
    assert "all frames are identical" in lines[1] and "no interval" in lines[3]


@pytest.mark.parametrize("flags, mentions", [
    (["--a", TINY + " --step 3", "--b", TINY], ["--a:", "unknown flag --step", "--steps"]),
    (["--a", TINY, "--b", "--steps 0"], ["--b:", "--steps 0"]),
    (["--a", TINY, "--b", TINY + " -o x.mp4"], ["--b:", "-o", "writes no video"]),
    (["--a", TINY + " -p star", "--b", TINY], ["--a:", "-p"]),
    (["--a", TINY + " -n 'a", "--b", TINY], ["--a:", "not closed"]),
    (["--a", TINY, "--b", TINY + " -s -1"], ["--b:", "random"]),
    (["--a", TINY, "--b", "-m /nowhere"], ["--b:", "/nowhere"]),
    (["--a", TINY, "--b", TINY.replace("48", "64")], ["5 frames of 48x32", "5 frames of 64x32"]),
    (["--a", TINY, "--b", TINY, "--b", "--steps 0"], ["--b2:", "--steps 0"]),
    (["--a", TINY, "--b", TINY, "--b", TINY.replace("48", "64")], ["--b2", "5 frames of 64x32"]),
    (["--a", TINY, "--b", TINY, "--save-frames", "p.txt/x"], ["--save-frames", "p.txt/x"]),
    (["--a", TINY], ["--b"]),
    (["--a", TINY, "--b", TINY, "x.mp4"], ["x.mp4"]),
])
def test_prompts_that_cannot_be_compared(equitile, tmp_path, flags, mentions):
    (tmp_path / "p.txt").write_text("a red circle\n")
    equitile("compare", "--prompts", "p.txt", *flags).must_be_refused(*mentions)


def test_bad_files_of_prompts(equitile, tmp_path):
    equitile("compare", "--prompts", "none.txt", "--a", TINY, "--b", TINY).must_be_refused("equitile: ", "none.txt")
    (tmp_path / "p.txt").write_text("five\ta star\n")
    outcome = equitile("compare", "--prompts", "p.txt", "--a", TINY, "--b", TINY)
    outcome.must_be_refused("p.txt, line 1")
    assert "--a" not in outcome.err
    equitile("compare", "--a", TINY, "--b", TINY).must_be_refused("--prompts")
    equitile("compare", "a.mp4").must_be_refused("two videos")


def test_seeds_of_lines_count_more_than_a_flag(equitile, tmp_path):
    flags = f"-m {MINI} -W 64 -H 48 --video-frames 1 --steps 1"
    for lines, says in (("7\ta star\n", True), ("a star\n", False)):
        (tmp_path / "p.txt").write_text(lines)
        outcome = equitile("compare", "--prompts", "p.txt", "--a", flags, "--b", f"{flags} --seed 3")
        assert outcome.code == 0, outcome.err
        assert ("--b: --seed 3 does not count where lines have seeds of their own" in outcome.err) == says
