"""Products of bfloat16 on CPUs that multiply it: layouts, edges, bias, stacks, bytes, threads."""

import os

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.devices import backend
from lowtide.framework.kernels.cpu.linalg import bfloat16_matmul, tile_matmul
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.linalg import bfloat16_matmul as half_products
from lowtide.framework.ops.registry import OPS

pytestmark = pytest.mark.skipif(
    not bfloat16_matmul.in_hardware(),
    reason="this CPU does not multiply bfloat16: float32 BLAS does",
)

DTYPE = lt.bfloat16


@pytest.fixture(params=["pairs", "tiles"])
def kernel(request, monkeypatch):
    """With and without tile registers."""
    if request.param == "pairs":
        monkeypatch.setattr(half_products, "in_tiles", lambda rows, inner: False)
    elif not tile_matmul.in_hardware():
        pytest.skip("this CPU has no tile registers")
    return request.param


@pytest.fixture(autouse=True)
def taken(monkeypatch, kernel):
    """How many products the kernel computed; small ones too."""
    calls = []
    plain = half_products._multiply

    def counted(*args):
        calls.append(args)
        plain(*args)

    monkeypatch.setattr(half_products, "_multiply", counted)
    monkeypatch.setattr(half_products, "LEAST", 1)
    for op in (lt.matmul.op, F.linear.op, OPS["_addmatmul"]):
        monkeypatch.setattr(op, "plans", {})
    return calls


def halves(*shape, seed=0):
    random = np.random.default_rng(seed)
    return lt.tensor(random.standard_normal(shape).astype(np.float32)).to(DTYPE)


def assert_product(made, exact):
    """Within one rounding to bfloat16, and the float32 sums' own error, of the exact product."""
    assert made.dtype is DTYPE
    exact = exact.numpy()
    error = np.abs(made.double().numpy() - exact)
    assert (error <= np.abs(exact) * 2**-8 + np.abs(exact).max() * 2**-18).all()


@pytest.mark.quick(24)
@pytest.mark.parametrize("m", [6, 7, 64, 601])
@pytest.mark.parametrize("n", [64, 65, 190])
@pytest.mark.parametrize("k", [2, 30, 64, 130])
def test_every_layout_of_the_operands(m, n, k, taken):
    a, b = halves(m, k), halves(k, n, seed=1)
    exact = a.double() @ b.double()
    for left in (a, a.t().contiguous().t(), lt.cat([a, a], 1)[:, :k], lt.cat([a, a], 0)[m:]):
        for right in (b, b.t().contiguous().t(), lt.cat([b, b], 1)[:, n:], lt.cat([b, b], 0)[:k]):
            assert_product(left @ right, exact)
    assert len(taken) == 16


@pytest.mark.parametrize("bias", [None, (65,), (1,), ()])
def test_linear_rounds_once_with_its_bias(bias, taken):
    x, w = halves(3, 5, 96), halves(65, 96, seed=1)
    b = None if bias is None else lt.tensor(np.full(bias, 300.5, np.float32)).to(DTYPE)
    exact = x.double() @ w.double().t()
    assert_product(F.linear(x, w, b), exact if b is None else exact + b.double())
    assert len(taken) == 1


@pytest.mark.parametrize("shape", [(70,), (1,), ()])
def test_addmm_with_a_bias_rounds_once(shape, taken):
    x, y = halves(20, 32), halves(32, 70, seed=1)
    b = lt.tensor(np.full(shape, -200.25, np.float32)).to(DTYPE)
    assert_product(lt.addmm(b, x, y), b.double() + x.double() @ y.double())
    assert len(taken) == 1
    whole, times = halves(20, 70), {"beta": 0.5, "alpha": 2}
    assert_product(lt.addmm(whole, x, y), whole.double() + x.double() @ y.double())
    assert_product(lt.addmm(b, x, y, **times), b.double() * 0.5 + x.double() @ y.double() * 2)
    assert len(taken) == 1


def test_a_bias_of_any_stride(taken):
    x, w, b = halves(20, 32), halves(70, 32, seed=1), halves(140)
    for bias in (b[::2], b[:1].expand(70), b[70:]):
        assert_product(F.linear(x, w, bias), x.double() @ w.double().t() + bias.double())
    assert len(taken) == 3


@pytest.mark.parametrize(
    ("a", "b", "products"),
    [
        ((4, 10, 32), (32, 70), 1),  # one tall product
        ((4, 10, 32), (4, 32, 70), 1),
        ((2, 1, 10, 32), (3, 32, 70), 2),  # as many as there are but for the last dim of stacks
        ((10, 32), (3, 32, 70), 1),
        ((5, 40, 34), (5, 34, 70), 1),
        ((5, 320, 98), (5, 98, 70), 1),
    ],
)
def test_stacks(a, b, products, taken):
    x, y = halves(*a), halves(*b, seed=1)
    assert_product(x @ y, x.double() @ y.double())
    assert len(taken) == products


def test_a_stack_whose_rows_lie_apart_is_one_product_too(taken):
    x, y = halves(10, 4, 32).transpose(0, 1), halves(32, 70, seed=1)
    few, turned = halves(2, 9, 32).transpose(0, 1), halves(4, 32, 10).transpose(1, 2)
    for stack in (x, few, turned):
        assert_product(stack @ y, stack.double() @ y.double())
        assert_product(F.linear(stack, y.t()), stack.double() @ y.double())
    assert len(taken) == 6


def test_gradients_are_such_products(taken):
    x, w, b = (t.requires_grad_() for t in (halves(50, 64), halves(70, 64, seed=1), halves(70)))
    g = halves(50, 70, seed=2)
    F.linear(x, w, b).backward(g)
    assert len(taken) == 3
    assert_product(x.grad, g.double() @ w.detach().double())
    assert_product(w.grad, g.double().t() @ x.detach().double())


def test_what_the_kernel_does_not_take(taken):
    for m, k, n in ((5, 64, 64), (64, 63, 64), (64, 64, 63)):
        a, b = halves(m, k), halves(k, n)
        assert_product(a @ b, a.double() @ b.double())
    a = halves(64, 64)
    assert (a.half() @ a.half()).dtype is lt.float16
    assert (a @ a[0]).shape == (64,)
    assert not taken


def test_special_values_and_signed_zeros():
    a, b = halves(36, 64), halves(64, 64)
    a[1, 3], a[2, 5], a[3, 7] = float("nan"), float("inf"), -3.3e38
    a[4] = 0.0
    b[7] = 3.3e38
    made, expected = a @ b, (a.float() @ b.float()).to(DTYPE)
    assert made[1].isnan().all()
    assert lt.equal(made[2].isinf(), expected[2].isinf())
    assert (made[3] == -float("inf")).all()
    assert (made[4] == 0).all()
    assert not made[4].signbit().any()


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_threads_change_nothing(wanted, monkeypatch):
    a, b, c = halves(700, 66), halves(66, 500, seed=1), halves(66, 700, seed=2)
    x, y = halves(5, 50, 66), halves(5, 66, 70)

    def products():
        return [a @ b, c.t() @ b, F.linear(a, b.t().contiguous()), x @ y]

    first = products()
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_wanted", wanted)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(thresholds, "PRODUCT_THREAD", 1)
    for op in (lt.matmul.op, F.linear.op):
        op.plans.clear()
    for one, again in zip(first, products(), strict=True):
        assert lt.equal(one, again)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("m", [100, 2000])
@pytest.mark.parametrize("k", [256, 250])
def test_workspace(device, m, k, kernel):
    ledger = backend(lt.device(device)).ledger
    a = lt.zeros(m, k, dtype=DTYPE, device=device)
    w = lt.zeros(640, k, dtype=DTYPE, device=device)
    start = ledger.live
    ledger.reset_peak()
    made = F.linear(a, w)
    rows = 64 + min(m, half_products.TILE_ROWS)
    width = 256 if kernel == "tiles" else k
    assert ledger.peak - start == made.nbytes + min(threads.LIMIT, 10) * rows * width * 2


def test_without_the_instruction_float32_serves(monkeypatch, taken):
    monkeypatch.setattr(bfloat16_matmul, "in_hardware", lambda: False)
    a, b = halves(64, 64), halves(64, 64, seed=1)
    assert_product(a @ b, a.double() @ b.double())
    assert not taken


def test_tiles_are_taken_where_they_fit(kernel, monkeypatch):
    made = []
    plain = tile_matmul.products
    monkeypatch.setattr(tile_matmul, "products", lambda: made.append(1) or plain())
    for m, k in ((31, 64), (64, 30), (32, 32), (40, 34)):
        a, b = halves(m, k), halves(k, 64, seed=1)
        assert_product(a @ b, a.double() @ b.double())
    assert len(made) == (2 if kernel == "tiles" else 0)


def test_a_forked_process_has_the_tile_registers(kernel):
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    a, b = halves(64, 64), halves(64, 64, seed=1)
    made = a @ b
    child = os.fork()
    if child == 0:
        os._exit(0 if (a @ b).equal(made) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("turned", [False, True])
def test_what_the_workspace_held_before_does_not_show(turned, taken):
    a, b = halves(40, 34), halves(34, 70, seed=1)
    exact = a.double() @ b.double()
    if turned:
        a = a.t().contiguous().t()
    (room,) = half_products.workspace(a._spec, (40, 70), 34)
    lt.full(room.shape, float("nan"), dtype=DTYPE)  # given back, and taken by the product
    assert_product(a @ b, exact)
    assert len(taken) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_a_nan_stays_in_its_row(turned):
    a, b = halves(40, 34), halves(34, 70, seed=1)
    a[39, 5] = float("nan")
    made = (a.t().contiguous().t() if turned else a) @ b
    assert made[39].isnan().all()
    assert not made[:39].isnan().any()
