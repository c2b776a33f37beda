"""Gradients of convolutions as functions of their own, beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("nd", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_agree(nd: int, groups: int) -> None:
    draw = np.random.default_rng(nd)
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": groups}
    x, w = (
        draw.standard_normal((2, 4, *[7] * nd)),
        draw.standard_normal((6, 4 // groups, *[3] * nd)),
    )
    plain = getattr(torch.nn.functional, f"conv{nd}d")(*map(torch.as_tensor, (x, w)), **options)
    g = draw.standard_normal(plain.shape)
    for kind, arguments in (("input", (x.shape, w, g)), ("weight", (x, w.shape, g))):
        a, b = (
            getattr(T.nn.grad, f"conv{nd}d_{kind}")(
                *(v if isinstance(v, tuple) else T.as_tensor(v) for v in arguments), **options
            )
            for T in (lt, torch)
        )
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)
