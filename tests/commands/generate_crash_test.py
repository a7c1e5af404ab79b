"""`equitile generate` after kill -9, Ctrl-C and full disks: nothing half-written, and --resume goes on to the same bits."""
import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest
from made_videos import MINI, MPIRUN, ROOT, made, needs_mpirun, sha256

PROMPT = "a red circle bounces on a black background"
SMALL = ["-t", 1, "-W", 64, "-H", 48, "--video-frames", 5, "--steps", 2]
# Many short steps, so that there is always one to be killed in.
LONG = ["-W", 64, "-H", 64, "--video-frames", 5, "--steps", 25, "--checkpoint-every", 1, "-t", 1, "-s", 3]
# Hardly any steps, but many frames.
CLIP = ["-t", 1, "-W", 64, "-H", 64, "--video-frames", 41, "--steps", 1, "-s", 3]
ON_TWO = [*MPIRUN, "-n", "2"]


@pytest.fixture
def generate(equitile):
    return lambda *args, prompt=PROMPT: equitile("generate", "-m", MINI, "-p", prompt, *args)


@pytest.fixture
def start(tmp_path):
    """Starts `[launcher] equitile generate …`; whatever still runs at the end is killed."""
    processes = []

    def begin(*args, launcher=(), prompt=PROMPT, model=MINI):
        command = [*launcher, os.environ["EQUITILE"], "generate", *(["-m", model] if model else []), *(["-p", prompt] if prompt else []),
                   *args]
        process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def strike(begin, there, blow, output):
    """Starts begin(), and once there() holds blow(process)s it; what the process wrote, when it has ended. On a busy machine the
    process may be done before the blow falls: then its files go, and it is started anew."""
    for _ in range(10):
        process = begin()
        end = time.monotonic() + 60
        while process.poll() is None and not there():
            assert time.monotonic() < end, "nothing to wait for any more"
            time.sleep(0.002)
        struck = process.poll() is None and blow(process)
        out, err = process.communicate(timeout=60)
        if struck and process.returncode != 0 and not output.exists():
            return process.returncode, out, err
        assert struck or process.returncode == 0, err
        for file in output, pathlib.Path(f"{output}.json"), pathlib.Path(f"{output}.ckpt"):
            file.unlink(missing_ok=True)
    pytest.fail("ten times the process was done before it could be struck")


def kill(process):
    process.kill()
    return True


def interrupt(process):
    process.send_signal(signal.SIGINT)
    return True


def go_on(err, folder):
    """Runs the command that the last line of `err` gives."""
    command = err.strip().splitlines()[-1].split("go on with: ")[1]
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_killed_in_a_step(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *LONG))
    strike(lambda: start("-o", "a.mp4", *LONG), (tmp_path / "a.mp4.ckpt").exists, kill, tmp_path / "a.mp4")
    # Any other parameter: refused, and the checkpoint stays.
    generate("-o", "a.mp4", "--resume", *LONG[:-1], 4).must_be_refused("a.mp4.ckpt", "another run", "seed is '3', not '4'")
    generate("-o", "a.mp4", "--resume", *LONG, prompt="a star").must_be_refused("another run", "prompt")
    made(generate("-o", "a.mp4", "--resume", "--ranks", 2, *LONG))
    assert json.loads((tmp_path / "a.mp4.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")
    assert not (tmp_path / "a.mp4.ckpt").exists()


def frames_are_written(folder):
    """Whether a.mp4 is on its way. The same name is tried before any work, then there is no checkpoint yet."""
    return lambda: (folder / "a.mp4.ckpt").exists() and any(re.fullmatch(r"\.a\.mp4\.[0-9a-f]+-\d+-[0-9a-f]+-\d+\.tmp", file.name)
                                                            for file in folder.iterdir())


def test_killed_while_frames_are_decoded(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *CLIP))

    strike(lambda: start("-o", "a.mp4", *CLIP), frames_are_written(tmp_path), kill, tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4.json").exists()
    made(generate("-o", "b.mp4", *SMALL))  # leaves what is left of others alone
    assert len(list(tmp_path.glob(".a.mp4.*.tmp"))) == 1
    made(generate("-o", "a.mp4", "--resume", *CLIP))
    assert json.loads((tmp_path / "a.mp4.json").read_text())["run"]["first_step"] == 1
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.mp4", "a.mp4.json", "b.mp4", "b.mp4.json", "whole.mp4", "whole.mp4.json"]


def strike_second_rank(mpirun, number):
    """False when the ranks have ended already."""
    def is_rank(folder):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            return parent == mpirun.pid and b"generate" in (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            return False

    ranks = sorted((folder for folder in pathlib.Path("/proc").iterdir() if folder.name.isdigit() and is_rank(folder)),
                   key=lambda folder: int(folder.name))
    if len(ranks) < 2:
        return False
    try:
        os.kill(int(ranks[1].name), number)
    except ProcessLookupError:
        return False
    return True


@needs_mpirun
def test_one_rank_is_killed(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *LONG))
    strike(lambda: start("-o", "a.mp4", *LONG, launcher=ON_TWO), (tmp_path / "a.mp4.ckpt").exists,
           lambda mpirun: strike_second_rank(mpirun, signal.SIGKILL), tmp_path / "a.mp4")
    again = start("-o", "a.mp4", "--resume", *LONG, launcher=ON_TWO)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert json.loads((tmp_path / "a.mp4.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")


def test_interrupt_writes_a_checkpoint_and_says_how_to_go_on(generate, start, tmp_path):
    code, out, err = strike(lambda: start("-o", "a b.mp4", *LONG), (tmp_path / "a b.mp4.ckpt").exists, interrupt,
                            tmp_path / "a b.mp4")
    assert code == 1 and out == ""
    assert "interrupted after step" in err and err.strip().endswith("--resume"), err
    go_on(err, tmp_path)
    assert json.loads((tmp_path / "a b.mp4.json").read_text())["run"]["first_step"] > 0
    made(generate("-o", "whole.mp4", *LONG))
    assert sha256(tmp_path / "a b.mp4") == sha256(tmp_path / "whole.mp4")


@needs_mpirun
def test_ctrl_c_under_mpirun_says_how_to_go_on(generate, start, tmp_path):
    """mpirun kills its processes a second after it has told them: no time to end in order."""
    longer = ["300" if word == 25 else word for word in LONG]  # mpirun takes its time to pass the signal on
    code, out, err = strike(lambda: start("-o", "a.mp4", *longer, launcher=ON_TWO), (tmp_path / "a.mp4.ckpt").exists, interrupt,
                            tmp_path / "a.mp4")
    said = [line for line in err.splitlines() if line.startswith("equitile: interrupted")]
    how = [line for line in said if "go on with: mpirun -n 2 " in line]
    assert len(how) == 1 and how[0].endswith(" --resume"), err
    made(generate("-o", "a.mp4", "--resume", *longer))
    made(generate("-o", "whole.mp4", *longer))
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")


@pytest.mark.parametrize("how", ["one rank", "ranks as threads", "tiles", pytest.param("mpirun", marks=needs_mpirun)])
def test_interrupted_while_frames_are_decoded(generate, start, tmp_path, how):
    flags = {"ranks as threads": ["--ranks", 3], "tiles": ["--vae-tiling", "--ranks", 2]}.get(how, [])
    made(generate("-o", "whole.mp4", *CLIP, *flags))
    launcher = ON_TWO if how == "mpirun" else []
    # Of processes, one is told; the others end with it.
    blow = interrupt if how != "mpirun" else lambda mpirun: strike_second_rank(mpirun, signal.SIGTERM)
    code, out, err = strike(lambda: start("-o", "a.mp4", *CLIP, *flags, launcher=launcher), frames_are_written(tmp_path), blow,
                            tmp_path / "a.mp4")
    complaints = [line for line in err.splitlines() if line.startswith("equitile:")]
    assert code == 1 and out == "" and len(complaints) == 1, err
    assert complaints[0].startswith("equitile: interrupted while decoding the frames; go on with: "), err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.mp4.ckpt", "whole.mp4", "whole.mp4.json"]
    if how == "mpirun":
        assert f"mpirun -n 2 {os.environ['EQUITILE']}" in complaints[0]
        made(generate("-o", "a.mp4", "--resume", *CLIP))
    else:
        go_on(err, tmp_path)
    assert json.loads((tmp_path / "a.mp4.json").read_text())["run"]["first_step"] == 1
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")


def write_end(fifo, process):
    """A descriptor to write into `fifo`, once the process reads from it."""
    end = time.monotonic() + 60
    while True:
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            return descriptor
        except OSError as error:
            assert error.errno == errno.ENXIO and process.poll() is None and time.monotonic() < end
            time.sleep(0.002)


@pytest.mark.parametrize("resumes", [False, True])
def test_interrupted_while_loading(start, tmp_path, resumes):
    # The tokenizer is read for the model's fingerprint and, when work has begun, once more: both times it comes from a pipe.
    model = shutil.copytree(MINI, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    tokenizer = model / "tokenizer/tokenizer.json"
    content = tokenizer.read_bytes()
    flags = ["-m", model, "-o", "a.mp4", *SMALL]
    if resumes:
        done = start(*flags, "--keep-checkpoint", model=None)
        assert done.wait(timeout=60) == 0
        flags += ["--resume", "b.ckpt"]
        (tmp_path / "a.mp4.ckpt").rename(tmp_path / "b.ckpt")
    tokenizer.unlink()
    os.mkfifo(tokenizer)
    os.mkfifo(tmp_path / "second")
    process = start(*flags, model=None)
    with open(write_end(tokenizer, process), "wb") as pipe:
        (tmp_path / "second").rename(tokenizer)
        pipe.write(content)
    with open(write_end(tokenizer, process), "wb") as pipe:
        process.send_signal(signal.SIGINT)
        pipe.write(content)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == "", err
    how = "go on with: .* --resume b.ckpt" if resumes else "begin again with: .* --threads 1"
    assert re.fullmatch(f"equitile: interrupted while loading; {how}\n", err), err
    assert not (tmp_path / "a.mp4.ckpt").exists()


def test_interrupted_in_the_second_of_three_videos(start, equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\n7\ta blue ring\na big yellow star\n")
    flags = ["--prompts", "p.txt", *LONG]
    code, out, err = strike(lambda: start("-o", "b.mp4", *flags, prompt=None), (tmp_path / "b-0002.mp4.ckpt").exists, interrupt,
                            tmp_path / "b-0002.mp4")
    assert code == 1 and out.count("\n") == 1 and out.startswith("b-0001.mp4: "), out
    assert re.search(r"interrupted after step \d+ of 25 of b-0002.mp4; go on with: .* --resume$", err.strip()), err
    first = (tmp_path / "b-0001.mp4").stat()
    done = go_on(err, tmp_path)
    assert "b-0001.mp4: is there already" in done.stderr and "b-0001.mp4" not in done.stdout
    assert (tmp_path / "b-0001.mp4").stat().st_mtime_ns == first.st_mtime_ns
    assert json.loads((tmp_path / "b-0002.mp4.json").read_text())["run"]["first_step"] > 0
    made(equitile("generate", "-m", MINI, "-o", "c.mp4", *flags))
    for number in 1, 2, 3:
        assert sha256(tmp_path / f"b-000{number}.mp4") == sha256(tmp_path / f"c-000{number}.mp4")
    # All are there; one that was made otherwise is not taken for the same.
    again = made(equitile("generate", "-m", MINI, "-o", "c.mp4", *flags, "--resume", "--json"))
    assert [record["run"]["first_step"] for record in json.loads(again.out)] == [0, 0, 0]
    assert again.err.count("is there already") == 3
    (tmp_path / "p.txt").write_text("a red circle\n8\ta blue ring\na big yellow star\n")
    again = made(equitile("generate", "-m", MINI, "-o", "c.mp4", *flags, "--resume"))
    assert again.err.count("is there already") == 2 and again.out.startswith("c-0002.mp4: ")


def test_finished_videos_of_random_seeds_are_not_made_again(equitile, tmp_path):
    (tmp_path / "p.txt").write_text("a red circle\na blue ring\n")
    flags = ["-m", MINI, "--prompts", "p.txt", "-o", "b.mp4", *SMALL]
    made(equitile("generate", *flags))
    before = [sha256(tmp_path / f"b-000{number}.mp4") for number in (1, 2)]
    assert made(equitile("generate", *flags, "--resume")).err.count("is there already") == 2
    assert [sha256(tmp_path / f"b-000{number}.mp4") for number in (1, 2)] == before


def test_checkpoints_that_cannot_be_used(generate, tmp_path):
    made(generate("--save-latents", "a.st", "--keep-checkpoint", *SMALL))
    good = (tmp_path / "a.st.ckpt").read_bytes()
    damaged = bytearray(good)
    damaged[-5] ^= 1
    for content, mention in (bytes(damaged), "damaged"), (good[:-9], "truncated"), (b"", "too short"), (b"x" * 100, "header"):
        (tmp_path / "a.st.ckpt").write_bytes(content)
        generate("--save-latents", "a.st", "--resume", *SMALL).must_be_refused("a.st.ckpt", mention)
    (tmp_path / "a.st.ckpt").unlink()  # what is no checkpoint would not be written over
    shutil.copy(ROOT / "tests/golden/noise.safetensors", tmp_path / "f.ckpt")
    generate("--save-latents", "a.st", "--resume", "f.ckpt", *SMALL).must_be_refused("f.ckpt", "not a checkpoint")
    generate("--save-latents", "b.st", "--resume", *SMALL).must_be_refused("no checkpoint", "b.st.ckpt")
    # One of a finished run goes straight to its files.
    (tmp_path / "a.st.ckpt").write_bytes(good)
    first = sha256(tmp_path / "a.st")
    (tmp_path / "a.st").unlink()
    made(generate("--save-latents", "a.st", "--resume", *SMALL))
    assert sha256(tmp_path / "a.st") == first
    # Nothing is left to do.
    written = (tmp_path / "a.st").stat().st_mtime_ns
    assert "a.st: is there already" in made(generate("--save-latents", "a.st", "--resume", *SMALL)).err
    assert (tmp_path / "a.st").stat().st_mtime_ns == written
    generate("--save-latents", "a.st", "--resume", *SMALL, "--seed", 9).must_be_refused("no checkpoint", "without --resume")
    # A checkpoint of another model's weights.
    (tmp_path / "a.st.ckpt").write_bytes(good)
    other = shutil.copytree(MINI, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    weights = other / "transformer/diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    generate_other = ["--save-latents", "a.st", "--resume", *SMALL]
    done = subprocess.run(list(map(str, [os.environ["EQUITILE"], "generate", "-m", other, "-p", PROMPT, *generate_other])), cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "its model is" in done.stderr, done.stderr


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own: small_disk("64k") sets its size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def run(*command):
        return shutil.which(command[0]) and subprocess.run(command, capture_output=True).returncode == 0

    def resize(size):
        assert run("mount", "-o", f"remount,size={size}", folder)
        return folder

    def refuses_what_is_too_much():
        try:
            (folder / "probe").write_bytes(bytes(128 << 10))
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            (folder / "probe").unlink(missing_ok=True)
        return False

    if not run("mount", "-t", "tmpfs", "-o", "size=1m", "equitile-test", folder):
        pytest.skip("a tmpfs cannot be mounted here (needs root)")
    try:
        if not run("mount", "-o", "remount,size=64k", folder) or not refuses_what_is_too_much():
            pytest.skip("a tmpfs keeps to no size here")
        yield resize
    finally:
        run("umount", "-l", folder)


def test_full_disk_while_frames_are_written(generate, tmp_path, small_disk):
    (tmp_path / "whole").mkdir()
    made(generate("-o", "whole/%05d.png", *SMALL))
    disk = small_disk("40k")  # enough for the checkpoint
    (disk / "frames").mkdir()
    outcome = generate("-o", "disk/frames/%05d.png", *SMALL)
    assert outcome.code == 1 and outcome.out == "" and outcome.err.count("\n") == 1, outcome.err
    assert "disk/frames/0000" in outcome.err and "No space left" in outcome.err
    assert sorted(file.name for file in disk.iterdir()) == ["frames", "frames.ckpt"]
    assert list((disk / "frames").iterdir()) == []
    small_disk("1m")
    made(generate("-o", "disk/frames/%05d.png", "--resume", *SMALL))
    for file in (tmp_path / "whole").iterdir():
        assert sha256(disk / "frames" / file.name) == sha256(file)


def test_full_disk_while_a_video_or_checkpoint_is_written(generate, tmp_path, small_disk):
    disk = small_disk("16k")  # not even for a checkpoint
    (disk / "filler").write_bytes(bytes(16 << 10))
    outcome = generate("-o", "disk/a.webm", *SMALL)
    assert outcome.code == 1 and outcome.out == "", outcome.err
    lines = outcome.err.splitlines()
    assert "no checkpoint at step 2" in lines[0] and "disk/a.webm" in lines[-1] and "No space left" in lines[-1], lines
    assert [file.name for file in disk.iterdir()] == ["filler"]


def test_full_devices(generate, tmp_path):
    (tmp_path / "a.mp4").symlink_to("/dev/full")
    for flags in ["--save-latents", "/dev/full"], ["-o", "a.mp4"]:
        outcome = generate(*flags, *SMALL)
        assert outcome.code == 1 and flags[1] in outcome.err and outcome.out == "" and outcome.err.count("\n") == 1, outcome.err
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]
