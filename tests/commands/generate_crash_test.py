"""`equitile generate` after kill -9, Ctrl-C and full disks: nothing half-written, and --resume goes on to the same bits."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINI = ROOT / "models/wan-mini"
PROMPT = "a red circle bounces on a black background"
SMALL = ["-t", 1, "-W", 64, "-H", 48, "--video-frames", 5, "--steps", 2]
# Many short steps, so that there is always one to be killed in.
LONG = ["-W", 64, "-H", 64, "--video-frames", 5, "--steps", 25, "--checkpoint-every", 1, "-t", 1, "-s", 3]
# Hardly any steps, but many frames.
CLIP = ["-t", 1, "-W", 64, "-H", 64, "--video-frames", 41, "--steps", 1, "-s", 3]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


@pytest.fixture
def generate(equitile):
    return lambda *args, prompt=PROMPT: equitile("generate", "-m", MINI, "-p", prompt, *args)


def made(outcome):
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.fixture
def start(tmp_path):
    """Starts `[launcher] equitile generate …`; whatever still runs at the end is killed."""
    processes = []

    def begin(*args, launcher=()):
        command = [*launcher, os.environ["EQUITILE"], "generate", "-m", MINI, "-p", PROMPT, *args]
        process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(there, process, seconds=60):
    end = time.monotonic() + seconds
    while not there():
        assert process.poll() is None and time.monotonic() < end, "nothing to wait for any more"
        time.sleep(0.002)


def kill(process):
    process.kill()
    process.communicate()


def test_killed_in_a_step(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *LONG))
    process = start("-o", "a.mp4", *LONG)
    wait_for((tmp_path / "a.mp4.ckpt").exists, process)
    kill(process)
    assert not (tmp_path / "a.mp4").exists()
    # Any other parameter: refused, and the checkpoint stays.
    generate("-o", "a.mp4", "--resume", *LONG[:-1], 4).must_be_refused("a.mp4.ckpt", "another run", "seed is '3', not '4'")
    generate("-o", "a.mp4", "--resume", *LONG, prompt="a star").must_be_refused("another run", "prompt")
    made(generate("-o", "a.mp4", "--resume", "--ranks", 2, *LONG))
    assert json.loads((tmp_path / "a.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")
    assert not (tmp_path / "a.mp4.ckpt").exists()


def test_killed_while_frames_are_decoded(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *CLIP))
    process = start("-o", "a.mp4", *CLIP)
    wait_for(lambda: any(re.fullmatch(r"\.a\.mp4\.\d+-\d+\.tmp", file.name) for file in tmp_path.iterdir()), process)
    kill(process)
    assert not (tmp_path / "a.mp4").exists() and not (tmp_path / "a.json").exists()
    made(generate("-o", "a.mp4", "--resume", *CLIP))
    assert json.loads((tmp_path / "a.json").read_text())["run"]["first_step"] == 1
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")
    assert not (tmp_path / "a.mp4.ckpt").exists()


@needs_mpirun
def test_one_rank_is_killed(generate, start, tmp_path):
    made(generate("-o", "whole.mp4", *LONG))
    process = start("-o", "a.mp4", *LONG, launcher=MPIRUN)
    wait_for((tmp_path / "a.mp4.ckpt").exists, process)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [pid for pid in children if b"generate" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ranks) == 2, children
    os.kill(int(ranks[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not (tmp_path / "a.mp4").exists()
    again = start("-o", "a.mp4", "--resume", *LONG, launcher=MPIRUN)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert json.loads((tmp_path / "a.json").read_text())["run"]["first_step"] > 0
    assert sha256(tmp_path / "a.mp4") == sha256(tmp_path / "whole.mp4")


def test_interrupt_writes_a_checkpoint_and_says_how_to_go_on(generate, start, tmp_path):
    process = start("-o", "a b.mp4", *LONG)
    wait_for((tmp_path / "a b.mp4.ckpt").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    assert "interrupted after step" in err and err.strip().endswith("--resume"), err
    command = err.strip().splitlines()[-1].split("go on with: ")[1]
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "a b.json").read_text())["run"]["first_step"] > 0
    made(generate("-o", "whole.mp4", *LONG))
    assert sha256(tmp_path / "a b.mp4") == sha256(tmp_path / "whole.mp4")


def test_checkpoints_that_cannot_be_used(generate, tmp_path):
    made(generate("--save-latents", "a.st", "--keep-checkpoint", *SMALL))
    good = (tmp_path / "a.st.ckpt").read_bytes()
    damaged = bytearray(good)
    damaged[-5] ^= 1
    for content, mention in (bytes(damaged), "damaged"), (good[:-9], "truncated"), (b"", "too short"), (b"x" * 100, "header"):
        (tmp_path / "a.st.ckpt").write_bytes(content)
        generate("--save-latents", "a.st", "--resume", *SMALL).must_be_refused("a.st.ckpt", mention)
    shutil.copy(ROOT / "tests/golden/noise.safetensors", tmp_path / "f.ckpt")
    generate("--save-latents", "a.st", "--resume", "f.ckpt", *SMALL).must_be_refused("f.ckpt", "not a checkpoint")
    generate("--save-latents", "b.st", "--resume", *SMALL).must_be_refused("no checkpoint", "b.st.ckpt")
    # One of a finished run goes straight to its files.
    (tmp_path / "a.st.ckpt").write_bytes(good)
    first = sha256(tmp_path / "a.st")
    (tmp_path / "a.st").unlink()
    made(generate("--save-latents", "a.st", "--resume", *SMALL))
    assert sha256(tmp_path / "a.st") == first
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
    mounted = shutil.which("mount") and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "equitile-test", folder],
                                                       capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("a tmpfs cannot be mounted here (needs root)")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
        return folder

    yield resize
    subprocess.run(["umount", folder], check=True)


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
