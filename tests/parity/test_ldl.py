"""LDL factorization against PyTorch: factors, pivots, solutions, errors."""

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

SHAPES = [(1, 1), (5, 5), (2, 3, 4, 4), (0, 2, 2), (2, 0, 0)]
KINDS = ["float32", "float64", "complex64", "complex128"]


def indefinite(shape, kind, hermitian):
    draws = np.random.default_rng(len(shape) + shape[-1])
    a = draws.standard_normal(shape)
    if kind.startswith("complex"):
        a = a + 1j * draws.standard_normal(shape)
    turned = np.swapaxes(a, -1, -2)
    return (a + (turned.conj() if hermitian else turned)).astype(kind)


@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors_pivots_and_solutions_match(shape, kind, hermitian):
    a = indefinite(shape, kind, hermitian)
    b = indefinite((shape[-1], shape[-1]), kind, False)[:, :1]
    found = []
    for m in (lt, torch):
        ld, pivots, info = m.linalg.ldl_factor_ex(m.tensor(a), hermitian=hermitian)
        pair = m.linalg.ldl_factor(m.tensor(a), hermitian=hermitian)
        assert pair.pivots.dtype is m.int32
        assert m.equal(pair.LD, ld)
        x = m.linalg.ldl_solve(ld, pivots, m.tensor(b), hermitian=hermitian)
        found.append([t.numpy() for t in (ld, pivots, info, x)])
    exact = kind in ("float64", "complex128")
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, *((1e-9, 1e-9) if exact else (1e-3, 1e-4)))


@pytest.mark.parametrize("hermitian", [True, False])
def test_a_solution_has_the_gradient_of_solve_by_the_right_side(hermitian):
    a = indefinite((2, 3, 3), "complex128", hermitian)
    b = lt.tensor(indefinite((3, 3), "complex128", False), requires_grad=True)
    factors = lt.linalg.ldl_factor(lt.tensor(a), hermitian=hermitian)
    grads = [
        lt.autograd.grad(solved.abs().square().sum(), b)[0].numpy()
        for solved in (
            lt.linalg.ldl_solve(*factors, b, hermitian=hermitian),
            lt.linalg.solve(lt.tensor(a), b),
        )
    ]
    np.testing.assert_allclose(*grads, rtol=1e-9)


WRONG = {
    "square": lambda m, a: m.linalg.ldl_factor(a[:, :2]),
    "vector": lambda m, a: m.linalg.ldl_factor(a[0]),
    "integers": lambda m, a: m.linalg.ldl_factor(a.long()),
    "zero": lambda m, a: m.linalg.ldl_factor(a * 0),
    "dtypes": lambda m, a: m.linalg.ldl_solve(*m.linalg.ldl_factor(a), a.float()),
    "pivots": lambda m, a: m.linalg.ldl_solve(a, a[0], a),
    "pivots_shape": lambda m, a: m.linalg.ldl_solve(a, m.ones(2).int(), a),
    "pivots_zero": lambda m, a: m.linalg.ldl_solve(a, m.zeros(3).int(), a),
    "sizes": lambda m, a: m.linalg.ldl_solve(*m.linalg.ldl_factor(a), a[:2]),
    "gradient": lambda m, a: m.linalg.ldl_factor(a.clone().requires_grad_())[0].sum().backward(),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_raise_pytorchs_exception(name):
    a = indefinite((3, 3), "float64", True)
    with pytest.raises(RuntimeError):
        WRONG[name](torch, torch.tensor(a))
    with pytest.raises(RuntimeError, match=r"linalg\.ldl_"):
        WRONG[name](lt, lt.tensor(a))


def test_a_pivot_beyond_the_rows_is_refused():
    with pytest.raises(RuntimeError, match=r"1 <= \|pivot\| <= 3; got 4"):
        lt.linalg.ldl_solve(lt.eye(3), lt.tensor([1, 2, 4]), lt.eye(3))
