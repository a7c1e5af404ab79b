#!/usr/bin/env python3
"""Is equitile's VAE decoder faster and smaller than that of diffusers, and does it give the same frames? The same checkpoint
and latents, in turns, in one process, f32.

  bench/peers/diffusers_vae.py [--model models/wan-mini] [--frames 49 --height 256 --width 256] [--threads 2]
  bench/peers/diffusers_vae.py --model wan --frames 9      the autoencoder of Wan 2.1 with random weights
  bench/peers/diffusers_vae.py ... --memory                peak memory of each, in processes of their own, above what imports need

Needs torch and diffusers (says how to get them where they are missing). Exit code 1 when the frames differ too much."""
import argparse
import ctypes
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import peers

TOLERANCE = 1e-3  # of frames in [-1, 1]: an eighth of a level of 8 bits


class Diffusers:
    def __init__(self, torch, folder, threads):
        self.torch = torch
        self.model = peers.import_diffusers().AutoencoderKLWan.from_pretrained(folder, torch_dtype=torch.float32).eval()
        view = (1, -1, 1, 1, 1)
        self.mean = torch.tensor(self.model.config.latents_mean).view(view)
        self.scale = 1.0 / torch.tensor(self.model.config.latents_std).view(view)

    def decode(self, latents):
        """As WanPipeline does; [F, H, W, 3]."""
        return self.model.decode(latents[None] / self.scale + self.mean, return_dict=False)[0][0].permute(1, 2, 3, 0)


class Equitile:
    def __init__(self, torch, folder, threads):
        self.torch = torch
        self.library = peers.load_equitile()
        self.library.equitile_vae_new.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(self.library.equitile_vae_new(str(folder).encode(), threads))
        if not self.handle:
            sys.exit(self.library.equitile_error().decode())

    def decode(self, latents, keep=True):
        """Frames come one by one; `keep` collects them."""
        _, frames, height, width = latents.shape
        rgb = self.torch.empty(4 * (frames - 1) + 1, height * 8, width * 8, 3) if keep else None
        if not self.library.equitile_vae_decode(self.handle, peers.pointer(latents), ctypes.c_int64(frames),
                                                ctypes.c_int64(height), ctypes.c_int64(width),
                                                peers.pointer(rgb) if keep else None):
            sys.exit(self.library.equitile_error().decode())
        return rgb


PEERS = {"diffusers": Diffusers, "equitile": Equitile}


def peak_bytes():
    """Of this process since it began. Not ru_maxrss: a child inherits that of its parent."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def make_latents(torch, arguments):
    generator = torch.Generator().manual_seed(3)
    return torch.randn((16, (arguments.frames - 1) // 4 + 1, arguments.height // 8, arguments.width // 8), generator=generator)


def compare_memory(arguments, folder):
    """Each in its own process, which prints what decoding added to what the imports had taken."""
    used = {}
    for name in PEERS:
        command = [sys.executable, __file__, "--alone", name, "--model", str(folder), "--threads", str(arguments.threads),
                   "--frames", str(arguments.frames), "--height", str(arguments.height), "--width", str(arguments.width)]
        used[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        print(f"{name}: {used[name] / 2**20:.0f} MiB above the imports", flush=True)
    print(f"ratio {used['equitile'] / used['diffusers']:.2f}")


def compare_time(torch, arguments, folder):
    latents = make_latents(torch, arguments)
    contestants = {name: make(torch, folder, arguments.threads) for name, make in PEERS.items()}
    frames = {name: contestant.decode(latents) for name, contestant in contestants.items()}
    error = (frames["diffusers"] - frames["equitile"]).abs().max().item()
    print(f"frames {list(frames['equitile'].shape)} differ by at most {error:.2g}")
    if not error <= TOLERANCE:
        sys.exit(f"more than {TOLERANCE}: not timed")
    del frames
    seconds = {name: [] for name in contestants}
    for _ in range(arguments.rounds):
        for name, contestant in contestants.items():
            begin = time.perf_counter()
            contestant.decode(latents)
            seconds[name].append(time.perf_counter() - begin)
    ratios = [a / b for a, b in zip(seconds["diffusers"], seconds["equitile"])]
    best = {name: min(values) for name, values in seconds.items()}
    for name, value in best.items():
        print(f"{name}: {value:.2f} s at best of {arguments.rounds}")
    print(f"equitile is {best['diffusers'] / best['equitile']:.2f} times as fast (median of rounds "
          f"{statistics.median(ratios):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(peers.ROOT / "models/wan-mini"), help="a checkpoint, its vae folder, or wan")
    parser.add_argument("--frames", type=int, default=49)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--alone", choices=list(PEERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    torch = peers.import_torch(arguments.threads)
    if arguments.alone:
        peers.import_diffusers().AutoencoderKLWan  # loads what it needs
        before = peak_bytes()
        contestant = PEERS[arguments.alone](torch, arguments.model, arguments.threads)
        latents = make_latents(torch, arguments)
        contestant.decode(latents, keep=False) if arguments.alone == "equitile" else contestant.decode(latents)
        print(peak_bytes() - before)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(arguments.model)
        if arguments.model == "wan":
            torch.manual_seed(0)
            folder = pathlib.Path(scratch)
            peers.import_diffusers().AutoencoderKLWan().save_pretrained(folder)
        elif (folder / "vae").is_dir():
            folder = folder / "vae"
        (compare_memory(arguments, folder) if arguments.memory else compare_time(torch, arguments, folder))


if __name__ == "__main__":
    main()
