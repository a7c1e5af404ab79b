"""What the peer benches share: torch or a word on how to get it, equitile's kernels, and fair timing."""
import ctypes
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def import_torch(threads):
    try:
        import torch
    except ImportError:
        print("this bench compares with torch, which is not installed. For example:\n"
              "  python3 -m venv /tmp/torch\n"
              "  /tmp/torch/bin/pip install torch==2.13.0 numpy    (the CPU build)\n"
              f"  /tmp/torch/bin/python {sys.argv[0]}", file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def import_diffusers():
    try:
        import diffusers
        import transformers  # noqa: F401 (WanPipeline's text encoder)
    except ImportError as error:
        sys.exit(f"this bench compares with diffusers, and {error.name} is not installed beside torch. For example:\n"
                 f"  {sys.executable} -m pip install diffusers==0.42.1 transformers")
    return diffusers


def import_equitile():
    """The Python package: as installed by `pip install .`, else from the build folder, where this Python can load it."""
    try:
        import equitile
    except ImportError:
        subprocess.run([ROOT / "scripts/build", "release", "equitile_python"], check=True)
        sys.path.insert(0, str(ROOT / "build/release/python"))
        try:
            import equitile
        except ImportError as error:
            sys.exit(f"this Python cannot load the package from the build folder ({error}); run `pip install .` with it first")
    return equitile


def load_equitile():
    """The kernels as C functions (see the .cc files here), built where they are not yet."""
    subprocess.run([ROOT / "scripts/build", "release", "equitile_peers"], check=True)
    library = ctypes.CDLL(str(ROOT / "build/release/bench/peers/libequitile_peers.so"))
    library.equitile_error.restype = ctypes.c_char_p
    library.equitile_target.restype = ctypes.c_char_p
    return library


def pointer(tensor):
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def interleaved(contestants, rounds=12, seconds=0.1, settle=0.02):
    """Median seconds of each of {name: callable}, in turns. Each turn runs for `seconds`, after runs of `settle` that do
    not count: by then the threads of the one before have stopped spinning and its data has left the cache."""
    times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            begin = time.perf_counter()
            run()
            while time.perf_counter() - begin < settle:
                run()
            begin = end = time.perf_counter()
            while end - begin < seconds:
                start = time.perf_counter()
                run()
                end = time.perf_counter()
                times[name].append(end - start)
    return {name: statistics.median(values) for name, values in times.items()}
