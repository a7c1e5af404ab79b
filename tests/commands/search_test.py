"""`equitile search`: from prompts to a pattern file that `generate` takes; the same file on any ranks and after an interruption."""
import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINI = ROOT / "models/wan-mini"
SIZES = ["-W", 128, "-H", 96, "--video-frames", 9, "--steps", 5]  # 3 x 6 x 8 tokens: three blocks, the last one ragged
MACHINE = {"version": 1, "target": "avx2", "threads": 1, "peak_gflops": 80,
           "kernel": [{"head_dim": 32, "block": 64, "dtype": "f32", "gflops": 60, "row_seconds": 1e-6}], "links": []}


@pytest.fixture
def search(equitile, tmp_path):
    (tmp_path / "prompts.txt").write_text("a red circle bounces\na blue square\n7\ta green star spins\n")
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))

    def run(*args, sizes=SIZES):
        return equitile("search", "--prompts", "prompts.txt", "--machine", "machine.json", *sizes, *args, EQUITILE_MODEL=str(MINI))

    return run


def without_measured(path):
    file = json.loads(path.read_text())
    file.pop("measured")
    return file


@pytest.mark.parametrize("objective", [["--error", 0.05], ["--density", 0.5, "--step-ranges", 1], ["--objective", "relative", "--epsilon", 0.4],
                                       ["--objective", "paper", "--epsilon", 0.2, "--dense-steps", 0]])
def test_same_file_on_any_ranks(search, tmp_path, objective):
    for name, ranks in ("one", 1), ("two", 2), ("three", 3):
        outcome = search("--count", 2, *objective, "-o", f"{name}.json", "--ranks", ranks)
        assert outcome.code == 0, outcome.err
        assert "density" in outcome.out and "heads:" in outcome.out
        assert not (tmp_path / f"{name}.json.ckpt").exists()
    assert without_measured(tmp_path / "one.json") == without_measured(tmp_path / "two.json") == without_measured(tmp_path / "three.json")


def test_the_file_says_what_it_was_made_from(search, tmp_path):
    outcome = search("--count", 2, "--seeds", "3,4", "--density", 0.4, "-o", "p.json", "--json")
    assert outcome.code == 0, outcome.err
    told, file = json.loads(outcome.out), json.loads((tmp_path / "p.json").read_text())
    # Two of three lines, spread over the file, with both seeds.
    assert file["calibration"] == {"prompts": ["a red circle bounces"] * 2 + ["a blue square"] * 2, "seeds": [3, 4, 3, 4]}
    assert file["grid"] == [3, 6, 8] and file["layers"] == 6 and file["heads"] == 6
    assert file["objective"] == "budget" and file["dials"]["target_density"] == 0.4 and file["dials"]["kernel_gflops"] == 60
    assert file["totals"]["density"] == told["density"] <= 0.4
    assert told["curve"][0]["density"] == 1 and told["curve"][-1]["density"] == pytest.approx(told["density"])
    assert all(0 <= head["p"] <= 1 and 0 <= head["theta"] <= 1 for layer in file["ranges"][0]["layers"] for head in layer)
    assert file["measured"]["search_seconds"] > 0


def test_generate_takes_the_file(search, equitile, tmp_path):
    assert search("--count", 1, "--density", 0.5, "-o", "p.json").code == 0
    flags = ["generate", "-p", "a red circle", *SIZES, "-o", "v.mp4"]
    for attention in "pattern:p.json", "pattern+predict:p.json", "observe:p.json", "predict:p.json":
        outcome = equitile(*flags, "--attention", attention, EQUITILE_MODEL=str(MINI))
        assert outcome.code == 0, outcome.err
    # The model's own file is used when none is named; without one the way to it is told.
    model = tmp_path / "model"
    shutil.copytree(MINI, model, ignore=shutil.ignore_patterns("pattern.json"))
    equitile(*flags, "--attention", "pattern", EQUITILE_MODEL=str(model)).must_be_refused("equitile search", "pattern.json")
    shutil.copy(tmp_path / "p.json", model / "pattern.json")
    outcome = equitile(*flags, "--attention", "pattern", EQUITILE_MODEL=str(model))
    assert outcome.code == 0, outcome.err


def test_density_counts_layers_that_are_full(search, equitile, tmp_path):
    assert search("--count", 1, "--density", 0.4, "--step-ranges", 1, "-o", "p.json").code == 0
    file = json.loads((tmp_path / "p.json").read_text())
    layers = file["ranges"][0]["layers"]
    layers[0] = [{"mode": "full", "density": 1.0, "error": 0.0}] * 6
    (tmp_path / "p.json").write_text(json.dumps(file))
    outcome = equitile("generate", "-p", "a red circle", *SIZES, "-o", "v.mp4", "--attention", "pattern:p.json", "--json", EQUITILE_MODEL=str(MINI))
    assert outcome.code == 0, outcome.err
    kept = [head["density"] for layer in layers for head in layer]
    assert json.loads(outcome.out)["run"]["sparsity"]["sparse_density"] == pytest.approx(sum(kept) / 36)


def test_generate_says_when_a_pattern_is_hardly_worth_it(search, equitile, tmp_path):
    """By the video at hand, whatever the file was made for."""
    generate = ["generate", "-p", "a red circle", "-o", "v.mp4", "--steps", 5, "--dry-run"]
    outcome = equitile(*generate, "-W", 64, "-H", 64, "--video-frames", 9, "--attention", "pattern", EQUITILE_MODEL=str(MINI))
    assert outcome.code == 0 and "saves less than 5 %" in outcome.err and "self-attention is" in outcome.err
    outcome = equitile(*generate, "--attention", "pattern", EQUITILE_MODEL=str(MINI))  # at the size that it was made for
    assert outcome.code == 0 and "saves less" not in outcome.err
    assert search("--count", 1, "--error", 0, "-o", "p.json").code == 0
    outcome = equitile(*generate, "--attention", "pattern:p.json", EQUITILE_MODEL=str(MINI))
    assert "saves less than 5 %" in outcome.err and "too few sparse heads, 100 % are full" in outcome.err


def begun(tmp_path, flags, sizes, until):
    """A search under way, as soon as `until` holds."""
    command = [os.environ["EQUITILE"], "search", "--prompts", "prompts.txt", "--machine", "machine.json", *sizes, *flags, "-o", "p.json"]
    process = subprocess.Popen([str(word) for word in command], cwd=tmp_path, env={**os.environ, "EQUITILE_MODEL": str(MINI)},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not until() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_goes_on_after_an_interruption(search, tmp_path, how):
    flags, sizes = ["--count", 3, "--density", 0.4], [*SIZES[:-1], 8]
    assert search(*flags, "-o", "whole.json", sizes=sizes).code == 0
    process = begun(tmp_path, flags, sizes, (tmp_path / "p.json.ckpt").exists)  # written at the end of the first prompt
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (1 if how == signal.SIGINT else -how), err
    assert how == signal.SIGKILL or "--resume" in err
    assert not (tmp_path / "p.json").exists()
    assert "another run" in search("--count", 2, "--density", 0.4, "-o", "p.json", "--resume", sizes=sizes).err
    outcome = search(*flags, "-o", "p.json", "--resume", "--ranks", 2, sizes=sizes)
    assert outcome.code == 0, outcome.err
    assert "times their dense steps" in outcome.out
    assert without_measured(tmp_path / "p.json") == without_measured(tmp_path / "whole.json")


def test_the_file_is_there_before_it_is_validated(search, tmp_path):
    (tmp_path / "validation.txt").write_text("9\ta white ring\n10\ta big cyan cross\n11\ta small red star\n")
    flags = ["--count", 1, "--density", 0.5, "--choice-videos", 0, "--validate", 3]
    process = begun(tmp_path, flags, SIZES, (tmp_path / "p.json").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted while validating" in err and "p.json: written" in err, err
    early = json.loads((tmp_path / "p.json").read_text())
    assert "psnr" not in early["measured"] and early["measured"]["search_seconds"] > 0
    outcome = search(*flags, "-o", "p.json", "--resume")
    assert outcome.code == 0, outcome.err
    file = json.loads((tmp_path / "p.json").read_text())
    assert file["measured"]["videos"] == 3 and file["measured"]["search_seconds"] == early["measured"]["search_seconds"]
    assert without_measured(tmp_path / "p.json") == {key: value for key, value in early.items() if key != "measured"}


@pytest.mark.parametrize("objective", ["budget", "static"])
def test_same_file_under_mpirun(search, equitile, tmp_path, objective):
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun")
    flags = ["--count", 1, "--density", 0.4, *(["--objective", "static"] if objective == "static" else [])]
    assert search(*flags, "-o", "one").code == 0
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", os.environ["EQUITILE"], "search", "--prompts", "prompts.txt",
               "--machine", "machine.json", *SIZES, *flags, "-o", "two"]
    done = subprocess.run([str(word) for word in command], cwd=tmp_path, env={**os.environ, "EQUITILE_MODEL": str(MINI)}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if objective == "budget":
        assert without_measured(tmp_path / "one") == without_measured(tmp_path / "two")
    else:
        names = sorted(file.name for file in (tmp_path / "one").iterdir())
        assert len(names) == 12 and all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)


def test_masks_need_a_folder_of_their_own(search, equitile, tmp_path):
    """What would go wrong in the end is refused at the beginning, and no mask of another run is left among the new ones."""
    flags = ["--count", 1, "--objective", "static", "--density", 0.4]
    (tmp_path / "file").write_text("")
    (tmp_path / "others").mkdir()
    (tmp_path / "others/mask.npy").write_text("")
    search(*flags, "-o", "file").must_be_refused("-o file", "folder")
    search(*flags, "-o", "others").must_be_refused("-o others", "mask.npy")
    (tmp_path / "masks").mkdir()
    for left in "layer-030.npy", "layer-030.json":
        (tmp_path / "masks" / left).write_text("")
    assert search(*flags, "-o", "masks").code == 0
    assert len(list((tmp_path / "masks").iterdir())) == 12 and not list((tmp_path / "masks").glob("layer-030*"))
    generate = ["generate", "-p", "a red circle", *SIZES, "-o", "v.mp4", "--dry-run"]
    equitile(*generate, "--attention", "sta:masks", EQUITILE_MODEL=str(MINI)).must_be_refused("sta:masks", "use static:masks")
    equitile(*generate, "--attention", "static", EQUITILE_MODEL=str(MINI)).must_be_refused("equitile search --objective static")


@pytest.mark.parametrize("objective", ["static", "sta"])
def test_masks_that_are_calibrated_once(search, equitile, tmp_path, objective):
    """The same files on any ranks, which generate takes under the method's own name, with its dense first steps."""
    for name, ranks in ("one", 1), ("three", 3):
        outcome = search("--count", 2, "--objective", objective, "--density", 0.4, "-o", name, "--ranks", ranks)
        assert outcome.code == 0, outcome.err
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert len(names) == 12 and names[0] == "layer-000.json"
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes() for name in names)
    outcome = equitile("generate", "-p", "a red circle", *SIZES, "-o", "v.mp4", "--attention", f"{objective}:one", "--json",
                       EQUITILE_MODEL=str(MINI))
    assert outcome.code == 0, outcome.err
    sparsity = json.loads(outcome.out)["run"]["sparsity"]
    if objective == "static":  # windows of tiles are larger than this video
        assert sparsity["first_sparse_step"] == 2 and 0.3 < sparsity["sparse_density"] < 0.5


def test_validation(search, tmp_path):
    (tmp_path / "validation.txt").write_text("9\ta white ring\n10\ta big cyan cross\n11\ta small red star\n")
    outcome = search("--count", 2, "--density", 0.5, "--validate", 2, "-o", "p.json")
    assert outcome.code == 0, outcome.err
    measured = json.loads((tmp_path / "p.json").read_text())["measured"]
    assert measured["videos"] == 2 and 5 < measured["psnr"] <= 100 and 0 < measured["ssim"] <= 1 and measured["speedup"] > 0
    assert "2 videos of other prompts" in outcome.out
    # Two of them again as wider, shorter videos; one was left to choose by.
    assert measured["other_videos"] == 2 and (measured["other_width"], measured["other_height"], measured["other_frames"]) == (160, 96, 5)
    assert measured["other_psnr"] > 5 and 0 < measured["density"] < 1
    dials = json.loads((tmp_path / "p.json").read_text())["dials"]
    assert dials["flop_reduction"] > 1 and dials["velocity_error"] > 0 and dials.get("choice_videos", 1) == 1
    assert "no videos" not in outcome.err
    search("--validate", 4, "-o", "q.json").must_be_refused("--validate 4", "3 prompts")


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_report(search, tmp_path):
    """One page that asks the network for nothing and holds what the file says."""
    (tmp_path / "validation.txt").write_text("9\ta white ring\n10\ta </script> cross\n")
    outcome = search("--count", 2, "--density", 0.4, "--validate", 1, "--for-ranks", 3, "-o", "p.json", "--report", "r.html")
    assert outcome.code == 0, outcome.err
    page, file = (tmp_path / "r.html").read_text(), json.loads((tmp_path / "p.json").read_text())
    assert not re.search(r"https?:|<link|@import|url\(", page) and page.rstrip().endswith("</html>")
    data = embedded(page)
    modes = [[[head["mode"] for head in layer] for layer in part["layers"]] for part in file["ranges"]]
    assert [[[head["mode"] for head in layer] for layer in part["layers"]] for part in data["ranges"]] == modes
    found = {mode for part in file["ranges"][len(file["ranges"]) // 2]["layers"] for mode in (head["mode"] for head in part)}
    assert {shown["mode"] for shown in data["maps"]} == found
    for shown in data["maps"]:
        cells = shown["cells"]
        cover = np.frombuffer(base64.b64decode(shown["cover"]), np.uint8).reshape(cells, cells)
        assert len(base64.b64decode(shown["map"])) == cells * cells
        if shown["mode"] in ("full", "skip", "mean"):
            assert (cover == (255 if shown["mode"] == "full" else 0)).all()
        if shown["mode"] == "stripes":
            assert (cover == cover[0]).all() and cover.any()
        if shown["mode"] == "diagonal":
            assert np.diag(cover).min() > 0
    assert data["curve"][0][0] == 1 and data["curve"][-1][0] == pytest.approx(file["totals"]["density"])
    assert len(data["frames"]) == 3 and all(frame["difference"].startswith("data:image/png;base64,") for frame in data["frames"])
    assert [video["group"] for video in data["videos"]] == ["other prompts"] + ["calibration's own"] * 2 + ["5 frames of 160x96"]
    assert data["plan"]["ranks"] == 3 and all(len(plan["work"]) == 3 for layer in data["plan"]["layers"] for plan in layer["plans"])
    assert data["facts"]["shown_prompt"] == "a white ring" and data["facts"]["step_ranges"] == "auto"


def test_says_when_no_videos_choose(search):
    outcome = search("--count", 1, "--density", 0.5, "-o", "p.json")
    assert outcome.code == 0 and "whole steps make the last choice" in outcome.err
    assert "last choice" not in search("--count", 1, "--density", 0.5, "--choice-videos", 0, "-o", "p.json").err


def test_no_prompt_is_in_two_files():
    files = [{line.rpartition("\t")[2] for line in (MINI / name).read_text().splitlines()}
             for name in ("prompts.txt", "validation.txt", "held-out.txt")]
    assert len(files[1]) >= 60 and len(set.union(*files)) == sum(map(len, files))
    for word in "circle square triangle star ring cross left right up down bounces orbits spins grows shrinks still".split():
        assert any(word in prompt for prompt in files[1]), word


@pytest.mark.parametrize("flags, mention", [
    (["--objective", "sta", "--step-ranges", "each"], "--step-ranges each"), (["--objective", "static", "--error", 0.1], "--error 0.1"),
    (["--density", 0.3, "--error", 0.1], "one of --density and --error"), (["--objective", "paper", "--density", 0.3], "--density 0.3"),
    (["--lambda", 0.5], "--lambda"), (["--objective", "fast"], "--objective fast"), (["--dense-steps", "100%"], "--dense-steps"),
    (["--speedup", 900], "--speedup 900"), (["--mode-density", 0.2], "--mode-density"), (["--count", 0], "--count 0"),
    (["-o", "no/such/folder.json"], "no/such"), (["--resume"], "p.json.ckpt"), (["--report", "no/such/r.html"], "no/such"),
    (["--objective", "paper", "--choice-videos", 2], "--choice-videos 2"), (["--objective", "relative", "--no-second-look"], "--no-second-look"),
    (["--objective", "static", "--no-second-look"], "--no-second-look"), (["--objective", "static", "--for-ranks", 4], "--for-ranks 4"),
    (["--report", "./p.json"], "--report ./p.json"), (["--crf", 20], "--crf"), (["--objective", "sta", "--report", "r.html"], "--report r.html"), (["--validate-at", "96,96,5"], "--validate-at 96,96,5"),
])
def test_mistakes(search, flags, mention):
    outcome = search(*(["-o", "p.json"] if "-o" not in flags else []), *flags)
    assert outcome.code == 2 and mention in outcome.err and outcome.out == "", outcome.err


def test_nothing_that_it_reads_is_written_over(search, tmp_path):
    for flags in (["-o", "prompts.txt"], ["-o", "p.json", "--report", "machine.json"]):
        outcome = search("--count", 1, *flags)
        assert outcome.code == 2 and f"{flags[-1]}: is read by this search; write to another name" in outcome.err
    (tmp_path / "p.json.ckpt").write_text("notes")
    outcome = search("--count", 1, "-o", "p.json")
    assert outcome.code == 2 and "p.json.ckpt: is not a checkpoint of this program, and one would be written there" in outcome.err
    assert (tmp_path / "p.json.ckpt").read_text() == "notes"


def test_a_folder_of_masks_may_end_in_a_slash(search, tmp_path):
    outcome = search("--count", 1, "--objective", "sta", "--density", 0.5, "--compute", "int8", "-o", "masks/")
    assert outcome.code == 0, outcome.err
    assert "heads are tried and timed with attention in f32, not int8" in outcome.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["machine.json", "masks", "prompts.txt"]
