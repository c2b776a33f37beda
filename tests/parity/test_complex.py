"""Complex numbers: what they promote to, what is refused of them, and gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import tolerance

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

DTYPES = ("bool", "uint8", "int64", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, DTYPES)))
def test_types_promote_alike_in_both_orders(a, b):
    expected = torch.promote_types(getattr(torch, a), getattr(torch, b))
    got = lt.promote_types(getattr(lt, a), getattr(lt, b))
    assert got.name == str(expected).removeprefix("torch.")


@pytest.mark.parametrize(
    "program",
    [
        "x < x", "x >= 1", "x > 1j", "T.maximum(x, x)", "T.fmin(x, x)", "x.max()", "x.min(0)",
        "x.amax(0)", "x.argmin()", "x.sort()", "x.argsort()", "x.topk(1)", "x.median()", "x // 2",
        "x % 2", "T.fmod(x, 2)", "x.floor()", "x.ceil()", "x.trunc()", "T.relu(x)",
    ],
)  # fmt: skip
def test_what_needs_an_order_is_refused(program):
    for T in (torch, lt):
        x = T.tensor([1 + 2j, 3 - 1j])
        with pytest.raises(RuntimeError):
            eval(program, {"T": T, "x": x})


@pytest.mark.parametrize(
    "program", ["x.prod()", "x.prod(1)", "x.cumprod(0)", "x.cumprod(1)", "x.logsumexp(1)"]
)
def test_gradients_of_products_are_conjugated(program):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))
    grads = []
    for T in (torch, lt):
        x = T.tensor(values, requires_grad=True)
        out = eval(program, {"x": x})
        weight = T.arange(1, out.numel() + 1, dtype=T.float64).reshape(out.shape)
        (out * weight).sum().abs().backward()
        grads.append(x.grad.resolve_conj().numpy())
    rtol, atol = tolerance(lt.complex128)
    np.testing.assert_allclose(grads[1], grads[0], rtol, atol)
