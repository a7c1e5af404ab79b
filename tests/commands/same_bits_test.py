"""One prompt and seed: the same latents (sha256) on ranks inside a process, on ranks as processes and on any number of threads, dense
and with a mask. What attention took is part of the run's report."""
import json
import os
import subprocess

import numpy as np
from made_videos import MINI, MPIRUN, needs_mpirun, sha256

FLAGS = ["generate", "-m", MINI, "-p", "a red circle bounces on a black background", "-s", 11, "-W", 256, "-H", 64,
         "--video-frames", 5, "--steps", 2]  # 2 x 4 x 16 tokens: two blocks


def latents(tmp_path, launcher, *flags):
    command = [*launcher, os.environ["EQUITILE"], *FLAGS, "--save-latents", "a.st", *flags]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    digest = sha256(tmp_path / "a.st")
    (tmp_path / "a.st").unlink()
    return digest


@needs_mpirun
def test_same_latents_everywhere(tmp_path):
    heads = json.loads((MINI / "transformer/config.json").read_text())["num_attention_heads"]
    mask = np.ones((heads, 2, 2), bool)
    mask[::2, 0, 1] = mask[1::2, 1, 0] = False  # heads of unlike work
    np.save(tmp_path / "mask.npy", mask)
    found = {}
    for attention in "dense", "mask:mask.npy":
        for threads in 1, 2:
            for launcher, ranks in ([], ["--ranks", 1]), ([], ["--ranks", 3]), ([*MPIRUN, "-n", 2], []):
                digest = latents(tmp_path, launcher, "--attention", attention, "-t", threads, *ranks)
                found.setdefault(attention, set()).add(digest)
    assert {len(digests) for digests in found.values()} == {1}, found
    assert found["dense"] != found["mask:mask.npy"]


def test_the_run_tells_what_attention_took(equitile, tmp_path):
    layers = json.loads((MINI / "transformer/config.json").read_text())["num_layers"]
    outcome = equitile(*FLAGS, "--save-latents", "a.st", "--ranks", 3, "--perf-dump-path", "perf.json")
    assert outcome.code == 0, outcome.err
    attention = json.loads((tmp_path / "perf.json").read_text())["attention"]
    assert attention["runs"] == 2 * layers
    assert 0 < attention["compute_seconds"] < attention["seconds"] and attention["plan_seconds"] > 0
    assert attention["bytes_sent"] > 0 and attention["bytes_received"] > 0 and attention["buffer_bytes"] > 0
