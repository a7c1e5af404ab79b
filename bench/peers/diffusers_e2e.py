#!/usr/bin/env python3
"""Is `equitile generate` faster than diffusers from prompt to video file? Each in a process of its own, in turns: loading,
text, all steps, decoding, encoding. The same checkpoint, seed and numbers.

  bench/peers/diffusers_e2e.py [--model models/wan-mini] [--frames 49 --height 256 --width 256] [--steps 20] [--threads 2]

Needs torch, diffusers and transformers (says how to get them where they are missing). diffusers ends with 8-bit frames in
memory, not with a video: its export needs a package more. Exit code 1 when the frames differ too much."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import peers

# Of 8-bit frames: roundings grow over the steps.
PSNR = 35.0


def diffusers_run(arguments):
    import numpy
    import torch
    torch.set_num_threads(arguments.threads)
    from diffusers import WanPipeline
    settings = {}
    file = pathlib.Path(arguments.model) / "generation_config.json"
    if file.exists():
        settings = json.loads(file.read_text())
    pipeline = WanPipeline.from_pretrained(arguments.model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    frames = pipeline(prompt=arguments.prompt, negative_prompt="", height=arguments.height, width=arguments.width,
                      num_frames=arguments.frames, num_inference_steps=arguments.steps,
                      guidance_scale=settings.get("guidance_scale", 5.0), output_type="np",
                      max_sequence_length=settings.get("max_sequence_length", 512),
                      generator=torch.Generator("cpu").manual_seed(arguments.seed)).frames[0]
    numpy.save(arguments.alone, (frames * 255).astype(numpy.uint8))


def equitile_command(arguments, out):
    return [str(peers.ROOT / "build/release/apps/equitile"), "generate", "-m", arguments.model, "-p", arguments.prompt, "-n", "",
            "-o", str(out), "-W", str(arguments.width), "-H", str(arguments.height), "--video-frames", str(arguments.frames),
            "--steps", str(arguments.steps), "-s", str(arguments.seed), "-t", str(arguments.threads)]


def diffusers_command(arguments, out):
    return [sys.executable, __file__, "--alone", str(out), "--model", arguments.model, "--prompt", arguments.prompt,
            "--frames", str(arguments.frames), "--height", str(arguments.height), "--width", str(arguments.width),
            "--steps", str(arguments.steps), "--seed", str(arguments.seed), "--threads", str(arguments.threads)]


def timed(command, threads):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return time.perf_counter() - begin


def check(folder, frames):
    """The frames of both, 8 bits, before any encoder."""
    import numpy
    from PIL import Image
    ours = numpy.stack([numpy.asarray(Image.open(folder / f"{i:05d}.png")) for i in range(frames)]).astype(float)
    theirs = numpy.load(folder / "diffusers.npy").astype(float)
    psnr = 10 * numpy.log10(255**2 / max(1e-9, ((ours - theirs) ** 2).mean()))
    print(f"frames agree to {psnr:.1f} dB")
    if psnr < PSNR:
        sys.exit(f"less than {PSNR} dB: not timed")


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
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        return diffusers_run(arguments)
    peers.import_torch(arguments.threads)
    peers.import_diffusers()
    subprocess.run([peers.ROOT / "scripts/build", "release", "equitile_app"], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        timed(equitile_command(arguments, folder / "%05d.png"), arguments.threads)
        timed(diffusers_command(arguments, folder / "diffusers.npy"), arguments.threads)
        check(folder, arguments.frames)
        seconds = {"diffusers": [], "equitile": []}
        for _ in range(arguments.rounds):
            seconds["diffusers"].append(timed(diffusers_command(arguments, folder / "diffusers.npy"), arguments.threads))
            seconds["equitile"].append(timed(equitile_command(arguments, folder / "out.mp4"), arguments.threads))
    for name, values in seconds.items():
        print(f"{name}: {min(values):.1f} s at best of {arguments.rounds}")
    ratio = statistics.median(a / b for a, b in zip(seconds["diffusers"], seconds["equitile"]))
    print(f"equitile is {min(seconds['diffusers']) / min(seconds['equitile']):.2f} times as fast (median of rounds {ratio:.2f})")


if __name__ == "__main__":
    main()
