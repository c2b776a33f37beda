"""Samples of PyTorch's catalogue under vmap: beside a loop over the samples of a batch."""

import numpy as np
import torch

import lowtide as lt
from tests.parity import oracle


def tensors_of(value):
    """All tensors of a nested argument, in order."""
    return oracle.leaves(value, lt.Tensor)


def rebuilt(value, rest):
    """The nested argument with other tensors, taken from an iterator."""
    if isinstance(value, lt.Tensor):
        return next(rest)
    if isinstance(value, dict):
        return {k: rebuilt(v, rest) for k, v in value.items()}
    if isinstance(value, list | tuple):
        made = [rebuilt(v, rest) for v in value]
        return type(value)(made) if not hasattr(value, "_fields") else type(value)(*made)
    return value


def batch_of(x):
    """Two samples: the tensor, and half of it where it is no index and no mask."""
    other = x * 0.5 if x.dtype.is_floating_point or x.dtype.is_complex else x
    return lt.stack([x, other])


class Refused(Exception):
    """vmap refuses the call, by name."""


def compare(function, sample, which):
    """Compare one sample of the catalogue under vmap with a loop; False if there is nothing to.

    Args:
        function: Lowtide's.
        sample: PyTorch's.
        which: "first" or "all": which tensors are batched.

    Raises:
        Refused: vmap said why it cannot.
        AssertionError: The results differ.
    """
    try:
        call = oracle.convert((sample.input, tuple(sample.args), dict(sample.kwargs)))
    except (oracle.NotComparable, oracle.Absent):
        return False
    call = (call[0], call[1], {k: v for k, v in call[2].items() if k != "out"})
    found = [t.detach() for t in tensors_of(call)]
    if not found or any(t.is_meta for t in found):
        return False
    chosen = range(len(found)) if which == "all" else range(1)
    stacked = [batch_of(t) if k in chosen else t for k, t in enumerate(found)]

    def run(*xs):
        input, args, kwargs = rebuilt(call, iter(xs))
        out = function(input, *args, **kwargs)
        return tuple(tensors_of(out))

    try:
        with lt.no_grad():
            expected = [
                run(*[(t[j] if k in chosen else t).clone() for k, t in enumerate(stacked)])
                for j in range(2)
            ]
    except Exception:
        return False
    if not expected[0] or any(
        a.shape != b.shape or a.dtype is not b.dtype
        for a, b in zip(expected[0], expected[1], strict=False)
    ):
        return False
    dims = tuple(0 if k in chosen else None for k in range(len(stacked)))
    try:
        with lt.no_grad():
            got = lt.vmap(run, dims)(*[t.clone() for t in stacked])
    except RuntimeError as error:
        if "vmap" in str(error):
            raise Refused(str(error)) from None
        raise
    for k, g in enumerate(got):
        near(g, lt.stack([e[k] for e in expected]))
    return True


def near(got, expected):
    """Assert equal shapes, dtypes and numbers."""
    assert tuple(got.shape) == tuple(expected.shape), (got.shape, expected.shape)
    assert got.dtype is expected.dtype, (got.dtype, expected.dtype)
    a, b = oracle.numbers(got), oracle.numbers(expected)
    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8, equal_nan=True)


def samples(op, dtype=torch.float64):
    """The catalogue's samples of an operator."""
    dtypes = op.dtypes
    if dtype not in dtypes:
        found = [t for t in (torch.float32, torch.int64, *dtypes) if t in dtypes]
        if not found:
            return []
        dtype = found[0]
    return list(op.sample_inputs("cpu", dtype, requires_grad=False))
