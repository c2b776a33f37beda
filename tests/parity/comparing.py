"""One function run in both frameworks: values, dtypes, gradients of two orders and errors agree.

The function takes the framework first and then its inputs, as ``lambda m, x: m.diff(x)`` does.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

import lowtide as lt
from lowtide.framework.autograd.engine import grad


def numbers(*shape, seed=0, kind=float):
    """Normal ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if kind is complex else x


def compare(f, *arrays, order=2, by_weights=True, rtol=1e-6, atol=1e-6) -> None:
    """Check ``f(framework, *tensors)``: all results and, up to ``order``, their gradients.

    Args:
        f: Takes ``lt`` or ``torch``, then the inputs; returns a tensor or several.
        arrays: The inputs.
        order: How many times to differentiate.
        by_weights: The second time also by the weights of the results in the first.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine = listed(f(lt, *map(lt.tensor, arrays)))
        reference = listed(f(torch, *map(torch.tensor, arrays)))
        if order:
            mine += gradients(lt, f, arrays, order, by_weights)
            reference += gradients(torch, f, arrays, order, by_weights)
    assert len(mine) == len(reference)
    for a, b in zip(mine, reference, strict=True):
        close(a, b, rtol, atol)


def listed(x):
    return list(x) if isinstance(x, tuple | list) else [x]


def close(mine, reference, rtol=1e-6, atol=1e-6) -> None:
    """Check shape, dtype and values of two tensors."""
    if mine is None or reference is None:  # a missing gradient and one of zeros mean the same
        for g in (mine, reference):
            assert g is None or not g.any()
        return
    assert tuple(mine.shape) == tuple(reference.shape)
    assert mine.dtype.name == str(reference.dtype).removeprefix("torch.")
    a, b = mine.detach().numpy(), reference.detach().numpy(force=True)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def gradients(m, f, arrays, order, by_weights) -> list:
    """Gradients of a weighted sum of the results, then of a weighted sum of those."""
    xs = [m.tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
    given = [x for x in xs if x.requires_grad]
    outs = [o for o in listed(f(m, *xs)) if o.requires_grad]
    if not outs:
        return []
    us = [weights(m, o, 9).requires_grad_() for o in outs]
    take = grad if m is lt else torch.autograd.grad
    first = take(outs, given, us, create_graph=order > 1, allow_unused=True)
    found = [g for g in first if g is not None and g.requires_grad]
    if not found:
        return list(first)
    ws = [weights(m, g, 5) for g in found]
    return [*first, *take(found, [*given, *us] if by_weights else given, ws, allow_unused=True)]


def weights(m, x, seed):
    kind = complex if x.is_complex() else float
    return m.tensor(numbers(*x.shape, seed=seed, kind=kind)).to(x.dtype)


def refuse_alike(f, *arrays) -> None:
    """Check that ``f(framework, *tensors)`` raises in both, an error of PyTorch's type in ours."""
    theirs, ours = (error_of(f, m, arrays) for m in (torch, lt))
    assert theirs is not None
    assert isinstance(ours, type(theirs)), (ours, theirs)


def error_of(f, m, arrays):
    try:
        f(m, *map(m.tensor, arrays))
    except Exception as error:
        return error
    return None
