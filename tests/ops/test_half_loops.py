"""Formulas of halves: one pass over float16 or bfloat16, with float32's numbers rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.devices import backend
from lowtide.framework.ops.registry import OPS

FUNCTIONS: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": lt.sigmoid,
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "hardswish": F.hardswish,
    "relu": F.relu,
    "leaky relu": lambda x: F.leaky_relu(x, 0.3),
    "glu": lambda x: F.glu(x, 0),
}
SIZES = [4096, 16384, 20011, 140_000]


def halves(n: int, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n).astype(np.float32) * 4
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 3e38, 6e-8]
    return lt.tensor(x).to(dtype).reshape(1 if n % 2 else 2, -1)


def equal(a: Any, b: Any) -> bool:
    x, y = (t.detach().float().numpy() for t in (a, b))
    return bool(np.array_equal(x, y, equal_nan=True))


@pytest.fixture
def converted(monkeypatch):
    """Call a function while operands are converted to float32, as where there is no loop."""

    def run(f: Any, *args: Any) -> Any:
        with monkeypatch.context() as patched:
            for op in OPS.values():
                if op.formula is not None or op.elementwise == "bitmask":
                    others = [k for k in op.kernels if k.dtypes != "half"]
                    patched.setattr(op, "kernels", others)
                    patched.setattr(op, "plans", {})
            return f(*args)

    return run


def results(f: Any, x: Any, g: Any) -> tuple[Any, Any]:
    """A function's values and gradient."""
    x = x.detach().requires_grad_()
    made = f(x)
    made.backward(g.reshape(-1)[: made.numel()].reshape(made.shape))
    return made, x.grad


@pytest.mark.quick(24)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_give_what_converted_operands_give(name, dtype, n, converted):
    if name == "glu" and n % 2:
        pytest.skip("glu halves a dim")
    f, x, g = FUNCTIONS[name], halves(n, dtype), halves(n, dtype, 1)
    for made, expected in zip(results(f, x, g), converted(results, f, x, g), strict=True):
        assert made.dtype is dtype
        assert equal(made, expected)
    assert equal(f(x), f(x.float()).to(dtype))


@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "relu", "elu"])
def test_a_gradient_that_is_one_number(name, dtype, converted):
    x, one = halves(20011, dtype), lt.tensor(1.5).to(dtype).expand(20011)
    made, expected = results(FUNCTIONS[name], x, one), converted(results, FUNCTIONS[name], x, one)
    assert equal(made[1], expected[1])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["gelu", "relu", "silu"])
def test_no_workspace_is_taken(name, device):
    x = lt.ones(200_000, dtype=lt.bfloat16, device=device)
    ledger = backend(lt.device(device)).ledger
    start = ledger.live
    ledger.reset_peak()
    made = FUNCTIONS[name](x)
    assert ledger.peak - start == made.nbytes


def test_in_place_writes_over_what_it_reads():
    x = halves(40_000, lt.bfloat16)
    expected = F.relu(x.float()).bfloat16()
    assert x.relu_() is x
    assert equal(x, expected)
    y = halves(40_000, lt.float16)
    expected = F.silu(y.float()).half()
    assert equal(F.silu(y, inplace=True), expected)


def test_two_dtypes_are_promoted():
    x, y = halves(20_000, lt.bfloat16), halves(20_000, lt.float16, 1)
    made = F.huber_loss(x, y, reduction="none")
    assert made.dtype is lt.float32
    assert equal(made, F.huber_loss(x.float(), y.float(), reduction="none"))
