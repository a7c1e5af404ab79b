"""The Python package, from the build folder, against NumPy."""

import json
import os
import re
import subprocess
import sys
import time

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
    for rank in range(7):
        assert all(0 <= t.destination < 7 and t.destination != rank for t in plan.sends(rank))


@pytest.mark.parametrize("planner", ["fractional", "ring", "dbsp:2x2"])
def test_ranks_send_what_others_receive(planner):
    """Of every block's tokens all that a rank computes with arrive there, or lie there: homes cut 16 tiles of 64 tokens by 4."""
    mask = np.ones((4, 8, 8), bool)
    plan = equitile.plan(mask, ranks=4, planner=planner, block=128)
    assert sorted(t for r in range(4) for t in plan.sends(r)) == sorted(t for r in range(4) for t in plan.receives(r))
    assert all(t.tokens <= 128 * (t.end - t.begin) for t in plan.transfers)
    for rank in range(4):
        rows = {(lane, q) for lane, q in zip(*np.nonzero(plan.row_owner == rank))}
        for lane, q in rows:
            homes = {q * 2 // 4, (q * 2 + 1) // 4}
            senders = {t.source for t in plan.receives(rank) if t.cargo == "q" and t.lane == lane and t.begin <= q < t.end}
            assert senders == homes - {rank}, (planner, rank, lane, q)
            back = {t.destination for t in plan.sends(rank) if t.cargo == "o" and t.lane == lane and t.begin <= q < t.end}
            assert back == homes - {rank}, (planner, rank, lane, q)


def test_plans_are_read_back():
    mask = np.random.default_rng(6).random((2, 6, 16, 16)) < 0.4
    plan = equitile.plan(mask, ranks=3, planner="fractional", batch=2)
    again = equitile.Plan.from_json(plan.to_json(), mask)
    assert again.to_json() == plan.to_json() and again.hash == plan.hash and again.rho == plan.rho
    assert np.array_equal(again.row_owner, plan.row_owner) and again.transfers == plan.transfers
    with pytest.raises(ValueError, match="another mask"):
        equitile.Plan.from_json(plan.to_json(), ~mask)
    with pytest.raises(ValueError):
        equitile.Plan.from_json("no plan", mask)
    with pytest.raises(ValueError):
        equitile.Plan.from_json(plan.to_json().replace('"ranks":3', '"ranks":4'), mask)


MACHINE = {
    "version": 1, "target": "avx2", "threads": 2, "peak_gflops": 100.0,
    "kernel": [{"head_dim": 128, "block": 64, "dtype": "f32", "gflops": 50.0, "row_seconds": 1e-6}],
    "links": [{"class": "network", "latency_seconds": 1e-6, "bytes_per_second": 1e9}],
}


def test_rates_of_a_machine(tmp_path):
    mask = np.ones((4, 16, 16), bool)
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    slow = equitile.plan(mask, 2, "ulysses", machine=tmp_path / "machine.json")
    assert slow.predicted_seconds == equitile.plan(mask, 2, "ulysses", machine=MACHINE).predicted_seconds
    assert slow.predicted_compute > 1.5 * equitile.plan(mask, 2, "ulysses").predicted_compute
    fast = equitile.plan(mask, 2, "ulysses", machine=MACHINE, kernel_gflops=200, link="800Gb/s,1us")
    assert fast.predicted_compute < slow.predicted_compute and fast.predicted_exchange < slow.predicted_exchange
    with pytest.raises(ValueError, match="machine"):
        equitile.plan(mask, 2, machine={"version": 1})


def test_what_was_chosen_is_always_there():
    mask = np.ones((4, 8, 8), bool)
    assert equitile.plan(mask, 2, "ulysses").chosen == "ulysses"
    assert equitile.plan(mask, 2, "dbsp:1x2").chosen == "dbsp:1x2"
    assert equitile.plan(mask, 2, "auto").chosen not in ("", "auto")


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", equitile.__version__)


def test_masks_come_in_any_whole_type_and_file(tmp_path):
    mask = np.random.default_rng(7).random((3, 8, 8)) < 0.5
    want = equitile.plan(mask, 2, "fractional").hash
    np.save(tmp_path / "m.npy", mask.astype(np.int64))
    np.savez(tmp_path / "m.npz", mask=mask.astype(np.uint8))
    for given in (mask.astype(np.uint8), mask.astype(np.int64), tmp_path / "m.npy", str(tmp_path / "m.npz")):
        assert equitile.plan(given, 2, "fractional").hash == want
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(mask), tmp_path / "m.pt")
    assert equitile.plan(tmp_path / "m.pt", 2, "fractional").hash == want


def test_layers_are_asked_for(tmp_path):
    masks = np.random.default_rng(8).random((2, 3, 8, 8)) < 0.5
    np.save(tmp_path / "m.npy", masks)
    plans = equitile.plan(tmp_path / "m.npy", 2, "fractional", layers=True)
    assert [p.hash for p in plans] == [equitile.plan(m, 2, "fractional").hash for m in masks]
    assert [p.hash for p in plans] == [p.hash for p in equitile.plan(masks, 2, "fractional", layers=True)]
    for wrong in (tmp_path / "m.npy", masks[0, 0]):
        with pytest.raises(ValueError, match=r"\[batch, heads, q, kv\].*\[layers, lanes, q, kv\].*layers=True"):
            equitile.plan(wrong, 2)


def test_attention_takes_one_layer(tmp_path):
    np.save(tmp_path / "m.npy", np.ones((2, 3, 3, 3), bool))
    with pytest.raises(ValueError, match="has layers; load it and give one of them") as error:
        equitile.attention(*inputs(), mask=tmp_path / "m.npy")
    assert "layers=True" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"batch": "x"}', '{"batch": {}}', "\u0000"])
def test_what_is_no_plan_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as error:
        equitile.Plan.from_json(text, np.ones((1, 2, 2), bool))
    assert "\n" not in str(error.value) and "json.exception" not in str(error.value)


def test_tensors_that_require_grad_are_refused():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in inputs())
    v.requires_grad_()
    with pytest.raises(ValueError, match="v requires grad"):
        equitile.attention(q, k, v)


def test_a_fork_computes_on():
    q, k, v = inputs()
    want, _ = equitile.attention(q, k, v, threads=3)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(equitile.attention(q, k, v, threads=3)[0], want) else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
    assert done and status == 0


def test_planners_and_options():
    mask = np.random.default_rng(5).random((8, 16, 16)) < 0.4
    ring = equitile.plan(mask, ranks=4, planner="dbsp:2x2", reward=0)
    assert len(ring.head_perm) == 8 and ring.sends(0)
    assert equitile.plan(mask, ranks=4).chosen
    slow = equitile.plan(mask, ranks=2, planner="fractional", speeds=[1, 0.5])
    assert slow.work_per_rank[0] > slow.work_per_rank[1]


MASK_TYPES = "a mask is bool, or uint8 or (little-endian) int64 of 0 and 1"


@pytest.mark.parametrize(
    "call,word",
    [
        *[(lambda dtype=dtype: equitile.plan(np.ones((2, 3, 3), dtype), 2), MASK_TYPES) for dtype in ("i4", "i1", "f8", ">i8")],
        (lambda: equitile.plan(np.ones((2, 3, 3), np.float32), 2), MASK_TYPES),
        (lambda: equitile.plan(np.full((2, 3, 3), 2), 2), MASK_TYPES),
        (lambda: equitile.plan("mask.txt", 2), "mask.txt"),
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


def test_plans_know_the_arithmetic(tmp_path):
    """Its rates, and the bytes that travel; a machine without them is warned about."""
    mask = np.tril(np.ones((8, 16, 16), bool))
    f32, int8 = (equitile.plan(mask, 4, "ulysses", compute=compute, head_dim=64) for compute in ("f32", "int8"))
    assert int8.bytes_max < 0.4 * f32.bytes_max and int8.rho == f32.rho
    rate = {"head_dim": 64, "block": 64, "dtype": "f32", "gflops": 50.0, "row_seconds": 0.0}
    machine = {"version": 1, "target": "avx2", "threads": 1, "peak_gflops": 100.0, "pack_bytes_per_second": 0.0, "kernel": [rate], "links": []}
    with pytest.warns(UserWarning, match="no rates of attention in int8"):
        slow = equitile.plan(mask, 4, "ulysses", compute="int8", head_dim=64, machine=machine)
    machine["kernel"].append({**rate, "dtype": "int8", "gflops": 150.0})
    fast = equitile.plan(mask, 4, "ulysses", compute="int8", head_dim=64, machine=machine)
    assert fast.predicted_compute == pytest.approx(slow.predicted_compute / 3, rel=1e-6)
    with pytest.raises(ValueError, match="int4"):
        equitile.plan(mask, 4, compute="int4")


def test_numpy_2_is_refused_where_it_would_be_misread():
    code = "import numpy; numpy.__version__ = '2.1.0'; import equitile; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == "imported\n" or "does not know NumPy 2.1.0; use numpy<2" in done.stderr.splitlines()[-1], done.stderr
