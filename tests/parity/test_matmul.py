"""Matrix products, einsum and softmax against PyTorch: values, dtypes, gradients, second ones."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import tolerance

torch = pytest.importorskip("torch")

from tests.parity.comparing import compare, refuse_alike  # noqa: E402  # it imports torch

F = torch.nn.functional
pytestmark = pytest.mark.parity


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


SHAPES = [
    ((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
    ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (1, 5, 4, 2)), ((3, 0), (0, 2)), ((0, 4), (4, 2)),
    ((2, 0, 3), (3, 2)), ((2, 3, 4), (1, 4, 2)), ((1, 4), (4, 1)), ((1,), (1, 1)), ((0,), (0,)),
    ((2, 3, 1), (1, 5)), ((3, 2, 3, 4), (4,)), ((4,), (3, 2, 4, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_matches_for_every_pair_of_ranks(a, b):
    compare(lambda m, x, y: x @ y, numbers(a), numbers(b, 1))


def test_matmul_takes_operands_of_any_strides():
    compare(lambda m, x, y: x.mT @ y.mT, numbers((4, 3)), numbers((2, 4), 1))
    compare(lambda m, x, y: x.sum(0).expand(5, 4) @ y.mT, numbers((3, 4)), numbers((2, 4), 1))
    compare(
        lambda m, x, y: x.permute(1, 2, 0) @ y.permute(2, 0, 1),
        numbers((4, 2, 3)),
        numbers((4, 5, 2), 1),
    )


def test_matmul_of_strided_slices_matches():
    compare(lambda m, x, y: x[:, ::2] @ y[::2], numbers((3, 6)), numbers((6, 2), 1))
    compare(lambda m, x, y: x[::2, 1:4] @ y[1:4], numbers((4, 6)), numbers((6, 2), 1))
    compare(lambda m, x, y: x[:, :, 1] @ y[..., 0, :], numbers((3, 4, 2)), numbers((4, 2, 5), 1))


PRODUCTS = {
    "mm": (lambda m, a, b: a.mm(b), (3, 4), (4, 2)),
    "bmm": (lambda m, a, b: m.bmm(a, b), (2, 3, 4), (2, 4, 2)),
    "mv": (lambda m, a, b: a.mv(b), (3, 4), (4,)),
    "dot": (lambda m, a, b: m.dot(a, b), (4,), (4,)),
    "vdot": (lambda m, a, b: a.vdot(b), (4,), (4,)),
    "inner": (lambda m, a, b: m.inner(a, b), (2, 3, 4), (5, 4)),
    "inner_vectors": (lambda m, a, b: m.inner(a, b), (4,), (4,)),
    "inner_scalar": (lambda m, a, b: m.inner(a, b), (), (3, 4)),
    "outer": (lambda m, a, b: a.outer(b), (3,), (4,)),
    "ger": (lambda m, a, b: m.ger(a, b), (3,), (4,)),
    "addmm": (lambda m, c, a, b: m.addmm(c, a, b), (3, 2), (3, 4), (4, 2)),
    "addmm_row": (lambda m, c, a, b: c.addmm(a, b, beta=0.5, alpha=2), (2,), (3, 4), (4, 2)),
    "addmm_beta0": (lambda m, c, a, b: c.addmm(a, b, beta=0, alpha=2), (3, 2), (3, 4), (4, 2)),
    "addmv": (lambda m, c, a, b: c.addmv(a, b, beta=2, alpha=-1), (3,), (3, 4), (4,)),
    "addbmm": (
        lambda m, c, a, b: c.addbmm(a, b, beta=2, alpha=3),
        (3, 2),
        (2, 3, 4),
        (2, 4, 2),
    ),
    "baddbmm": (
        lambda m, c, a, b: c.baddbmm(a, b, beta=2, alpha=3),
        (2, 3, 2),
        (2, 3, 4),
        (2, 4, 2),
    ),
    "baddbmm_row": (lambda m, c, a, b: c.baddbmm(a, b), (1, 1, 2), (2, 3, 4), (2, 4, 2)),
    "addr": (lambda m, c, a, b: c.addr(a, b, beta=2, alpha=3), (3, 4), (3,), (4,)),
    "multi": (lambda m, a, b, c: a @ b @ c, (2, 5), (5, 3), (3, 4)),
    "tensordot": (lambda m, a, b: m.tensordot(a, b), (2, 3, 4), (3, 4, 5)),
    "tensordot_0": (lambda m, a, b: m.tensordot(a, b, 0), (2, 3), (4,)),
    "tensordot_lists": (
        lambda m, a, b: m.tensordot(a, b, ([0, -1], [2, 0])),
        (2, 3, 4),
        (4, 5, 2),
    ),
    "kron": (lambda m, a, b: m.kron(a, b), (2, 3), (4, 2)),
    "kron_ranks": (lambda m, a, b: a.kron(b), (3,), (2, 2)),
    "trace": (lambda m, a: m.trace(a), (3, 4)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_relatives_of_matmul_match(name):
    function, *shapes = PRODUCTS[name]
    compare(function, *(numbers(s, k) for k, s in enumerate(shapes)))


LINEAR = [
    ((3, 4), (2, 4), (2,)),
    ((2, 3, 4), (5, 4), (5,)),
    ((4,), (2, 4), (2,)),
    ((0, 4), (2, 4), (2,)),
    ((2, 3, 4), (5, 4), None),
    ((4,), (2, 4), None),
    ((2, 3, 4), (4,), ()),
    ((3, 0), (2, 0), (2,)),
]


@pytest.mark.parametrize(("x", "w", "b"), LINEAR)
def test_linear_matches(x, w, b):
    arrays = [numbers(s, k) for k, s in enumerate((x, w, b)) if s is not None]
    compare(lambda m, *xs: (lt.linear if m is lt else F.linear)(*xs), *arrays)


def test_linear_takes_inputs_of_any_strides():
    def f(m, x, w):
        return (lt.linear if m is lt else F.linear)(x.permute(1, 2, 0), w.permute(1, 0))

    compare(f, numbers((4, 2, 3)), numbers((4, 5), 1))


def test_bilinear_matches():
    arrays = [numbers(s, k) for k, s in enumerate(((2, 3, 4), (2, 3, 5), (6, 4, 5), (6,)))]
    compare(lambda m, *xs: (lt.bilinear if m is lt else F.bilinear)(*xs), *arrays)
    compare(lambda m, *xs: (lt.bilinear if m is lt else F.bilinear)(*xs), *arrays[:3])


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 2)), ("ij,jk", (3, 4), (4, 2)), ("ij->ji", (3, 4)), ("ij->", (3, 4)),
    ("ij->j", (3, 4)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhqk,bhkd->bqhd", (2, 3, 4, 5),
    (2, 3, 5, 2)), ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...ij,jk->...ik", (2, 2, 3, 4),
    (4, 5)), ("...i->...", (2, 3, 4)), ("i...->...i", (2, 3, 4)), ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,ik,il->jkl", (3, 2), (3, 4), (3, 2)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)), ("ij,jk->ik", (3, 4), (1, 2)),
    ("b...i,b...i->b...", (2, 3, 4), (2, 3, 4)), ("ba,Ba->", (2, 3), (4, 3)),
    (" i j , j k -> k i ", (3, 4), (4, 2)), ("iij,jk->ik", (2, 2, 3), (3, 4)),
    ("...i,...i->...", (2, 1, 3), (4, 3)), ("i,ij->j", (0,), (0, 3)), ("->", ()),
    (",i->i", (), (3,)), ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("a...,b...->ab...", (2, 3), (4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUMS, ids=[c[0] for c in EINSUMS])
def test_einsum_matches(case):
    equation, *shapes = case
    compare(
        lambda m, *xs: m.einsum(equation, *xs) * 1, *(numbers(s, k) for k, s in enumerate(shapes))
    )


def test_einsum_takes_lists_of_dimensions():
    compare(
        lambda m, x, y: m.einsum(x, [0, 1], y, [1, 2], [2, 0]), numbers((3, 4)), numbers((4, 2), 1)
    )
    compare(lambda m, x, y: m.einsum(x, [0, 1], y, [1, 2]), numbers((3, 4)), numbers((4, 2), 1))
    compare(lambda m, x: m.einsum(x, [..., 0], [0, ...]), numbers((3, 4, 2)))


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_integer_products_match_in_value_and_dtype(kind):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 9, s).astype(kind) for s in ((3, 4), (4, 2)))
    ours, theirs = lt.tensor(a) @ lt.tensor(b), torch.tensor(a) @ torch.tensor(b)
    assert ours.dtype.name == kind
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_lower_precision_products_match_in_value_and_dtype(kind):
    a, b, c = (numbers(s, k).astype(np.float32) for k, s in enumerate(((6, 30), (5, 30), (5,))))
    ours = [lt.tensor(x).to(getattr(lt, kind)) for x in (a, b, c)]
    theirs = [torch.tensor(x).to(getattr(torch, kind)) for x in (a, b, c)]
    rtol, atol = tolerance(ours[0].dtype)
    for f in (
        lambda m, x, w, b: x @ w.mT,
        lambda m, x, w, b: (lt if m is lt else F).linear(x, w, b),
        lambda m, x, w, b: m.addmm(b, x, w.mT),
        lambda m, x, w, b: m.softmax(x, 1),
        lambda m, x, w, b: x.log_softmax(0),
        lambda m, x, w, b: x.softmax(1, dtype=m.float32),
        lambda m, x, w, b: m.einsum("ij,kj->ki", x, w),
    ):
        r, e = f(lt, *ours), f(torch, *theirs)
        assert r.dtype.name == str(e.dtype).removeprefix("torch.")
        np.testing.assert_allclose(
            r.to(lt.float64).numpy(), e.double().numpy(), rtol=4 * rtol, atol=40 * atol + rtol
        )


SOFTMAXES = {
    "softmax": lambda m, x, d: x.softmax(d),
    "log_softmax": lambda m, x, d: m.log_softmax(x, dim=d),
    "softmin": lambda m, x, d: (lt if m is lt else F).softmin(x, d),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes_match_along_every_dim(name):
    for shape in ((3, 4), (2, 3, 4), (5,), (), (0, 3), (3, 0), (3, 1)):
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            compare(lambda m, x, d=dim: SOFTMAXES[name](m, x, d), 3 * numbers(shape))


def test_softmax_of_infinite_scores_matches():
    inf = np.inf
    x = np.array([[-inf, 0.0, 1.0], [-inf, -inf, -inf], [1000.0, 0.0, -1000.0], [np.nan, 1.0, 2.0]])
    for f in (lambda x: x.softmax(1), lambda x: x.log_softmax(1)):
        np.testing.assert_allclose(f(lt.tensor(x)).numpy(), f(torch.tensor(x)).numpy(), rtol=1e-7)


WRONG = {
    "inner_size": lambda m, x: x @ x,
    "zero_dim": lambda m, x: x @ x.sum(),
    "number": lambda m, x: x @ 2,
    "dtype": lambda m, x: x @ x.mT.float(),
    "bool": lambda m, x: (x > 0) @ (x > 0).mT,
    "batch": lambda m, x: x.expand(2, 3, 4) @ (x.mT.expand(3, 4, 3)),
    "mm": lambda m, x: x.mm(x[0]),
    "bmm": lambda m, x: m.bmm(x, x),
    "dot": lambda m, x: x[0].dot(x[0, :2]),
    "mv": lambda m, x: x.mv(x),
    "addmm": lambda m, x: x.addmm(x, x.mT),
    "einsum": lambda m, x: m.einsum("ij,jk", x, x),
    "einsum_ranks": lambda m, x: m.einsum("ijk->i", x),
    "einsum_out": lambda m, x: m.einsum("ij->k", x),
    "softmax_int": lambda m, x: x.long().softmax(0),
    "softmax_dim": lambda m, x: x.softmax(2),
    "tensordot": lambda m, x: m.tensordot(x, x, 1),
    "linear": lambda m, x: (lt if m is lt else F).linear(x, x.mT),
    "trace": lambda m, x: x[0].trace(),
    "outer": lambda m, x: x.outer(x),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_raise_pytorchs_exception(name):
    refuse_alike(WRONG[name], np.ones((3, 4)))
