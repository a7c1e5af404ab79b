#!/usr/bin/env python3
"""Is equitile's attention faster than torch's? Dense against scaled_dot_product_attention, block-sparse against compiled
flex_attention (blocks of 128), on the same tensors, in turns, in one process.

  bench/peers/attention.py [--threads 2] [--tokens 8192] [--heads 4] [--head-dim 128 64 32] [--density 0.25] [--no-flex]

Needs torch (says how to get it where it is missing). Exit code 1 when a result is wrong."""
import argparse
import os
import sys

import peers

FLEX_BLOCK = 128  # the smallest that flex_attention is compiled for by default


def random_mask(torch, heads, blocks, density):
    """Exactly round(density * blocks) blocks per row, at least 1."""
    generator = torch.Generator().manual_seed(1)
    keep = max(1, round(density * blocks))
    order = torch.rand((heads, blocks, blocks), generator=generator).argsort(-1)
    return torch.zeros((heads, blocks, blocks), dtype=torch.bool).scatter_(-1, order[..., :keep], True)


def flex(torch, q, k, v, mask):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def keep(b, h, q_index, k_index):
        return mask[h, q_index // FLEX_BLOCK, k_index // FLEX_BLOCK]

    blocks = create_block_mask(keep, 1, q.shape[1], q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=FLEX_BLOCK)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=blocks)


def agree(torch, name, a, b, v):
    """Both err by about 2^-24 sqrt(keys) of what they average; sixteen times that is never seen."""
    error = (a - b).abs().max().item()
    tolerance = 16 * 2**-24 * v.shape[2] ** 0.5 * v.abs().max().item()
    if not error <= tolerance:
        sys.exit(f"{name} and equitile differ by {error:.2g}, which is more than {tolerance:.2g}: not timed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", nargs="+", type=int, default=[128, 64, 32])
    parser.add_argument("--density", type=float, default=0.25)
    parser.add_argument("--no-flex", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("CXX", "g++")  # what torch compiles flex_attention with
    torch = peers.import_torch(arguments.threads)
    equitile = peers.import_equitile()
    print(f"torch {torch.__version__}, equitile on {equitile.target()}, {arguments.threads} threads, "
          f"{arguments.heads} heads, {arguments.tokens} tokens")
    print(f"{'head_dim':>8} {'density':>8} {'peer':>6} {'peer GFLOP/s':>13} {'equitile GFLOP/s':>17} {'ratio':>6}")
    for head_dim in arguments.head_dim:
        generator = torch.Generator().manual_seed(2)
        q, k, v = (torch.randn((1, arguments.heads, arguments.tokens, head_dim), generator=generator) for _ in range(3))

        def report(name, density, peer, ours):
            agree(torch, name, peer(), ours()[0], v)
            seconds = peers.interleaved({name: peer, "equitile": ours}, rounds=6, seconds=0.3)
            flops = 4e-9 * head_dim * arguments.heads * arguments.tokens**2 * density
            print(f"{head_dim:8} {density:8.2f} {name:>6} {flops / seconds[name]:13.1f} {flops / seconds['equitile']:17.1f} "
                  f"{seconds[name] / seconds['equitile']:6.2f}", flush=True)

        report("sdpa", 1.0, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
               lambda: equitile.attention(q, k, v, layout="bhsd", threads=arguments.threads))
        if arguments.no_flex or arguments.tokens % FLEX_BLOCK:
            continue
        mask = random_mask(torch, arguments.heads, arguments.tokens // FLEX_BLOCK, arguments.density)
        report("flex", mask.float().mean().item(), flex(torch, q, k, v, mask),
               lambda: equitile.attention(q, k, v, mask=mask, block=FLEX_BLOCK, layout="bhsd", threads=arguments.threads))


if __name__ == "__main__":
    main()
