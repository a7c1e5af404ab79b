#!/usr/bin/env python3
"""How much faster than diffusers is `equitile generate` from prompt to video file? Each in a process of its own, in turns: loading,
text, all steps, decoding, encoding. The same checkpoint, prompt, seed and numbers.

  bench/peers/diffusers_e2e.py [--model models/wan-mini] [--frames 49 --height 256 --width 256] [--steps 20] [--threads 2]
                               [--way exact --way "draft=--quality draft" …] [--rounds 3] [--json FILE]

diffusers gets what is known to help it on CPUs: convolution weights of the VAE with channels last (`--peer plain` goes without), malloc
that keeps its pages, f32 and bf16, of which the faster counts. Ways to run equitile: NAME=FLAGS; every one beside its own dense f32 frames.

Needs torch, diffusers and transformers (says how to get them where they are missing). diffusers ends with 8-bit frames in
memory, not with a video: its export needs a package more. Exit code 1 when dense f32 frames of the two differ too much."""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

import peers

PSNR = 35.0  # of 8-bit frames of the two: roundings grow over the steps
WAYS = ["exact=", "int16=--compute int16", "int8=--compute int8", "high=--quality high", "balanced=--quality balanced",
        "draft=--quality draft", "int8, observe, cache=--compute int8 --attention observe:error=0.02 --cache easy"]
PEERS = {"tuned": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}, "plain": {}}  # environment
DTYPES = ["float32", "bfloat16"]
HOPELESS = 1.3  # times the other dtype in a first round: not timed again


def diffusers_run(arguments):
    import numpy
    import torch
    torch.set_num_threads(arguments.threads)
    from diffusers import WanPipeline
    settings = {}
    file = pathlib.Path(arguments.model) / "generation_config.json"
    if file.exists():
        settings = json.loads(file.read_text())
    pipeline = WanPipeline.from_pretrained(arguments.model, torch_dtype=getattr(torch, arguments.dtype))
    pipeline.set_progress_bar_config(disable=True)
    if arguments.peer == "tuned":
        for parameter in pipeline.vae.parameters():
            if parameter.ndim == 5:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)
    frames = pipeline(prompt=arguments.prompt, negative_prompt="", height=arguments.height, width=arguments.width,
                      num_frames=arguments.frames, num_inference_steps=arguments.steps,
                      guidance_scale=settings.get("guidance_scale", 5.0), output_type="np",
                      max_sequence_length=settings.get("max_sequence_length", 512),
                      generator=torch.Generator("cpu").manual_seed(arguments.seed)).frames[0]
    numpy.save(arguments.alone, (frames * 255).astype(numpy.uint8))


def equitile_command(arguments, flags, out):
    return [str(peers.ROOT / "build/release/apps/equitile"), "generate", "-m", arguments.model, "-p", arguments.prompt, "-n", "",
            "-o", str(out), "-W", str(arguments.width), "-H", str(arguments.height), "--video-frames", str(arguments.frames),
            "--steps", str(arguments.steps), "-s", str(arguments.seed), "-t", str(arguments.threads), *flags]


def diffusers_command(arguments, dtype, out):
    return [sys.executable, __file__, "--alone", str(out), "--dtype", dtype, "--peer", arguments.peer, "--model", arguments.model,
            "--prompt", arguments.prompt, "--frames", str(arguments.frames), "--height", str(arguments.height), "--width", str(arguments.width),
            "--steps", str(arguments.steps), "--seed", str(arguments.seed), "--threads", str(arguments.threads)]


def timed(command, arguments, environment={}):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**os.environ, **environment, "OMP_NUM_THREADS": str(arguments.threads)})
    return time.perf_counter() - begin


def frames_of(folder, count):
    import numpy
    from PIL import Image
    return numpy.stack([numpy.asarray(Image.open(folder / f"{i:05d}.png")) for i in range(count)]).astype(float)


def psnr(a, b):
    import numpy
    squares = ((a - b) ** 2).mean()
    return None if squares == 0 else float(10 * numpy.log10(255**2 / squares))


def likeness(arguments, ways, folder):
    """PSNR of every way beside dense f32, whose frames must be diffusers' own."""
    import numpy
    for name, flags in ways.items():
        (folder / name).mkdir()
        timed(equitile_command(arguments, flags, folder / name / "%05d.png"), arguments)
    (folder / "dense f32").mkdir()
    timed(equitile_command(arguments, [], folder / "dense f32" / "%05d.png"), arguments)
    ours = frames_of(folder / "dense f32", arguments.frames)
    timed(diffusers_command(arguments, "float32", folder / "diffusers.npy"), arguments, PEERS[arguments.peer])
    agree = psnr(ours, numpy.load(folder / "diffusers.npy").astype(float))
    print(f"dense f32 frames of the two agree to {agree:.1f} dB", file=sys.stderr)
    if agree < PSNR:
        sys.exit(f"less than {PSNR} dB: not timed")
    return {name: psnr(ours, frames_of(folder / name, arguments.frames)) for name in ways}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(peers.ROOT / "models/wan-mini"))
    parser.add_argument("--prompt", default="a red circle bounces on a black background")
    parser.add_argument("--frames", type=int, default=49)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", action="append", metavar="NAME=FLAGS")
    parser.add_argument("--peer", choices=PEERS, default="tuned")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="the figures, as ratios")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        return diffusers_run(arguments)
    peers.import_torch(arguments.threads)
    peers.import_diffusers()
    subprocess.run([peers.ROOT / "scripts/build", "release", "equitile_app"], check=True)
    ways = {name: shlex.split(flags) for name, _, flags in (way.partition("=") for way in arguments.way or WAYS)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        alike = likeness(arguments, ways, folder)
        theirs, ours = {dtype: [] for dtype in DTYPES}, {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for dtype, seconds in theirs.items():
                if seconds and min(seconds) > HOPELESS * min(map(min, theirs.values())):
                    continue
                seconds.append(timed(diffusers_command(arguments, dtype, folder / "diffusers.npy"), arguments, PEERS[arguments.peer]))
            for name, seconds in ours.items():
                seconds.append(timed(equitile_command(arguments, ways[name], folder / "out.mp4"), arguments))
    best = {dtype: min(seconds) for dtype, seconds in theirs.items()}
    faster = min(best, key=best.get)
    print(f"diffusers ({arguments.peer}), best of {arguments.rounds}: " + ", ".join(f"{dtype} {seconds:.1f} s" for dtype, seconds in best.items()))
    figures = {name: {"flags": " ".join(ways[name]), "speedup": best[faster] / min(seconds), "psnr": alike[name],
                      "spread": max(seconds) / min(seconds)} for name, seconds in ours.items()}
    for name, figure in figures.items():
        likeness_said = "the same frames" if figure["psnr"] is None else f"{figure['psnr']:.1f} dB"
        print(f"{name}: {min(ours[name]):.1f} s, {figure['speedup']:.2f} times as fast as diffusers in {faster}, {likeness_said}")
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"video": {key: getattr(arguments, key) for key in ("frames", "height", "width", "steps", "seed", "threads", "prompt")},
             "peer": arguments.peer, "faster": faster, "other_dtype_over_faster": max(best.values()) / min(best.values()),
             "rounds": arguments.rounds, "ways": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
