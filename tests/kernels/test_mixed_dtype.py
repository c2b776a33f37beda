"""Elementwise ops that convert a piece at a time: values, broadcasting, bytes, threads."""

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework import testing
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops import plan
from lowtide.framework.ops.registry import OPS

HALVES = [lt.bfloat16, lt.float16]


@pytest.fixture
def small_tiles(monkeypatch):
    """Pieces of 64 elements, so that small tensors have many."""
    monkeypatch.setattr(thresholds, "TILE", 64)
    for op in OPS.values():
        monkeypatch.setattr(op, "plans", {})


def at_once(function, *inputs):
    """What the op's definition says: float32 in, one rounding at the end."""
    dtype = next(x.dtype for x in inputs if isinstance(x, lt.Tensor) and x.dtype.is_half)
    return function(*[x.float() if isinstance(x, lt.Tensor) else x for x in inputs]).to(dtype)


SHAPES = [
    ((300,), (300,)),
    ((7, 50), (50,)),
    ((7, 50), (7, 1)),
    ((50,), (6, 7, 50)),
    ((2, 1, 5, 40), (3, 1, 40)),
    ((1, 200), (3, 1)),
    ((2, 100), (1, 1)),
    ((400,), ()),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", [lt.add, lt.mul, lt.div, lt.atan2], ids=lambda f: f.__name__)
def test_pieces_are_the_whole(op, shapes, dtype, small_tiles):
    a, b = (lt.randn(s).to(dtype) for s in shapes)
    assert lt.equal(op(a, b), at_once(op, a, b))
    assert lt.equal(op(b, a), at_once(op, b, a))


ELEMENTWISE = sorted(n for n, op in OPS.items() if op.elementwise is True and op.half == "float32")


def sample_results(op, monkeypatch, in_tiles):
    """What the op's samples give in bfloat16."""
    monkeypatch.setattr(thresholds, "TILE", 4)
    monkeypatch.setattr(plan, "worth_tiles", lambda made: in_tiles and made[0].numel > 0)
    monkeypatch.setattr(op, "plans", {})
    made = []
    for inputs, attributes in testing.samples(op, testing.Make(lt.float64)):
        inputs = testing.place(inputs)
        inputs = [
            x.detach().to(lt.bfloat16) if isinstance(x, lt.Tensor) and x.is_floating_point() else x
            for x in inputs
        ]
        if any(isinstance(x, lt.Tensor) and x.dtype.is_complex for x in inputs):
            continue
        made += testing.call(op, inputs, attributes)
    return made


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_sample_in_tiles(name, monkeypatch):
    op = OPS[name]
    pieces = sample_results(op, monkeypatch, True)
    whole = sample_results(op, monkeypatch, False)
    assert pieces
    for a, b in zip(pieces, whole, strict=True):
        np.testing.assert_array_equal(a.double().numpy(), b.double().numpy())
        assert a.dtype is b.dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_any_strides_and_numbers(dtype, small_tiles):
    x = lt.randn(20, 30, 4).to(dtype)
    for view in (
        x.permute(2, 0, 1),
        x[::2, 1:],
        x.expand(2, 20, 30, 4),
        x[:, :, :1].expand(20, 30, 9),
    ):
        assert lt.equal(view * 3, at_once(lambda v: v * 3, view))
        assert lt.equal(view + view, at_once(lambda v: v + v, view))
        assert lt.equal(2 - view, at_once(lambda v: 2 - v, view))
        assert lt.equal(view.sin(), at_once(lt.sin, view))
        assert lt.equal(view.sign(), at_once(lt.sign, view))  # it has scratch


def test_promotion_is_done_in_tiles_too(small_tiles):
    x = lt.randn(10, 40)
    half, whole, mask = x.to(lt.bfloat16), (x * 9).long(), x > 0
    assert lt.equal(x + half, x + half.float())
    assert lt.equal(half * mask, half * mask.to(lt.bfloat16))
    assert lt.equal(x - whole, x - whole.float())
    assert lt.equal(x.double() * x, x.double() * x.double())
    assert (half + x.half()).dtype is lt.float32
    assert lt.equal(half + x.half(), half.float() + x.half().float())
    assert lt.equal(half > x, half.float() > x)


def test_in_place_and_out(small_tiles):
    x, y = (lt.randn(6, 50).to(lt.bfloat16) for _ in range(2))
    expected = (x.float() * y.float()).to(lt.bfloat16)
    into = lt.empty(6, 50, dtype=lt.bfloat16)
    assert lt.equal(lt.mul(x, y, out=into), expected)
    turned = x.t().contiguous().t()
    address = turned.data_ptr()
    turned *= y
    assert turned.data_ptr() == address
    assert lt.equal(turned, expected)
    wide = lt.randn(6, 50)
    before = wide.clone()
    wide += y
    assert lt.equal(wide, before + y.float())


def test_gradients_pass_through_pieces(small_tiles):
    x = lt.randn(10, 40).to(lt.bfloat16).requires_grad_()
    bias = lt.randn(40).to(lt.bfloat16).requires_grad_()
    (x * bias).tanh().sum().backward()
    slope = 1 - (x.detach() * bias.detach()).float().tanh().to(lt.bfloat16).float() ** 2
    assert lt.allclose(x.grad.float(), slope * bias.detach().float(), rtol=2e-2, atol=2e-2)
    assert x.grad.dtype is bias.grad.dtype is lt.bfloat16


@pytest.mark.parametrize("wanted", [1, 3])
def test_threads_change_nothing(wanted, small_tiles, monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_wanted", wanted)
    monkeypatch.setattr(threads, "_pool", None)
    x, y = lt.randn(31, 50).to(lt.bfloat16), lt.randn(31, 1)
    assert lt.equal(x * y, x.float() * y)
    assert lt.equal(x.exp(), at_once(lt.exp, x))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_workspace_does_not_grow_with_the_operands(device):
    ledger = backend(lt.device(device)).ledger
    parts = threads.LIMIT
    for rows in (4 * parts, 16 * parts):
        x, y = (lt.zeros(rows, thresholds.TILE, dtype=lt.bfloat16, device=device) for _ in range(2))
        start = ledger.live
        ledger.reset_peak()
        made = x * y
        assert ledger.peak - start == made.nbytes + 3 * parts * thresholds.TILE * 4
        del made
        ledger.reset_peak()
        made = x * 2
        assert ledger.peak - start == made.nbytes + 2 * parts * thresholds.TILE * 4
        del made


def test_what_is_small_is_converted_at_once():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.zeros(100, 100, dtype=lt.bfloat16)
    start = ledger.live
    ledger.reset_peak()
    made = x * x
    assert ledger.peak - start == made.nbytes + 3 * x.numel() * 4


def test_nan_and_infinities_stay():
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-40], np.float32)
    x = lt.tensor(np.tile(special, thresholds.TILE))
    for dtype in HALVES:
        half = x.to(dtype)
        ours, expected = half + half, (half.float() + half.float()).to(dtype)
        ours, expected = (t.float().numpy() for t in (ours, expected))
        np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))


@pytest.mark.parametrize("dtype", HALVES)
def test_negation_turns_the_sign(dtype):
    x = lt.tensor([1.5, -2.0, 0.0, -0.0, float("inf"), float("nan")]).to(dtype)
    made = (-x).float()
    assert lt.equal(made[:5], -x.float()[:5])
    assert lt.equal(made[:5].signbit(), ~x[:5].signbit())
    assert made[5].isnan()
    turned = lt.randn(30, 40).to(dtype).t()
    assert lt.equal(-turned, (-turned.float()).to(dtype))
    assert lt.equal(turned.clone().neg_(), -turned)


def test_numbers_on_either_side(small_tiles):
    x = lt.randn(10, 40).to(lt.bfloat16)
    for number in (3, -0.7, float("inf")):
        for f in (
            lambda v: v + number,
            lambda v: number - v,
            lambda v: v - number,
            lambda v: number / v,
            lambda v: v / number,
            lambda v: v * number,
        ):
            assert lt.equal(f(x), at_once(f, x))
    assert (x * 1j).dtype is lt.complex64
    assert lt.equal((x * 1j).imag, x.float())


def test_operands_that_repeat_one_element(small_tiles):
    x, one = lt.randn(10, 40).to(lt.bfloat16), lt.tensor(1.7).to(lt.bfloat16)
    same = one.expand(10, 40)
    for a, b in ((x, same), (same, x), (same, same), (x, one), (lt.randn(10, 40), same)):
        wide = a.float() - b.float()
        assert lt.equal(a - b, wide.to(lt.result_type(a, b)))


def test_without_the_instructions_for_float16(small_tiles, monkeypatch):
    from lowtide.framework.kernels.cpu.elementwise import copy

    monkeypatch.setattr(copy, "float16_in_hardware", lambda: False)
    x, y = lt.randn(10, 40).half(), lt.randn(40).half()
    assert lt.equal(x * y, at_once(lt.mul, x, y))
    assert lt.equal(x.sum(0), x.float().sum(0).half())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("spread_gradient", [False, True])
def test_bits_are_cut_along(dtype, spread_gradient, monkeypatch):
    n = 5 * 4096 + 777
    x = lt.randn(n).to(dtype)
    x[:3] = lt.tensor([float("nan"), 0.0, -0.0])
    weights = lt.ones(()).to(dtype).expand(n) if spread_gradient else lt.randn(n).to(dtype)
    functions = (lt.relu, F.leaky_relu, F.relu6, F.hardtanh, lambda v: v.clamp(-0.5, 0.25))
    for function in functions:
        made = []
        for piece in (4096, 1 << 30):
            monkeypatch.setattr(thresholds, "TILE", piece)
            for op in OPS.values():
                op.plans.clear()
            leaf = x.clone().requires_grad_()
            out = function(leaf)
            out.backward(weights)
            made.append((out.detach().float(), leaf.grad.float()))
        for a, b in zip(*made, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
            np.testing.assert_array_equal(a.signbit().numpy(), b.signbit().numpy())
