"""README followed to the letter: its commands one after the other, its Python blocks, with small videos."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SMALL = ["-W", "64", "-H", "48", "--video-frames", "5", "--steps", "5"]
# They take long, need root or what is not here; most have tests of their own.
ELSEWHERE = re.compile(r"scripts/(run (search|compare --prompts|verify --golden)|cluster-sim|nodes|test)|^docker |^hf |-m Wan2")


def blocks(language):
    return [text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL) if name == language]


def commands():
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if not ELSEWHERE.search(line)]


def test_every_command_runs(tmp_path):
    for name in "models", "tests":
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "models/wan-mini/pattern.json", tmp_path / "p.json")  # in place of a search
    assert len(commands()) > 10
    for words in commands():
        assert words[0] == "scripts/run", words
        small = SMALL if words[1] == "generate" and "--from" not in words else []  # before the line's own flags, which count more
        done = subprocess.run([os.environ["EQUITILE"], words[1], *small, *words[2:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"
        assert "warning" not in done.stderr, f"{shlex.join(words)}\n{done.stderr}"
    assert (tmp_path / "triangle.mp4").read_bytes() == (tmp_path / "again.mp4").read_bytes()


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_runs(block, monkeypatch, tmp_path):
    equitile = pytest.importorskip("equitile")
    whole = equitile.Pipeline.generate
    small = {"width": 64, "height": 48, "video_frames": 5, "steps": 2}
    monkeypatch.setattr(equitile.Pipeline, "generate", lambda self, prompt, **said: whole(self, prompt, **small, **said))
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    exec(block, {})
