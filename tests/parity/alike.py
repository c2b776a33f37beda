"""A case of modules, written once with the framework as its argument ``T``, and run in both."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import torch

import lowtide as lt
from lowtide.framework.dtypes import tolerance

RTOL, ATOL = tolerance(lt.float64)


def shown(text: object) -> str:
    return str(text).replace("torch", "lowtide")


def agree(case, *args) -> None:
    """The case returns, or raises, the same in both frameworks."""
    found = []
    for T in (lt, torch):
        try:
            found.append(("returned", case(T, *args)))
        except Exception as error:
            found.append(("raised", error))
    (kind, ours), (expected_kind, theirs) = found
    assert kind == expected_kind, (ours, theirs)
    if kind == "raised":
        if isinstance(ours, AssertionError):
            raise ours
        assert type(ours).__mro__[-2:] == type(theirs).__mro__[-2:]
        assert isinstance(ours, type(theirs)), (type(ours), type(theirs))
        return
    compare(ours, theirs)


def compare(ours, theirs) -> None:
    if isinstance(ours, lt.Tensor):
        assert isinstance(theirs, torch.Tensor)
        assert shown(ours.dtype) == shown(theirs.dtype)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), RTOL, ATOL)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        compare(list(ours.values()), list(theirs.values()))
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b)
    elif isinstance(ours, float):
        assert math.isclose(ours, theirs, rel_tol=RTOL, abs_tol=ATOL)
    else:
        assert shown(ours) == shown(theirs)


def fill(T, module):
    """Give a module the same values in both frameworks, from its names and shapes."""
    rng = np.random.default_rng(5)
    with T.no_grad():
        for _, t in sorted(module.named_parameters()):
            t.copy_(T.tensor(rng.normal(size=tuple(t.shape))))
    return module


def mlp(T):
    nn = T.nn
    net = nn.Sequential(
        OrderedDict(a=nn.Linear(3, 4), act=nn.Tanh(), b=nn.Linear(4, 2, bias=False))
    ).to(T.float64)
    return fill(T, net)


def data(T, *shape, grad=True):
    x = np.random.default_rng(7).normal(size=shape)
    return T.tensor(x, requires_grad=grad)
