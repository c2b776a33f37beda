"""The table of layer cases: what each layer is built with and called on.

One case serves three tests: the comparison with PyTorch (``tests/parity/test_layers.py``), recorded
numbers (``tests/modules/test_golden.py``) and the run on meta (``tests/modules/test_meta.py``).

To add layers, put a file into ``cases/`` with a list ``CASES``, made by :func:`case`, and, if the
layers draw initial values, a list ``INITS`` of (layer, arguments), large enough for statistics. It
is found by itself. Then record its numbers: ``python -m tests.modules.goldens FILE``.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

FAMILIES = sorted(p.stem for p in (Path(__file__).parent / "cases").glob("*.py"))


@dataclass(frozen=True)
class Draw:
    """An input that is made from a generator of random numbers.

    ``grad``: compare the gradient with respect to it (floating inputs only).
    """

    make: Callable[[np.random.Generator], np.ndarray]
    grad: bool = True


def normal(*shape: int) -> Draw:
    return Draw(lambda rng: rng.standard_normal(shape))


def uniform(*shape: int, low: float = 0.05, high: float = 0.95) -> Draw:
    return Draw(lambda rng: rng.uniform(low, high, shape))


def log_probabilities(*shape: int) -> Draw:
    """Logarithms of numbers that sum to 1 along the last dimension."""

    def make(rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal(shape)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    return Draw(make)


def integers(high: int, *shape: int, low: int = 0) -> Draw:
    return Draw(lambda rng: rng.integers(low, high, shape))


def signs(*shape: int) -> Draw:
    return Draw(lambda rng: rng.integers(0, 2, shape) * 2.0 - 1, grad=False)


def given(values: Any) -> Draw:
    """Exactly these values; no gradient."""
    return Draw(lambda rng: np.asarray(values), grad=False)


def constant(draw: Draw) -> Draw:
    """The same input, without a gradient."""
    return replace(draw, grad=False)


@dataclass(frozen=True)
class Case:
    """One layer, built one way, called on one set of inputs.

    Attributes:
        layer: Its name in ``nn``.
        args: Constructor arguments. Arrays become tensors; functions are called with the framework
            (``lowtide`` or ``torch``), so that an argument can be a module.
        kwargs: Likewise, by name.
        x: Inputs of ``forward``: a tuple of draws, constants, and tuples of these.
        modes: "train", "eval" or both.
        forward: What to call instead of the layer: ``forward(T, layer, *inputs)``.
        random: Results in training mode are random, and not compared.
        meta: Whether it can run without data.
        low: Compare it in float32 and bfloat16 too.
        second: Compare second gradients too.
        rtol: Largest relative difference from PyTorch in float64.
        differs: Why PyTorch's numbers are not ours; another test then says what is right.
    """

    layer: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    x: tuple[Any, ...] = ()
    modes: tuple[str, ...] = ("train",)
    forward: Callable[..., Any] | None = None
    random: bool = False
    meta: bool = True
    low: bool = True
    second: bool = True
    rtol: float = 1e-7
    note: str = ""
    differs: str = ""

    @property
    def id(self) -> str:
        def text(value: Any) -> str:
            if isinstance(value, np.ndarray):
                return "array" + "x".join(map(str, value.shape))
            return getattr(value, "__name__", repr(value)).replace(" ", "")

        parts = [text(a) for a in self.args]
        parts += [f"{k}={text(v)}" for k, v in self.kwargs.items()]
        parts += [self.note] * bool(self.note)
        return f"{self.layer}({','.join(parts)})"

    def seed(self, name: str) -> np.random.Generator:
        """The generator for one of the case's arrays; the same on every machine."""
        return np.random.default_rng(zlib.crc32(f"{self.id} {name}".encode()))


_SETTINGS = ("modes", "forward", "random", "meta", "low", "second", "rtol", "note", "differs")


def case(layer: str, *args: Any, x: Any = (), **kwargs: Any) -> Case:
    """A case: constructor arguments as they are; ``x`` and the settings of :class:`Case`."""
    settings = {k: kwargs.pop(k) for k in _SETTINGS if k in kwargs}
    return Case(layer, args, kwargs, x if isinstance(x, tuple) else (x,), **settings)


def family(name: str) -> Any:
    return importlib.import_module(f"tests.modules.cases.{name}")


def all_cases() -> list[Case]:
    """Every case of every family; their ids differ."""
    found = [c for name in FAMILIES for c in family(name).CASES]
    ids = [c.id for c in found]
    assert len(ids) == len(set(ids)), {i for i in ids if ids.count(i) > 1}
    return found


# Running a case in either framework


def build(T: Any, case: Case, dtype: Any) -> Any:
    """The layer, its parameters and running averages filled with the case's own numbers."""
    layer = construct(T, case)
    layer.to(dtype)
    parameters = {n for n, _ in layer.named_parameters()}
    with T.no_grad():
        for name, value in layer.state_dict().items():
            if name in parameters:
                numbers = case.seed(name).standard_normal(tuple(value.shape)) * 0.5
            elif name.rpartition(".")[2] in ("running_mean", "running_var"):
                numbers = case.seed(name).uniform(0.5, 1.5, tuple(value.shape))
            else:
                continue
            value.copy_(T.tensor(numbers))
    return layer


def construct(T: Any, case: Case) -> Any:
    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return T.tensor(value)
        return value(T) if callable(value) else value

    args = [convert(a) for a in case.args]
    return getattr(T.nn, case.layer)(*args, **{k: convert(v) for k, v in case.kwargs.items()})


def inputs(
    T: Any, case: Case, dtype: Any, scattered: bool = False, device: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of ``forward``, and those that want a gradient, by name.

    ``scattered``: with the elements in another order in memory.
    """
    leaves: dict[str, Any] = {}
    made = tuple(
        _input(T, case, v, f"x{k}", (dtype, scattered, device), leaves)
        for k, v in enumerate(case.x)
    )
    return made, leaves


def _input(
    T: Any, case: Case, value: Any, name: str, how: tuple[Any, bool, Any], leaves: dict[str, Any]
) -> Any:
    # No closure that calls itself: it would be a cycle, and keep tensors alive.
    if isinstance(value, tuple):
        return tuple(_input(T, case, v, f"{name}.{k}", how, leaves) for k, v in enumerate(value))
    if not isinstance(value, Draw):
        return value
    dtype, scattered, device = how
    numbers = value.make(case.seed(name))
    floating = numbers.dtype.kind == "f"
    kind = dtype if floating else None
    if scattered and numbers.ndim > 1:
        turned = np.ascontiguousarray(numbers.swapaxes(0, -1))
        found = T.tensor(turned, dtype=kind, device=device).transpose(0, -1)
        assert not found.is_contiguous() or 1 in numbers.shape
    else:
        found = T.tensor(numbers, dtype=kind, device=device)
    if floating and value.grad:
        leaves[name] = found.requires_grad_()
    return found


def flat(value: Any) -> list[Any]:
    """The tensors in a result, in order."""
    if isinstance(value, tuple | list):
        return [t for v in value for t in flat(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in flat(v)]
    return [value] if hasattr(value, "dtype") else []


def call(T: Any, case: Case, layer: Any, made: tuple[Any, ...]) -> list[Any]:
    if case.forward is not None:
        return flat(case.forward(T, layer, *made))
    return flat(layer(*made))


def combine(T: Any, case: Case, name: str, tensors: list[Any]) -> Any:
    """One number that depends on every element of the floating tensors; None without a graph."""
    total = None
    for k, t in enumerate(tensors):
        if t.requires_grad:
            factor = case.seed(f"{name} {k}").standard_normal(tuple(t.shape))
            part = (t * T.tensor(factor, dtype=t.dtype, device=t.device)).sum()
            total = part if total is None else total + part
    return total


def run(
    T: Any,
    case: Case,
    mode: str = "train",
    dtype: Any = None,
    second: bool = False,
    scattered: bool = False,
    layer: Any = None,
) -> dict[str, np.ndarray]:
    """Results, first (and second) gradients and buffers of a case, by name.

    A gradient that does not exist is left out. With ``inplace=True``, the inputs are products, and
    what they are afterwards is part of the results.
    """
    dtype = dtype or T.float64
    layer = layer or build(T, case, dtype)
    layer.train(mode == "train")
    made, leaves = inputs(T, case, dtype, scattered)
    if case.kwargs.get("inplace"):
        made = tuple(m * 1 if hasattr(m, "dtype") else m for m in made)
    outs = call(T, case, layer, made)
    found = {f"out{k}": t for k, t in enumerate(outs)}
    if case.kwargs.get("inplace"):
        found |= {f"x{k} afterwards": m for k, m in enumerate(made) if hasattr(m, "dtype")}
    leaves |= {n: p for n, p in layer.named_parameters() if p.requires_grad}
    loss = combine(T, case, "out", outs)
    if loss is not None and leaves:
        firsts = T.autograd.grad(
            loss, list(leaves.values()), create_graph=second, allow_unused=True
        )
        found |= {f"grad {n}": g for n, g in zip(leaves, firsts, strict=True) if g is not None}
        again = combine(T, case, "grad", [g for g in firsts if g is not None]) if second else None
        if again is not None:
            seconds = T.autograd.grad(again, list(leaves.values()), allow_unused=True)
            found |= {
                f"second {n}": g for n, g in zip(leaves, seconds, strict=True) if g is not None
            }
    found |= {f"buffer {n}": b for n, b in layer.named_buffers()}
    return {n: array(t) for n, t in found.items()}


def array(t: Any) -> np.ndarray:
    t = t.detach()
    if str(t.dtype).endswith("bfloat16"):
        t = t.float()
    return np.array(t.numpy(force=True))
