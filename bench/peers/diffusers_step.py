#!/usr/bin/env python3
"""Is a denoising step of equitile faster than that of diffusers, and does it give the same? The same checkpoint, latents and
text, in turns, in one process: the conditional and the unconditional pass of one step. diffusers in f32 and in bf16 (its faster one
counts), equitile in f32, int16 and int8.

  bench/peers/diffusers_step.py [--model models/wan-mini] [--width 256 --height 256 --frames 49] [--threads 2]
  bench/peers/diffusers_step.py --shape wan-1.3b --layers 2 --grid 8 32 32 --passes 1 [--json FILE]
  bench/peers/diffusers_step.py ... --memory       peak memory of each, in processes of their own, above what imports need

Needs torch and diffusers (says how to get them where they are missing). Exit code 1 when the results differ too much."""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import peers

# Of the largest element over the root mean square, beside diffusers in f32. f32: as tests/golden/README.md has it for outputs of one
# pass, taken ten times: trained weights and thousands of tokens sum up more roundings than the tiny checkpoint there. Integers:
# int16 is to be closer than bf16 (about 0.02 with two random layers), int8 within a few times of it.
TOLERANCE = {"f32": 1e-3, "int16": 0.02, "int8": 0.2}

SHAPES = {"wan-1.3b": dict(num_attention_heads=12, ffn_dim=8960), "wan-14b": dict(num_attention_heads=40, ffn_dim=13824)}


def random_checkpoint(torch, diffusers, arguments, folder):
    """A transformer of the given shape with random weights, as diffusers initialises and saves it."""
    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(num_layers=arguments.layers, **SHAPES[arguments.shape])
    model.save_pretrained(folder)


class Diffusers:
    def __init__(self, torch, diffusers, folder, dtype):
        self.torch, self.dtype = torch, dtype
        self.model = diffusers.WanTransformer3DModel.from_pretrained(folder, torch_dtype=dtype).eval()

    def step(self, inputs):
        timestep = self.torch.tensor([inputs.timestep], dtype=self.torch.float32)
        return [self.model(hidden_states=inputs.latent[None].to(self.dtype), timestep=timestep, encoder_hidden_states=text[None].to(self.dtype),
                           return_dict=False)[0][0].float() for text in inputs.padded]


class Equitile:
    def __init__(self, library, folder, threads, inputs, compute):
        self.library = library
        library.equitile_wan_new.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(library.equitile_wan_new(threads, str(folder).encode(), compute.encode()))
        self.check(self.handle.value)
        for text in inputs.texts:
            self.check(library.equitile_wan_add_text(self.handle, peers.pointer(text), ctypes.c_int64(text.shape[0]),
                                                     ctypes.c_int64(inputs.text_tokens)))

    def check(self, succeeded):
        if not succeeded:
            sys.exit(self.library.equitile_error().decode())

    def step(self, inputs):
        latent = inputs.latent
        velocity = latent.new_empty((len(inputs.texts), *latent.shape))
        sizes = [ctypes.c_int64(size) for size in latent.shape[1:]]
        self.check(self.library.equitile_wan_run(self.handle, peers.pointer(latent), *sizes,
                                                 ctypes.c_float(inputs.timestep), peers.pointer(velocity)))
        return list(velocity)


class Inputs:
    """Latents, and prompts of 20 and 1 rows (conditional, unconditional)."""

    def __init__(self, torch, config, arguments):
        generator = torch.Generator().manual_seed(1)
        if arguments.grid:
            frames, height, width = arguments.grid[0], 2 * arguments.grid[1], 2 * arguments.grid[2]
        else:
            frames, height, width = (arguments.frames - 1) // 4 + 1, arguments.height // 8, arguments.width // 8
        self.latent = torch.randn((config["in_channels"], frames, height, width), generator=generator)
        self.timestep = 900.0
        self.text_tokens = arguments.text_tokens
        rows = [20, 1][:arguments.passes]
        self.texts = [torch.randn((n, config["text_dim"]), generator=generator) for n in rows]
        self.padded = [torch.cat([text, text.new_zeros((self.text_tokens - len(text), text.shape[1]))]) for text in self.texts]
        self.tokens = frames * height * width // 4


def difference(ours, theirs):
    """Largest difference over the root mean square, and the difference's own root mean square over it."""
    of = lambda measure: max((measure(a - b) / b.square().mean().sqrt()).item() for a, b in zip(ours, theirs))
    return of(lambda d: d.abs().max()), of(lambda d: d.square().mean().sqrt())


def in_turns(contestants, inputs, rounds):
    """Seconds of every step of each, in turns; the first round does not count."""
    times = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            begin = time.perf_counter()
            contestant.step(inputs)
            if number > 0:
                times[name].append(time.perf_counter() - begin)
    return times


def memory_bytes(key):
    """VmRSS or VmHWM of this process. (getrusage would count what the parent had before it started us.)"""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def memory_of(name, arguments):
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", name, "--folder", arguments.folder],
                          check=True, capture_output=True, text=True)
    return int(done.stdout)


def only(torch, arguments, config):
    """One contestant by itself: bytes of its peak above what is there before its weights are."""
    inputs = Inputs(torch, config, arguments)
    # Imports, and one operation each, so that what libraries set up does not count.
    torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64))
    library, diffusers = peers.load_equitile(), peers.import_diffusers()
    diffusers.WanTransformer3DModel
    before = memory_bytes("VmRSS")
    if arguments.only == "diffusers":
        Diffusers(torch, diffusers, arguments.folder, torch.float32).step(inputs)
    else:
        Equitile(library, arguments.folder, arguments.threads, inputs, "f32").step(inputs)
    print(memory_bytes("VmHWM") - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(peers.ROOT / "models/wan-mini"))
    parser.add_argument("--shape", choices=SHAPES, help="random weights instead of a checkpoint")
    parser.add_argument("--layers", type=int, default=2, help="of --shape")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--frames", type=int, default=49)
    parser.add_argument("--grid", type=int, nargs=3, metavar=("F", "H", "W"), help="of tokens, instead of a size")
    parser.add_argument("--text-tokens", type=int, help="rows of text that diffusers gets (default: what the checkpoint says, or 512)")
    parser.add_argument("--passes", type=int, default=2, choices=(1, 2), help="1: without guidance")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute", default="f32,int16,int8", help="of equitile")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="ratios, to a file")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only", choices=("diffusers", "equitile"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch = peers.import_torch(arguments.threads)
    diffusers = peers.import_diffusers()
    diffusers.utils.logging.disable_progress_bar()
    if arguments.text_tokens is None:
        generation = pathlib.Path(arguments.model) / "generation_config.json"
        known = json.loads(generation.read_text()) if not arguments.shape and generation.exists() else {}
        arguments.text_tokens = known.get("max_sequence_length", 512)

    with tempfile.TemporaryDirectory() as scratch:
        if arguments.folder is None:
            arguments.folder = scratch if arguments.shape else os.path.join(arguments.model, "transformer")
            if arguments.shape:
                random_checkpoint(torch, diffusers, arguments, scratch)
        config = json.loads((pathlib.Path(arguments.folder) / "config.json").read_text())
        if arguments.only:
            return only(torch, arguments, config)
        if arguments.memory:
            peaks = {name: memory_of(name, arguments) for name in ("diffusers", "equitile")}
            print(" ".join(f"{name} {value / 2**20:.0f} MiB" for name, value in peaks.items())
                  + f"   equitile/diffusers {peaks['equitile'] / peaks['diffusers']:.2f}")
            return None
        inputs = Inputs(torch, config, arguments)
        library = peers.load_equitile()
        computes = arguments.compute.split(",")
        theirs = {f"diffusers {name}": Diffusers(torch, diffusers, arguments.folder, dtype)
                  for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16))}
        ours = {f"equitile {compute}": Equitile(library, arguments.folder, arguments.threads, inputs, compute) for compute in computes}
        print(f"torch {torch.__version__}, diffusers {diffusers.__version__}, equitile on {library.equitile_target().decode()}, "
              f"{arguments.threads} threads, {inputs.tokens} tokens, {arguments.passes} passes", flush=True)
        right = theirs["diffusers f32"].step(inputs)
        errors = {name: difference(one.step(inputs), right) for name, one in (ours | theirs).items()}
        for name, (worst, mean) in errors.items():
            print(f"{name:14} differs from diffusers f32 by {worst:.2g} (largest over rms), {mean:.2g} (rms over rms)", flush=True)
        for compute in computes:
            if not errors[f"equitile {compute}"][0] <= TOLERANCE[compute]:
                sys.exit(f"equitile {compute}: that is more than {TOLERANCE[compute]:g}: not timed")
        times = in_turns(theirs | ours, inputs, arguments.rounds)
        best = {name: min(values) for name, values in times.items()}
        faster = min(theirs, key=best.get)
        print(f"{faster} is their faster one")
        for name, values in times.items():
            print(f"{name:14} median {statistics.median(values):.4f} s  best {best[name]:.4f} s  x {best[faster] / best[name]:.2f} of {faster}")
        if arguments.json:
            arguments.json.write_text(json.dumps({
                "target": library.equitile_target().decode(), "threads": arguments.threads, "tokens": inputs.tokens, "passes": arguments.passes,
                "layers": config["num_layers"], "torch": torch.__version__, "diffusers": diffusers.__version__, "faster": faster,
                "speedup": {name: best[faster] / seconds for name, seconds in best.items()},
                "error": {name: mean for name, (_, mean) in errors.items()}}, indent=1) + "\n")
        return None


if __name__ == "__main__":
    sys.exit(main())
