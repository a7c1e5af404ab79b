"""The Python package, from the build folder, against NumPy."""

import json
import sys

import equitile
import numpy as np
import pytest


def reference(q, k, v, mask, block, scale):
    """[b, s, h, d] in double; mask [b, h, qb, kb]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    keep = mask.astype(bool).repeat(block, 2).repeat(block, 3)[:, :, : q.shape[1], : k.shape[1]]
    s = np.where(keep, np.einsum("bqhd,bkhd->bhqk", q, k) * scale, -np.inf)
    top = s.max(-1, keepdims=True)
    top[~np.isfinite(top)] = 0
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", np.divide(p, total, out=np.zeros_like(p), where=total > 0), v)
    with np.errstate(divide="ignore"):
        return out, (np.log(total) + top)[..., 0]


def inputs(dtype=np.float32, batch=2, tokens=150, heads=3, dim=40):
    rng = np.random.default_rng(1)
    return [rng.standard_normal((batch, tokens, heads, dim)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype,bound", [(np.float32, 3e-6), (np.float16, 2e-3)])
def test_attention_equals_numpy(dtype, bound):
    q, k, v = inputs(dtype)
    mask = np.random.default_rng(2).random((2, 3, 3, 3)) < 0.6
    mask[0, 1, 2] = False  # rows without a block
    out, lse = equitile.attention(q, k, v, mask=mask, block=64)
    want, want_lse = reference(q, k, v, mask, 64, 40**-0.5)
    assert out.dtype == dtype and lse.dtype == np.float32
    assert np.abs(out - want).max() < bound
    assert np.array_equal(np.isneginf(lse), np.isneginf(want_lse)) and np.isneginf(lse).any()
    finite = np.isfinite(lse)
    assert np.abs(lse[finite] - want_lse[finite]).max() < 1e-4


@pytest.mark.parametrize("compute,bound", [("int16", 5e-3), ("int8", 0.1)])
def test_attention_in_integers_is_close_to_numpy(compute, bound):
    q, k, v = inputs()
    mask = np.random.default_rng(2).random((2, 3, 3, 3)) < 0.6
    out, lse = equitile.attention(q, k, v, mask=mask, block=64, compute=compute)
    want, want_lse = reference(q, k, v, mask, 64, 40**-0.5)
    assert 0 < np.abs(out - want).max() < bound
    assert np.array_equal(np.isneginf(lse), np.isneginf(want_lse))
    again, _ = equitile.attention(q, k, v, mask=mask, block=64, compute=compute, threads=1)
    assert np.array_equal(out, again)
    with pytest.raises(ValueError, match="int4"):
        equitile.attention(q, k, v, compute="int4")


def test_layouts_strides_and_masks_per_head_give_the_same_bits():
    q, k, v = inputs()
    mask = np.random.default_rng(3).random((3, 5, 5)) < 0.5
    out, lse = equitile.attention(q, k, v, mask=mask, block=32, threads=1)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out2, lse2 = equitile.attention(*swapped, mask=np.stack([mask, mask]), block=32, layout="bhsd", threads=3)
    assert np.array_equal(out, out2.swapaxes(1, 2)) and np.array_equal(lse, lse2)
    views = [np.repeat(x, 2, axis=1)[:, ::2] for x in (q, k, v)]
    assert np.array_equal(equitile.attention(*views, mask=mask, block=32)[0], out)


def test_inputs_are_read_only_for_us():
    q, k, v = inputs()
    for x in (q, k, v):
        x.flags.writeable = False
    dense, _ = equitile.attention(q, k, v)
    want, _ = reference(q, k, v, np.ones((2, 3, 3, 3)), 64, 40**-0.5)
    assert np.abs(dense - want).max() < 3e-6


def test_swapped_bytes_are_refused():
    q, k, v = inputs()
    for swapped in ([q.astype(">f4"), k, v], [q, k.astype(">f4"), v], [q, k, v.astype(">f2")]):
        with pytest.raises(ValueError, match="swapped"):
            equitile.attention(*swapped)
    assert np.isfinite(equitile.attention(q.astype("<f4"), k, v)[0]).all()


class Lent:
    """An array that is seen through DLPack only."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **_):
        return self.array.__dlpack__()


@pytest.mark.parametrize("bad", [np.zeros((1, 8, 2)), np.zeros((1, 8, 2, 8), np.int32), np.zeros((1, 8, 2, 8))])
def test_refused_tensors_are_given_back(bad):
    good = np.zeros((1, 8, 2, 8), np.float32)
    before = sys.getrefcount(bad), sys.getrefcount(good)
    for _ in range(5):
        with pytest.raises(ValueError):
            equitile.attention(good, Lent(good), Lent(bad))
    assert (sys.getrefcount(bad), sys.getrefcount(good)) == before


def test_plan_has_the_names_of_the_command_and_owns_every_row():
    mask = np.random.default_rng(4).random((12, 40, 40)) < 0.3
    plan = equitile.plan(mask, ranks=7, planner="fractional")
    assert plan.planner == "fractional" and plan.row_owner.shape == (12, 40)
    assert sum(plan.work_per_rank) == mask.sum() and 1 <= plan.rho < 1.05
    work = np.bincount(plan.row_owner.ravel(), mask.sum(-1).ravel(), 7)
    assert np.array_equal(work, plan.work_per_rank)
    for name in "rho_paper bound bound_any moved_q_blocks bytes_max messages buffer_bytes_max predicted_seconds hash".split():
        assert hasattr(plan, name), name
    stored = json.loads(plan.to_json())
    assert stored["hash"] == plan.hash and stored["ranks"] == 7
    # Every rank gets the queries it does not hold, and somebody brings its output home.
    lanes = {(t.lane, b) for t in plan.transfers if t.cargo == "q" for b in range(t.begin, t.end)}
    assert lanes and all(t.end > t.begin for t in plan.transfers)
    assert plan.receives(0) and all(t.destination == 0 for t in plan.receives(0))


def test_planners_and_options():
    mask = np.random.default_rng(5).random((8, 16, 16)) < 0.4
    ring = equitile.plan(mask, ranks=4, planner="dbsp:2x2", reward=0)
    assert len(ring.head_perm) == 8 and ring.sends(0)
    assert equitile.plan(mask, ranks=4).chosen
    slow = equitile.plan(mask, ranks=2, planner="fractional", speeds=[1, 0.5])
    assert slow.work_per_rank[0] > slow.work_per_rank[1]


@pytest.mark.parametrize(
    "call,word",
    [
        (lambda: equitile.plan(np.ones((2, 3, 3), np.float32), 2), "dtype"),
        (lambda: equitile.plan(np.ones((3, 3), bool), 2), "shape"),
        (lambda: equitile.plan(np.ones((2, 3, 3), bool), 0), "rank"),
        (lambda: equitile.plan(np.ones((2, 3, 3), bool), 8, "usp:3x2"), "usp:3x2"),
        (lambda: equitile.plan(np.ones((2, 3, 3), bool), 2, dbsp_blocks="no"), "dbsp_blocks"),
        (lambda: equitile.attention(*inputs(dim=12)), "head_dim 12"),
        (lambda: equitile.attention(*inputs(), block=8), "block 8"),
        (lambda: equitile.attention(*inputs(np.float64)), "float32"),
        (lambda: equitile.attention(*inputs(), layout="sbhd"), "layout"),
        (lambda: equitile.attention(*inputs(), mask=np.ones((3, 2, 2), bool)), "mask"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(call, word):
    with pytest.raises(ValueError) as error:
        call()
    assert word in str(error.value) and "\n" not in str(error.value)
