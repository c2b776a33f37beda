"""``out=`` of functions that are made of other ops: it gets the result's shape, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt

X = lt.tensor([[3.0, 1.0, 0.5], [1.0, 4.0, 1.5], [0.5, 1.5, 5.0]])  # symmetric, positive definite
V = lt.tensor([0.5, -1.5, 2.5])
SCALAR = lt.tensor(0.5)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bucketize": lambda **o: lt.bucketize(SCALAR, V.sort()[0], **o),
    "cholesky": lambda **o: lt.linalg.cholesky(X, **o),
    "cross": lambda **o: lt.cross(X, X.flip(0), 1, **o),
    "diff": lambda **o: lt.diff(X, **o),
    "diff of none": lambda **o: lt.diff(X, 0, **o),
    "expand_copy": lambda **o: lt.expand_copy(V, (2, 3), **o),
    "fft": lambda **o: lt.fft.fft(V, **o),
    "fftn": lambda **o: lt.fft.fftn(X, **o),
    "histc": lambda **o: lt.histc(X, 4, **o),
    "index_select": lambda **o: lt.index_select(X, 0, lt.tensor([1]), **o),
    "index_select of one": lambda **o: lt.index_select(SCALAR, 0, lt.tensor(0), **o),
    "inner": lambda **o: lt.inner(X, V, **o),
    "inner of one": lambda **o: lt.inner(SCALAR, V, **o),
    "irfft": lambda **o: lt.fft.irfft(V, **o),
    "kron": lambda **o: lt.kron(X, V, **o),
    "cond": lambda **o: lt.linalg.cond(X, **o),
    "det": lambda **o: lt.linalg.det(X, **o),
    "eigvals": lambda **o: lt.linalg.eigvals(X, **o),
    "eigvalsh": lambda **o: lt.linalg.eigvalsh(X, **o),
    "inv": lambda **o: lt.linalg.inv(X, **o),
    "matrix_norm": lambda **o: lt.linalg.matrix_norm(X, **o),
    "matrix_power": lambda **o: lt.linalg.matrix_power(X, 3, **o),
    "multi_dot": lambda **o: lt.linalg.multi_dot([X, X, V], **o),
    "pinv": lambda **o: lt.linalg.pinv(X, **o),
    "solve": lambda **o: lt.linalg.solve(X, V, **o),
    "svdvals": lambda **o: lt.linalg.svdvals(X, **o),
    "vecdot": lambda **o: lt.linalg.vecdot(X, V, **o),
    "masked_select": lambda **o: lt.masked_select(X, X > 1, **o),
    "nanmean": lambda **o: lt.nanmean(X, 0, **o),
    "outer": lambda **o: lt.outer(V, V, **o),
    "permute_copy": lambda **o: lt.permute_copy(X, (1, 0), **o),
    "quantile": lambda **o: lt.quantile(X, 0.3, **o),
    "searchsorted": lambda **o: lt.searchsorted(V.sort()[0], X, **o),
    "airy_ai": lambda **o: lt.special.airy_ai(V, **o),
    "chebyshev_t": lambda **o: lt.special.chebyshev_polynomial_t(SCALAR, 2, **o),
    "xlog1py": lambda **o: lt.special.xlog1py(SCALAR, SCALAR, **o),
    "std": lambda **o: lt.std(X, 0, **o),
    "tensordot": lambda **o: lt.tensordot(X, X, 1, **o),
    "vander": lambda **o: lt.gather(V, 0, lt.tensor(1), **o),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_written_whatever_the_shape(name: str) -> None:
    function = FUNCTIONS[name]
    expected = function()
    shape = tuple(expected.shape)
    for given in ((0,), (*shape, 2), shape):
        out = lt.zeros(given, dtype=expected.dtype)
        assert function(out=out) is out
        assert (tuple(out.shape), out.tolist()) == (shape, expected.tolist())
    if shape:
        out = lt.zeros(2 * shape[0], *shape[1:], dtype=expected.dtype)[::2]
        assert function(out=out) is out
        assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_dtype_that_cannot_hold_it_is_refused_before_anything_is_written(name: str) -> None:
    function = FUNCTIONS[name]
    expected = function()
    if expected.dtype.is_complex:
        less = [lt.int64, lt.bool, lt.float64]
    else:
        less = [lt.int64, lt.bool] if expected.dtype.is_floating_point else [lt.bool]
    for dtype in less:
        out = lt.ones(2, dtype=dtype)
        with pytest.raises(RuntimeError, match="can't be cast|have dtype|dtype is wrong"):
            function(out=out)
        assert out.tolist() == [1, 1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_is_refused(name: str) -> None:
    function = FUNCTIONS[name]
    expected = function()
    if not expected.dtype.is_floating_point:
        return
    out = lt.zeros_like(expected).requires_grad_()
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        function(out=out)
    assert out.count_nonzero() == 0
