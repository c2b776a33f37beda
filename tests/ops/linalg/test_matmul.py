"""Matrix products: what they copy, keep and cost, and how they explain mistakes."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.devices import backend
from lowtide.framework.ops.linalg.matmul import blas_ready, foldable
from lowtide.framework.ops.registry import OPS


def ones(*shape, **options):
    return lt.tensor(np.ones(shape), **options)


def peak_bytes(f):
    """Bytes beyond what is live that a call needs at once, its result included."""
    ledger = backend(lt.device("cpu")).ledger
    before = ledger.live
    ledger.reset_peak()
    out = f()
    assert out is not None
    return ledger.peak - before


def test_transposed_operands_are_not_copied():
    a, b = ones(64, 32), ones(16, 32)
    assert peak_bytes(lambda: a @ b.mT) == 64 * 16 * 8
    assert peak_bytes(lambda: b @ a.mT) == 64 * 16 * 8


def test_operands_that_blas_cannot_read_are_copied_to_counted_workspace():
    a, b = ones(64, 64), ones(64, 16)
    assert peak_bytes(lambda: a[:, ::2] @ b[::2]) == (64 * 16 + 64 * 32) * 8


def test_linear_needs_no_more_than_its_result():
    x, w, b = ones(4, 8, 32), ones(16, 32), ones(16)
    assert peak_bytes(lambda: lt.linear(x, w, b)) == 4 * 8 * 16 * 8


def test_linear_keeps_only_what_some_gradient_needs():
    x, w, b = ones(3, 4), ones(2, 4), ones(2)
    for needs, labels in (
        ((x,), ["linear.weight"]),
        ((w,), ["linear.input"]),
        ((b,), []),
        ((x, w, b), ["linear.weight", "linear.input"]),
    ):
        leaves = [t.detach().requires_grad_(any(t is n for n in needs)) for t in (x, w, b)]
        kept = lt.linear(*leaves).grad_fn.saved
        assert sorted(s.label for s in kept) == sorted(labels)


def test_a_weight_gradient_never_exists_per_batch_entry():
    x, w = ones(64, 4, 32), ones(32, 32, requires_grad=True)
    out = x @ w
    cotangent = ones(64, 4, 32)
    weight_bytes = 32 * 32 * 8
    assert peak_bytes(lambda: grad(out, w, cotangent)) == weight_bytes


def test_layout_predicates_accept_what_blas_reads():
    a = np.zeros((4, 6, 8))
    assert blas_ready(a)
    assert blas_ready(a.swapaxes(1, 2))
    assert blas_ready(a[:, 1:4, 2:5])
    assert not blas_ready(a[:, :, ::2])
    assert not blas_ready(np.broadcast_to(np.zeros((1, 8)), (6, 8)))
    assert foldable(a)
    assert not foldable(a[:, :3])
    assert not foldable(a.swapaxes(0, 1))


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        ((3, 4), (4, 5), 120),
        ((2, 3, 4), (4, 5), 240),
        ((2, 1, 3, 4), (5, 4, 2), 480),
        ((4,), (4,), 8),
        ((3, 4), (4,), 24),
        ((3, 0), (0, 2), 0),
    ],
)
def test_flops_are_two_per_product(a, b, count):
    assert OPS["matmul"].flops(ones(*a)._spec, ones(*b)._spec) == count


def test_contracting_nothing_gives_zeros():
    assert (ones(2, 0) @ ones(0, 3)).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert lt.linear(ones(2, 0), ones(3, 0), ones(3)).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_beta_zero_ignores_input():
    bad = lt.tensor(np.full((2, 2), np.nan))
    assert lt.addmm(bad, ones(2, 3), ones(3, 2), beta=0).tolist() == [[3, 3], [3, 3]]


def test_matmul_writes_into_out_and_the_in_place_twin_into_its_input():
    out = lt.tensor(np.zeros((2, 2)))
    assert lt.matmul(ones(2, 3), ones(3, 2), out=out) is out
    assert out.tolist() == [[3, 3], [3, 3]]
    out.addmm_(ones(2, 3), ones(3, 2), alpha=2)
    assert out.tolist() == [[9, 9], [9, 9]]


def test_chain_matmul_takes_the_cheap_order():
    a, b, c = ones(10, 100), ones(100, 5), ones(5, 50)
    np.testing.assert_array_equal(lt.chain_matmul(a, b, c).array, (a @ b @ c).array)
    # (a @ b) @ c never makes the 100 x 50 matrix of a @ (b @ c).
    assert peak_bytes(lambda: lt.chain_matmul(a, b, c)) == (10 * 5 + 10 * 50) * 8


MESSAGES = [
    (
        lambda: ones(32, 128) @ ones(64, 10),
        RuntimeError,
        r"matmul contracts input.shape\[-1\] with other.shape\[-2\]; got input \(32, 128\) and "
        r"other \(64, 10\). To multiply by the transpose, pass other.mT.",
    ),
    (lambda: ones(3, 4) @ ones(3), RuntimeError, r"other.shape\[0\]; got input \(3, 4\)"),
    (lambda: ones(3, 4) @ ones(), RuntimeError, "at least 1D.*write input . other"),
    (lambda: ones(3, 4) @ 2, TypeError, "must be Tensor, not int"),
    (lambda: ones(3, 4) @ ones(4, 3).to(lt.float32), RuntimeError, "same dtype.*Convert one"),
    (lambda: ones(2, 3, 4) @ ones(3, 4, 5), RuntimeError, r"matmul broadcasts.*\(2 and 3\)"),
    (lambda: ones(3, 4).mm(ones(4)), RuntimeError, r"mm: mat2 must be 2-D; got shape \(4,\)"),
    (lambda: ones(3).dot(ones(4)), RuntimeError, "same number of elements; got 3 and 4"),
    (lambda: lt.bmm(ones(2, 3, 4), ones(3, 4, 5)), RuntimeError, "Use matmul to broadcast"),
    (lambda: lt.linear(ones(3, 4), ones(4, 2)), RuntimeError, "transpose it with .mT"),
    (lambda: lt.linear(ones(3, 4), ones(2, 4), ones(3)), RuntimeError, r"bias of shape \(2,\)"),
    (lambda: lt.addmm(ones(5), ones(3, 4), ones(4, 2)), RuntimeError, "must expand to its shape"),
    (lambda: lt.einsum("ij,jk", ones(3, 4), ones(3, 4)), RuntimeError, "does not broadcast"),
    (lambda: lt.einsum("ijk->i", ones(3, 4)), RuntimeError, "number of subscripts"),
    (lambda: lt.einsum("ij->ii", ones(3, 4)), RuntimeError, "appears more than once"),
    (lambda: lt.einsum("ij,jk", ones(3, 4)), RuntimeError, "names 2 operands; got 1"),
    (lambda: lt.tensordot(ones(3, 4), ones(3, 4), 1), RuntimeError, "must match in size"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_mistakes_are_explained(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_complex_factors_are_conjugated_in_the_gradient():
    rng = np.random.default_rng(0)
    a, b, c = (lt.tensor(rng.standard_normal((2, 2)) * (1 - 1j), requires_grad=True) for _ in "abc")
    g = lt.tensor(rng.standard_normal((2, 2)) + 2j)
    ours = grad(lt.addmm(c, a, b, beta=2 - 1j, alpha=1 + 3j), [c, a, b], g)
    plain = grad(c * (2 - 1j) + (a @ b) * (1 + 3j), [c, a, b], g)
    for x, y in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy())


def test_a_contracted_size_of_one_broadcasts():
    a, b = lt.randn(1, 3, dtype=lt.float64), lt.randn(4, 2, dtype=lt.float64)
    out = lt.tensordot(a, b, dims=([0], [0]))
    expected = np.tensordot(a.expand(4, 3).numpy(), b.numpy(), axes=([0], [0]))
    np.testing.assert_allclose(out.numpy(), expected)
    assert lt.tensordot(a.int(), b.int(), dims=([0], [0])).dtype is lt.int32


def test_addr_of_bools_is_or_and_and():
    t, f = lt.tensor([True, False]), lt.tensor([False, True])
    assert lt.addr(lt.tensor([[True], [False]]), t, f).tolist() == [[True, True], [False, False]]


def test_half_precision_is_rounded_once_with_beta_too():
    # 1.0078125 * 1.5 is no bfloat16: rounding it before the sum would show.
    c = lt.full((1, 1), 1.0078125, dtype=lt.bfloat16)
    one = lt.full((1, 1), 0.00390625, dtype=lt.bfloat16)
    got = lt.addmm(c, one, lt.ones(1, 1, dtype=lt.bfloat16), beta=1.5)
    assert got.item() == lt.tensor(1.0078125 * 1.5 + 0.00390625).to(lt.bfloat16).item()
