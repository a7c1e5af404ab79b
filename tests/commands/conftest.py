"""Runs the built `equitile` as a user would. The build passes its path in the environment variable EQUITILE."""
import os
import pathlib
import subprocess

import pytest

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


class Outcome:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def must_be_refused(self, *mentions):
        """Exit code 2, nothing on stdout, one line on stderr that mentions what is wrong."""
        assert self.code == 2, self.err
        assert self.out == ""
        assert self.err.startswith("equitile: ") and self.err.count("\n") == 1, self.err
        for mention in mentions:
            assert str(mention) in self.err, self.err


@pytest.fixture
def equitile(tmp_path):
    """equitile("inspect", "mask.npy", …): runs in an empty folder, without a terminal."""

    def run(*args, **environment):
        env = {**os.environ, "LC_ALL": "C.UTF-8", **environment}
        done = subprocess.run([os.environ["EQUITILE"], *map(str, args)], cwd=tmp_path, env=env, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return Outcome(done)

    return run


@pytest.fixture
def data():
    return DATA
