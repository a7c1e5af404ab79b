"""Videos from prompts, block-sparse attention, and plans that spread it evenly over ranks.

>>> import numpy as np, equitile
>>> mask = np.tril(np.ones((24, 64, 64), bool))              # [heads, q blocks, kv blocks]
>>> plan = equitile.plan(mask, ranks=8)
>>> plan.rho < 1.01, plan.row_owner.shape                    # which rank computes which row
(True, (24, 64))
"""

from __future__ import annotations

import json as _json
import math as _math
from typing import Any, NamedTuple, Sequence

import numpy as _np

from . import _core
from ._masks import layers_of as _layers_of
from ._masks import one_layer_of as _one_layer_of
from ._pipeline import Pipeline, Step, Video

__all__ = ["Pipeline", "Plan", "Step", "Transfer", "Video", "attention", "plan", "target"]
__version__: str = _core.version()


class Transfer(NamedTuple):
    """Blocks [begin, end) of one lane that move from rank to rank in one stage. Of a block that lies on several ranks each sends,
    or gets back, its own tokens."""

    stage: int
    cargo: str  # "q", "kv", "o", or "means" of skipped blocks
    source: int
    destination: int
    lane: int
    begin: int
    end: int
    tokens: int


class Plan:
    """A plan and everything there is to say about it.

    Attributes are the names of `equitile plan --json`: planner, rho, rho_paper, bound, bound_any, moved_q_blocks, moved_kv_blocks,
    bytes_max, bytes_mean, messages, buffer_bytes_max, predicted_seconds, predicted_compute, predicted_exchange, predicted_pack, predicted_wait,
    plan_seconds, hash, work_per_rank, row_owner, chosen (what auto took; else the planner itself) and, where they exist, head_perm, q_owner, kv_owner.
    """

    def __init__(self, report: dict[str, Any], text: str, transfers: list[Transfer]) -> None:
        self._report = report
        self._text = text
        self.transfers = transfers
        self.row_owner: _np.ndarray = _np.asarray(report["row_owner"], _np.int32)  # [lanes, q_blocks]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_report"][name]
        except KeyError:
            raise AttributeError(f"a plan has no '{name}'; it has {', '.join(sorted(self._report))}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._report})

    def receives(self, rank: int) -> list[Transfer]:
        """What arrives at a rank from others."""
        return [t for t in self.transfers if t.destination == rank]

    def sends(self, rank: int) -> list[Transfer]:
        """What leaves a rank for others."""
        return [t for t in self.transfers if t.source == rank]

    def to_json(self) -> str:
        """The plan as `equitile plan --out` writes it and `equitile inspect` reads it."""
        return self._text

    @classmethod
    def from_json(cls, text: str, mask: Any) -> Plan:
        """A plan from to_json() or `equitile plan --out`, with the mask that it was made for. Seconds are predicted with the default
        rates. Raises ValueError where the text is no plan, or one for another mask."""
        try:
            batch = int(_json.loads(text)["batch"])
        except (ValueError, TypeError, KeyError):  # what is wrong with it is said by its reader
            batch = 1
        return cls._of(*_core.read_plan(text, _one_layer_of(mask, batch)))

    @classmethod
    def _of(cls, report: str, text: str, transfers: list[tuple]) -> Plan:
        return cls(_json.loads(report), text, [Transfer(*transfer) for transfer in transfers])

    def __repr__(self) -> str:
        return f"<equitile.Plan {self.planner} rho={self.rho:.4f} ranks={len(self.work_per_rank)} hash={self.hash}>"


def _machine_text(machine: Any) -> str:
    """A machine file, by its name or as the dict that it holds."""
    if machine is None:
        return ""
    if isinstance(machine, dict):
        return _json.dumps(machine)
    with open(machine, encoding="utf-8") as file:
        return file.read()


def plan(
    mask: Any,
    ranks: int,
    planner: str = "auto",
    *,
    block: int = 64,
    head_dim: int = 128,
    compute: str = "f32",
    batch: int = 1,
    reproducible: bool = True,
    layers: bool = False,
    machine: Any = None,
    kernel_gflops: float | None = None,
    link: str = "",
    node_size: int = 0,
    node_link: str = "",
    speeds: Sequence[float] = (),
    reward: float = 2.0,
    dbsp_blocks: str = "greedy",
    dbsp_head_order: str = "assignment",
    dbsp_balance: str = "both",
) -> Plan | list[Plan]:
    """Decides which rank computes which rows of a block mask, and what moves.

    mask: bool, uint8 or int64 of 0 and 1, [heads, q blocks, kv blocks] or [batch, heads, q, kv], or the name of an .npy, .npz or .pt
    file; with layers=True one more axis in front, and a list of plans. machine: rates as `equitile bench machine --out` writes them, a
    file or a dict; kernel_gflops (100), link ("100Gb/s,2us") and node_link count more. planner: "auto", "fractional", "ulysses", "ring",
    "usp:UxR", "dbsp:UxR", "dbsp+:UxR" or "dbsp:auto". compute: the arithmetic of attention ("f32", "int16", "int8"), whose rates and bytes on
    the wire count; a machine file without them gets a warning. The other options are those of `equitile plan`. Raises ValueError for what cannot be used.
    """
    plans = [
        Plan._of(*_core.plan(
            array, ranks, planner, block, head_dim, compute, reproducible, _machine_text(machine), kernel_gflops, link, node_size, node_link,
            list(speeds), reward, dbsp_blocks, dbsp_head_order, dbsp_balance))
        for array in _layers_of(mask, batch, layers)
    ]
    return plans if layers else plans[0]


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    block: int = 64,
    scale: float | None = None,
    layout: str = "bshd",
    threads: int = 0,
    compute: str = "f32",
) -> tuple[Any, Any]:
    """softmax(scale * q k^T) v over the kept blocks; returns (out, lse).

    q, k, v: [batch, tokens, heads, head_dim] (layout "bshd") or [batch, heads, tokens, head_dim] ("bhsd"), NumPy arrays or CPU tensors
    of PyTorch (any library with DLPack), float32, float16 or bfloat16, read without a copy. mask: [heads, q blocks, kv blocks] or with
    batch; None: dense. out has q's layout, dtype and kind; lse is float32 [batch, heads, tokens], -inf where a query keeps nothing.
    scale: 1/sqrt(head_dim) by default; threads: 0 means all cores allowed. compute: "f32", or "int16" or "int8", which round every
    token of q, k and v to integers with a scale of its own. Raises ValueError for what cannot be used.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if getattr(tensor, "requires_grad", False):
            raise ValueError(f"{name} requires grad, and there is no backward pass; give {name}.detach()")
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout '{layout}': use bshd or bhsd")
    if len(q.shape) != 4:
        raise ValueError(f"q has {len(q.shape)} dimensions; it needs 4")
    swap = layout == "bhsd"
    as_tokens = (lambda x: x.swapaxes(1, 2)) if swap else (lambda x: x)
    is_torch = type(q).__module__.split(".")[0] == "torch"
    if is_torch:
        import torch

        out = torch.empty(tuple(q.shape), dtype=q.dtype)
    else:
        out = _np.empty(q.shape, q.dtype)
    batch, tokens, heads, head_dim = as_tokens(q).shape
    lse = _np.full((batch, heads, tokens), -_np.inf, _np.float32)
    _core.attention(
        as_tokens(q), as_tokens(k), as_tokens(v), as_tokens(out), lse, None if mask is None else _one_layer_of(mask, batch), block,
        1.0 / _math.sqrt(head_dim) if scale is None else scale, threads, compute)
    return out, (torch.from_numpy(lse) if is_torch else lse)


def target() -> str:
    """The SIMD target in use: "avx512", "avx2", "sse4", "neon" or "portable"; the environment variable EQUITILE_TARGET forces one."""
    return _core.target()
