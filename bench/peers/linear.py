#!/usr/bin/env python3
"""Is equitile's linear layer faster than torch's? Both compute x W^T + bias on the same numbers, in turns, in one process.

  bench/peers/linear.py [--threads 2] [--size TOKENSxINxOUT ...]

Needs torch (says how to get it where it is missing). Exit code 1 when a result is wrong."""
import argparse
import math
import sys

import peers

SIZES = [(4096, 1536, 1536), (4096, 1536, 8960), (3328, 192, 576), (3328, 192, 192)]


class EquitileLinear:
    def __init__(self, library, threads, weights):
        self.library = library
        out, inputs = weights.shape
        library.equitile_linear_new.restype = peers.ctypes.c_void_p
        self.handle = peers.ctypes.c_void_p(library.equitile_linear_new(
            threads, peers.pointer(weights), peers.ctypes.c_int64(inputs), peers.ctypes.c_int64(out)))
        if not self.handle:
            sys.exit(library.equitile_error().decode())

    def __call__(self, x, bias, y):
        if not self.library.equitile_linear_run(self.handle, peers.pointer(x), peers.ctypes.c_int64(x.shape[0]),
                                                peers.pointer(bias), peers.pointer(y)):
            sys.exit(self.library.equitile_error().decode())

    def __del__(self):
        self.library.equitile_linear_delete(self.handle)


def check(torch, name, y, x, weights, bias):
    """Against double precision, on some rows. A sum of n products errs by about 2^-24 sqrt(n) of its size; eight times
    that is never seen."""
    rows = torch.linspace(0, len(x) - 1, min(len(x), 16)).long()
    exact = x[rows].double() @ weights.double().T + bias.double()
    error = (y[rows].double() - exact).abs().max().item()
    tolerance = 8 * 2**-24 * math.sqrt(x.shape[1]) * exact.abs().max().item()
    if not error <= tolerance:
        sys.exit(f"{name} is off by {error:.2g}, which is more than {tolerance:.2g}: not timed")


def compare(torch, library, threads, tokens, inputs, out):
    generator = torch.Generator().manual_seed(1)
    x, weights, bias = (torch.rand(shape, generator=generator) * 2 - 1 for shape in ((tokens, inputs), (out, inputs), (out,)))
    layer = EquitileLinear(library, threads, weights)
    y = torch.empty(tokens, out)
    layer(x, bias, y)
    check(torch, "equitile", y, x, weights, bias)
    check(torch, "torch", torch.nn.functional.linear(x, weights, bias), x, weights, bias)
    return peers.interleaved({"torch": lambda: torch.nn.functional.linear(x, weights, bias),
                              "equitile": lambda: layer(x, bias, y)})


def parse_size(text):
    tokens, inputs, out = map(int, text.split("x"))
    if min(tokens, inputs, out) < 1:
        raise ValueError(text)
    return tokens, inputs, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", nargs="+", type=parse_size, default=SIZES, help="TOKENSxINxOUT")
    arguments = parser.parse_args()
    torch = peers.import_torch(arguments.threads)
    library = peers.load_equitile()
    print(f"torch {torch.__version__}, equitile on {library.equitile_target().decode()}, {arguments.threads} threads")
    print(f"{'tokens':>7} {'in':>6} {'out':>6} {'torch GFLOP/s':>14} {'equitile GFLOP/s':>17} {'ratio':>6}")
    for tokens, inputs, out in arguments.size:
        seconds = compare(torch, library, arguments.threads, tokens, inputs, out)
        gflops = {name: 2e-9 * tokens * inputs * out / value for name, value in seconds.items()}
        print(f"{tokens:7} {inputs:6} {out:6} {gflops['torch']:14.1f} {gflops['equitile']:17.1f} "
              f"{gflops['equitile'] / gflops['torch']:6.2f}", flush=True)


if __name__ == "__main__":
    main()
