"""The recipe of `equitile generate`: files of flags, what --from repeats, what --resume compares, what ranks agree on. Small videos of
wan-mini; nothing here depends on what its weights draw."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from made_videos import MINI, MPIRUN, made, needs_mpirun, sha256

CONFIG = json.loads((MINI / "transformer/config.json").read_text())
HEADS, LAYERS = CONFIG["num_attention_heads"], CONFIG["num_layers"]
SMALL = ["-t", 1, "-W", 64, "-H", 48, "--video-frames", 5, "--steps", 2]  # 2 x 3 x 4 tokens


@pytest.fixture
def generate(equitile):
    return lambda *args, **environment: equitile("generate", "-m", MINI, "-p", "a star", *args, **environment)


def parameters(path):
    return json.loads(pathlib.Path(path).read_text())["parameters"]


def test_files_of_flags(generate, tmp_path):
    (tmp_path / "a.toml").write_text('# small\nwidth = 64\nheight = 48\nvideo_frames = 5\nsteps = 2\ncfg-scale = 2.5\nthreads = 1\n')
    (tmp_path / "a.json").write_text(json.dumps({"width": 64, "height": 48, "video-frames": 5, "steps": 2, "cfg_scale": 2.5, "threads": 1}))
    made(generate("--save-latents", "flags.st", "--cfg-scale", 2.5, *SMALL))
    for kind in "toml", "json":
        made(generate("--save-latents", f"{kind}.st", "--config", f"a.{kind}"))
        assert sha256(tmp_path / f"{kind}.st") == sha256(tmp_path / "flags.st"), kind


def test_what_counts_more(generate, equitile, tmp_path):
    """Command line > --config > --from > generation_config.json > default."""
    made(generate("--save-latents", "a.st", "--cfg-scale", 3, "--flow-shift", 4, "-s", 5, *SMALL))
    (tmp_path / "c.toml").write_text("flow_shift = 6\nseed = 7\n")
    made(equitile("generate", "--from", "a.st.json", "--config", "c.toml", "-s", 8, "--save-latents", "b.st"))
    said = parameters(tmp_path / "b.st.json")
    assert (said["cfg_scale"], said["flow_shift"], said["seed"], said["rng"]) == (3, 6, 8, "torch")
    defaults = json.loads((MINI / "generation_config.json").read_text())
    assert said["fps"] == defaults["fps"] and said["steps"] == 2 != defaults["num_inference_steps"]


@pytest.mark.parametrize("name, content, mentions", [
    ("c.json", '{"stepz": 3}', ["c.json", "unknown key 'stepz'", "steps"]),
    ("c.toml", "stepz = 3", ["c.toml", "unknown key 'stepz'", "steps"]),
    ("c.toml", "steps = 2\nsteps = 3", ["c.toml, line 2", "'steps' is there twice"]),
    ("c.toml", "cfg-scale = -1", ["c.toml", "--cfg-scale -1", "from 0 to 1000"]),
    ("c.toml", "[video]\nsteps = 3", ["c.toml, line 1", "tables"]),
    ("c.json", '{"steps": [3]}', ["c.json", "'steps' must be"]),
    ("c.json", '{"steps": 3', ["c.json", "not JSON"]),
    ("other.json", "{}", ["c.json"]),
])
def test_files_that_cannot_be_used(generate, tmp_path, name, content, mentions):
    (tmp_path / name).write_text(content)
    flags = ["--config", name if name.startswith("c.") else "c.json"]
    generate("--save-latents", "a.st", *flags, *SMALL).must_be_refused(*mentions)
    assert not (tmp_path / "a.st").exists()


def test_switches_of_a_record_can_be_taken_back(generate, equitile, tmp_path):
    made(generate("--save-latents", "a.st", "--vae-tiling", *SMALL))
    assert parameters(tmp_path / "a.st.json")["vae_tiling"] is True
    made(equitile("generate", "--from", "a.st.json", "--no-vae-tiling", "--save-latents", "b.st"))
    assert parameters(tmp_path / "b.st.json")["vae_tiling"] is False


def test_sidecars_of_the_first_version(generate, equitile, tmp_path):
    made(generate("--save-latents", "a.st", "--ranks", 3, "--planner", "ring", "--wire", "bf16", *SMALL))
    record = json.loads((tmp_path / "a.st.json").read_text())
    for key in "target", "ranks", "reuse_threshold", "machine", "machine_hash":
        del record["parameters"][key]
    record["equitile"] = "0.1.0"
    (tmp_path / "old.json").write_text(json.dumps(record))
    made(equitile("generate", "--from", "old.json", "--save-latents", "b.st", "-t", 1))
    assert sha256(tmp_path / "a.st") == sha256(tmp_path / "b.st")
    record["parameters"]["glitter"] = 3
    (tmp_path / "new.json").write_text(json.dumps({**record, "equitile": "9.0.0"}))
    equitile("generate", "--from", "new.json", "--save-latents", "b.st").must_be_refused("new.json", "'glitter'", "9.0.0")


def test_another_simd_target(generate, equitile, tmp_path):
    best = json.loads(made(generate("--save-latents", "best.st", "--json", *SMALL)).out)["run"]["target"]
    assert best != "portable"
    flags = ["--save-latents", "a.st", "--keep-checkpoint", *SMALL]
    made(generate(*flags, EQUITILE_TARGET="portable"))
    portable = sha256(tmp_path / "a.st")
    assert portable != sha256(tmp_path / "best.st")
    # --resume compares; whoever insists is told.
    generate(*flags, "--resume").must_be_refused("a.st.ckpt", "portable", best, "--allow-other-target")
    made(generate(*flags, "--resume", EQUITILE_TARGET="portable"))
    assert sha256(tmp_path / "a.st") == portable
    # --from makes the same again, with the target of the run; whoever sets one has it.
    made(equitile("generate", "--from", "a.st.json", "--save-latents", "b.st"))
    assert sha256(tmp_path / "b.st") == portable and parameters(tmp_path / "b.st.json")["target"] == "portable"
    made(equitile("generate", "--from", "a.st.json", "--save-latents", "c.st", EQUITILE_TARGET=best))
    assert sha256(tmp_path / "c.st") == sha256(tmp_path / "best.st")
    told = made(generate(*flags, "--resume", "--allow-other-target"))
    assert told.err.count("\n") == 1 and "a.st.ckpt" in told.err and "portable" in told.err and best in told.err
    run = json.loads((tmp_path / "a.st.json").read_text())["run"]
    assert (run["target"], run["target_before"]) == (best, "portable")


def test_avx2_and_avx512_give_the_same_bits(generate, equitile, tmp_path):
    """So runs move between machines that have one or the other."""
    if json.loads(made(generate("--save-latents", "best.st", "--json", *SMALL)).out)["run"]["target"][:6] != "avx512":
        pytest.skip("this machine lacks avx512")
    for number, ways in enumerate([[], ["--attention", "predict", "--dense-steps", 1], ["--compute", "int16"], ["--compute", "int8"]]):
        flags = [*ways, *SMALL]
        digests = set()
        for target in "avx2", "avx512":
            name = f"{number}-{target}"
            made(generate("--save-latents", f"{name}.st", "-o", f"{name}/%05d.png", *flags, EQUITILE_TARGET=target))
            frames = sorted((tmp_path / name).glob("*.png"))
            digests.add((sha256(tmp_path / f"{name}.st"), *map(sha256, frames)))
            assert parameters(tmp_path / f"{name}.json")["target"] == "fma"
        assert len(digests) == 1, ways
    # Records of before held the target itself; both are the same run.
    record = json.loads((tmp_path / "best.st.json").read_text())
    record["parameters"]["target"] = "avx2"
    (tmp_path / "old.json").write_text(json.dumps(record))
    again = json.loads(made(equitile("generate", "--from", "old.json", "--save-latents", "again.st", "--json")).out)
    assert again["run"]["target"][:6] == "avx512" and sha256(tmp_path / "again.st") == sha256(tmp_path / "best.st")


def test_targets_that_this_machine_does_not_have(generate, equitile, tmp_path):
    made(generate("--save-latents", "a.st", *SMALL))
    record = json.loads((tmp_path / "a.st.json").read_text())
    foreign = "neon" if record["run"]["target"] != "neon" else "avx2"
    record["parameters"]["target"] = foreign
    (tmp_path / "b.json").write_text(json.dumps(record))
    equitile("generate", "--from", "b.json", "--save-latents", "c.st").must_be_refused(foreign, "--allow-other-target")
    made(equitile("generate", "--from", "b.json", "--save-latents", "c.st", "--allow-other-target"))
    assert sha256(tmp_path / "c.st") == sha256(tmp_path / "a.st")


def test_masks_and_orders_of_layers_on_ranks(generate, tmp_path):
    """[layers, lanes, q, kv] with orders by lane: the same bits on one, two and three ranks."""
    size = ["-t", 1, "-W", 128, "-H", 96, "--video-frames", 9, "--steps", 2]  # 3 x 6 x 8 = 144 tokens: nine blocks of 16
    rng = np.random.default_rng(3)
    mask = rng.random((LAYERS, HEADS, 9, 9)) < 0.4
    mask[0, 0, 3] = False  # a row without blocks
    np.save(tmp_path / "m.npy", mask)
    orders = [["fhw", "hwf", "wfh"][head % 3] for head in range(HEADS)]
    (tmp_path / "m.json").write_text(json.dumps({"version": 1, "block": 16, "q_tokens": 144, "kv_tokens": 144, "grid": [3, 6, 8],
                                                 "orders": orders}))
    for ranks in 1, 2, 3:
        made(generate("--save-latents", f"{ranks}.st", "--attention", "mask:m.npy", "--ranks", ranks, *size))
    assert len({sha256(tmp_path / f"{ranks}.st") for ranks in (1, 2, 3)}) == 1
    # Layers have masks of their own, and orders count.
    np.save(tmp_path / "m.npy", np.repeat(mask[:1], LAYERS, axis=0))
    made(generate("--save-latents", "first.st", "--attention", "mask:m.npy", *size))
    assert sha256(tmp_path / "first.st") != sha256(tmp_path / "1.st")
    np.save(tmp_path / "m.npy", mask)
    description = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps({**description, "orders": "fhw"}))
    made(generate("--save-latents", "natural.st", "--attention", "mask:m.npy", *size))
    assert sha256(tmp_path / "natural.st") != sha256(tmp_path / "1.st")


def write_machine(path, gflops=50):
    kernel = [{"head_dim": 32, "block": 64, "dtype": "f32", "gflops": gflops, "row_seconds": 0}]
    path.write_text(json.dumps({"version": 1, "target": "avx2", "threads": 1, "peak_gflops": 100, "pack_bytes_per_second": 1e9,
                                "kernel": kernel, "links": []}))


def write_masks(folder):
    for name, kept in ("a", 1), ("b", 0):
        mask = np.ones((HEADS, 2, 2), bool)
        mask[0, 0, 1] = kept
        np.save(folder / f"{name}.npy", mask)
        (folder / f"{name}.json").write_text(json.dumps({"version": 1, "block": 16, "q_tokens": 24, "kv_tokens": 24}))


def differing(folder, first, second, command=("generate", "--save-latents", "out.st")):
    """Two ranks with flags of their own: refused soon, in one line of ours; that line."""
    base = [os.environ["EQUITILE"], *command]
    words = [*MPIRUN, "-n", 1, *base, *first, ":", "-n", 1, *base, *second]
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("equitile: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert not (folder / "out.st").exists()
    return lines[0]


@needs_mpirun
def test_ranks_agree_on_the_whole_recipe(tmp_path):
    write_machine(tmp_path / "fast.json")
    write_machine(tmp_path / "slow.json", 20)
    write_masks(tmp_path)
    base = ["-m", MINI, "-p", "a star", *SMALL]
    for first, second, name in (
            ([], ["--machine", "fast.json"], "file of the machine"), (["--machine", "fast.json"], ["--machine", "slow.json"], "machine"),
            (["--attention", "mask:a.npy"], ["--attention", "mask:b.npy"], "mask"), ([], ["--planner", "ulysses"], "layout"),
            ([], ["--trace", "t.json"], "--trace")):
        line = differing(tmp_path, [*base, *first], [*base, *second])
        assert f"rank 1 has another {name} than rank 0" in line, line


@needs_mpirun
def test_ranks_of_other_commands_agree_too(tmp_path):
    write_masks(tmp_path)
    base = ["-m", MINI, *SMALL]
    masks = [["--attention", f"mask:{name}.npy"] for name in "ab"]
    for first, second, name in ((*masks, "mask"), ([], ["--cfg-scale", 2], "guidance"), ([], ["-t", "1,2"], "--threads")):
        verify = ("verify", "-p", "a star", *[word for word in base if word not in ("-t", 1)])
        line = differing(tmp_path, first, second, verify)
        assert f"rank 1 has another {name} than rank 0" in line, line
    (tmp_path / "p.txt").write_text("a star\n")
    flags = " ".join(map(str, base))
    for side, other in ("a", "b"), ("b", "a"):
        sides = [[f"--{side}", f"{flags} --attention mask:{mask}.npy", f"--{other}", flags] for mask in "ab"]
        line = differing(tmp_path, *sides, ("compare", "--prompts", "p.txt"))
        assert f"rank 1 has another mask of --{side} than rank 0" in line, line


@needs_mpirun
def test_a_run_of_processes_goes_on(generate, tmp_path):
    """The checkpoint is rank 0's; what is wrong with it is said once."""
    made(generate("--save-latents", "a.st", "--keep-checkpoint", *SMALL))
    first = sha256(tmp_path / "a.st")
    command = [*MPIRUN, "-n", 2, os.environ["EQUITILE"], "generate", "-m", MINI, "-p", "a star", "--save-latents", "a.st", "--resume", *SMALL]

    def run(*flags, **environment):
        return subprocess.run(list(map(str, [*command, *flags])), cwd=tmp_path, capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment})

    done = run("-s", 43)
    assert done.returncode == 2 and done.stderr.count("its seed is '42', not '43'") == 1, done.stderr
    done = run(EQUITILE_TARGET="portable")
    assert done.returncode == 2 and done.stderr.count("EQUITILE_TARGET=") == 1, done.stderr
    done = run()
    assert done.returncode == 0 and sha256(tmp_path / "a.st") == first, done.stderr
