"""What tests of videos share: the model of the repository, whether a command has worked, hashes of what it made, and MPI."""
import hashlib
import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINI = ROOT / "models/wan-mini"
# 3 x 6 x 8 tokens: three blocks, the last one ragged.
THREE_BLOCKS = ["-p", "a big red circle bounces on a black background", "-s", 7, "-W", 128, "-H", 96, "--video-frames", 9]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")


def made(outcome):
    assert outcome.code == 0, outcome.err
    return outcome


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def latents(generate, tmp_path, *args):
    """The hash of what `generate`, with the flags of the file that asks, makes with these."""
    made(generate("--save-latents", "a.st", *args))
    return sha256(tmp_path / "a.st")
