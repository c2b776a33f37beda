"""What the programs of the test bed share: weights, data and draws that every run has alike.

Written in plain PyTorch. Under ``lowtide.as_torch`` the same lines run on lowtide. Two frameworks
draw different random numbers, so nothing is drawn here: weights are filled by their names, data by
a number, and the functions that libraries draw with answer from one NumPy generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

Rows = dict[str, np.ndarray]
"""What a program found, by name: losses, gradients, parameters, outputs."""

PROGRAMS: dict[str, Callable[[], Rows]] = {}
TOLERANCES: dict[str, float] = {}
STEPS = 20
COMPILED: dict[str, Any] = {"what": "", "functions": []}
"""What :func:`trained` compiles, nothing, ``"loss"`` or ``"step"``; and the functions it has."""


def program(
    package: str, dtype: str = "float64", tolerance: float | None = None
) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Register a program by the package it tries; it runs with ``dtype`` as the default dtype.

    Its rows must agree to ``tolerance``, relative to the largest number of a row: 1e-6 for float64,
    1e-4 for float32, or what is given, where a library rounds to float32 in the middle.
    """

    def register(function: Callable[[], Rows]) -> Callable[[], Rows]:
        def run() -> Rows:
            before = torch.get_default_dtype()
            torch.set_default_dtype(getattr(torch, dtype))
            torch.manual_seed(0)
            try:
                with same_draws():
                    return function()
            finally:
                torch.set_default_dtype(before)

        name = f"{package}:{function.__name__}"
        PROGRAMS[name] = run
        TOLERANCES[name] = tolerance or {"float64": 1e-6, "float32": 1e-4}[dtype]
        return function

    return register


def filled(*shape: int, salt: int = 0) -> Any:
    """Return normal values of a shape in the default dtype, the same in every run."""
    made = np.random.default_rng([salt, *shape]).standard_normal(shape)
    return torch.tensor(made, dtype=torch.get_default_dtype())


def listed(bound: int, *shape: int, salt: int = 0) -> Any:
    """Return integers from 0 to ``bound - 1``, the same in every run."""
    return torch.tensor(np.random.default_rng([salt, bound, *shape]).integers(0, bound, shape))


def fill(module: Any) -> Any:
    """Fill the parameters of a module by their names and shapes; return the module."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if not p.dtype.is_floating_point or p.numel() == 0:
                continue
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            made = rng.standard_normal(tuple(p.shape))
            if p.ndim > 1:
                made *= (p.numel() / p.shape[0]) ** -0.5
            else:
                made = 0.05 * made + (1.0 if name.endswith("weight") else 0.0)
            p.copy_(torch.tensor(made, dtype=p.dtype))
    return module


def trained(
    module: Any,
    loss_of: Callable[[], Any],
    steps: int = STEPS,
    optimizer: Any = None,
    *,
    lr: float = 1e-3,
    fresh: bool = True,
) -> Rows:
    """Train; return losses, the first and the last gradients, and the parameters at the end."""
    if fresh:
        fill(module)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if optimizer is None:
        optimizer = torch.optim.SGD(list(parameters.values()), lr=lr, momentum=0.9)
    rows: Rows = {}
    losses = []
    compute = compiled(loss_of) if COMPILED["what"] == "loss" else loss_of

    def train() -> Any:
        optimizer.zero_grad()
        loss = compute()
        loss.backward()
        optimizer.step()
        return loss

    if COMPILED["what"] == "step":
        train = compiled(train)
    for step in range(steps):
        losses.append(train().item())
        if step in (0, steps - 1):
            for name, p in parameters.items():
                if p.grad is not None:
                    rows[f"gradient {step} of {name}"] = array(p.grad)
    rows["losses"] = np.array(losses)
    for name, tensor in module.state_dict().items():
        if hasattr(tensor, "detach") and tensor.dtype.is_floating_point:
            rows[f"state {name}"] = array(tensor)
    return rows


def compiled(function: Callable[[], Any]) -> Any:
    """Compile a function, and note it for the report."""
    found = torch.compile(function)
    COMPILED["functions"].append(found)
    return found


def array(tensor: Any) -> np.ndarray:
    """Return a tensor's values as an array of its own."""
    return np.array(tensor.detach().cpu().resolve_conj().numpy())


@contextmanager
def same_draws() -> Iterator[None]:
    """Answer the functions that libraries draw with from one NumPy generator, from its start."""
    rng = np.random.default_rng(2026)

    def shaped(size: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)

    def made(values: Any, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Any:
        tensor = torch.tensor(values, dtype=dtype or torch.get_default_dtype())
        return tensor.requires_grad_() if requires_grad else tensor

    def integers(*args: Any, size: Any = None, dtype: Any = None, **given: Any) -> Any:
        low, high = given.pop("low", None), given.pop("high", None)
        numbers = list(args)
        if numbers and not isinstance(numbers[-1], int):
            size = numbers.pop()
        if high is None:
            high = numbers.pop()
        if low is None:
            low = numbers.pop() if numbers else 0
        return made(rng.integers(low, high, tuple(size)), dtype or torch.int64)

    def bernoulli(p: Any, *_: Any, **__: Any) -> Any:
        return (made(rng.random(tuple(p.shape)), p.dtype) < p).to(p.dtype)

    def normal_(self: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
        with torch.no_grad():
            return self.copy_(made(rng.normal(mean, std, tuple(self.shape)), self.dtype))

    def uniform_(self: Any, low: float = 0.0, high: float = 1.0, **given: Any) -> Any:
        low, high = given.get("a", low), given.get("b", high)
        with torch.no_grad():
            return self.copy_(made(rng.uniform(low, high, tuple(self.shape)), self.dtype))

    answers = {
        "randn": lambda *s, size=None, generator=None, out=None, **g: made(
            rng.standard_normal(shaped(s or (size,))), **g
        ),
        "rand": lambda *s, size=None, generator=None, out=None, **g: made(
            rng.random(shaped(s or (size,))), **g
        ),
        "randn_like": lambda x, **g: made(
            rng.standard_normal(tuple(x.shape)), g.get("dtype") or x.dtype
        ),
        "rand_like": lambda x, **g: made(rng.random(tuple(x.shape)), g.get("dtype") or x.dtype),
        "randint": integers,
        "randperm": lambda n, **_: made(rng.permutation(n), torch.int64),
        "bernoulli": bernoulli,
    }
    with (
        mock.patch.multiple(torch, **answers),
        mock.patch.multiple(torch.Tensor, normal_=normal_, uniform_=uniform_),
    ):
        yield
