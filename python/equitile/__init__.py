"""Block-sparse attention, and plans that spread it evenly over ranks.

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

__all__ = ["Plan", "Transfer", "attention", "plan", "target"]


class Transfer(NamedTuple):
    """Blocks [begin, end) of one lane that move in one stage; HOME stands for the ranks at which their tokens are at home."""

    stage: int
    cargo: str  # "q", "kv" or "o"
    source: int
    destination: int
    lane: int
    begin: int
    end: int


HOME = -1


class Plan:
    """A plan and everything there is to say about it.

    Attributes are the names of `equitile plan --json`: planner, rho, rho_paper, bound, bound_any, moved_q_blocks, moved_kv_blocks,
    bytes_max, bytes_mean, messages, buffer_bytes_max, predicted_seconds, predicted_compute, predicted_exchange, predicted_pack, predicted_wait,
    plan_seconds, hash, work_per_rank, row_owner and, where they exist, chosen, head_perm, q_owner, kv_owner.
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
        """What arrives at a rank from elsewhere; sources may be HOME."""
        return [t for t in self.transfers if t.destination == rank and t.source != rank]

    def sends(self, rank: int) -> list[Transfer]:
        """What a rank itself passes on. What it sends as a home follows from `homes` in to_json()."""
        return [t for t in self.transfers if t.source == rank and t.destination != rank]

    def to_json(self) -> str:
        """The plan as `equitile plan --out` writes it and `equitile inspect` reads it."""
        return self._text

    def __repr__(self) -> str:
        return f"<equitile.Plan {self.planner} rho={self.rho:.4f} ranks={len(self.work_per_rank)} hash={self.hash}>"


def _mask(mask: Any, batch: int | None = None) -> _np.ndarray:
    """[batch, heads, q, kv] uint8, whatever was given; one batch item is repeated."""
    array = _np.asarray(mask)
    if array.dtype not in (_np.dtype(bool), _np.dtype(_np.uint8)):
        raise ValueError(f"a mask of dtype {array.dtype}: use bool or uint8")
    if array.ndim == 3:
        array = array[None]
    if array.ndim != 4:
        raise ValueError(f"a mask of shape {array.shape}: use [heads, q, kv] or [batch, heads, q, kv]")
    if batch is not None and array.shape[0] == 1:
        array = _np.broadcast_to(array, (batch, *array.shape[1:]))
    return _np.ascontiguousarray(array.view(_np.uint8) if array.dtype == bool else array)


def plan(
    mask: Any,
    ranks: int,
    planner: str = "auto",
    *,
    block: int = 64,
    head_dim: int = 128,
    batch: int = 1,
    reproducible: bool = True,
    kernel_gflops: float = 100.0,
    link: str = "100Gb/s,2us",
    node_size: int = 0,
    node_link: str = "",
    speeds: Sequence[float] = (),
    reward: float = 2.0,
    dbsp_blocks: str = "greedy",
    dbsp_head_order: str = "assignment",
    dbsp_balance: str = "both",
) -> Plan:
    """Decides which rank computes which rows of a block mask, and what moves.

    mask: bool or uint8, [heads, q blocks, kv blocks] or [batch, heads, q, kv]; planner: "auto", "fractional", "ulysses", "ring",
    "usp:UxR", "dbsp:UxR", "dbsp+:UxR" or "dbsp:auto". The other options are those of `equitile plan`. Raises ValueError for what cannot be used.
    """
    report, text, transfers = _core.plan(
        _mask(mask, batch), ranks, planner, block, head_dim, reproducible, kernel_gflops, link, node_size, node_link, list(speeds), reward,
        dbsp_blocks, dbsp_head_order, dbsp_balance)
    return Plan(_json.loads(report), text, [Transfer(*t) for t in transfers])


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
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout '{layout}': use bshd or bhsd")
    if len(q.shape) != 4:
        raise ValueError(f"q has {len(q.shape)} dimensions; it needs 4")
    swap = layout == "bhsd"
    as_tokens = (lambda x: x.swapaxes(1, 2)) if swap else (lambda x: x)
    is_torch = type(q).__module__.split(".")[0] == "torch"
    if is_torch:
        import torch

        q, k, v = q.detach(), k.detach(), v.detach()
        out = torch.empty(tuple(q.shape), dtype=q.dtype)
    else:
        out = _np.empty(q.shape, q.dtype)
    batch, tokens, heads, head_dim = as_tokens(q).shape
    lse = _np.full((batch, heads, tokens), -_np.inf, _np.float32)
    _core.attention(
        as_tokens(q), as_tokens(k), as_tokens(v), as_tokens(out), lse, None if mask is None else _mask(mask, batch), block,
        1.0 / _math.sqrt(head_dim) if scale is None else scale, threads, compute)
    return out, (torch.from_numpy(lse) if is_torch else lse)


def target() -> str:
    """The SIMD target in use: "avx512", "avx2", "sse4", "neon" or "portable"; the environment variable EQUITILE_TARGET forces one."""
    return _core.target()
