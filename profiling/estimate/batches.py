"""The batch of a step: which tensors carry it, and the step with another number of rows.

What a step is called with, or has as defaults, says what its batch is: tensors with a common
leading dimension. Without such arguments they are looked for in what the step closes over and among
its globals.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...framework.ops.manipulation.cat import cat
from ...framework.tensor import Tensor
from .changes import Change
from .targets import Models, is_module, values_of


class Resized(Change):
    """A change that gives tensors another number of rows, for everything that holds them.

    Fewer are the first ones; more are the same ones again. What owned its bytes gives the rest of
    them back; a view of fewer rows stays a view.
    """

    met = True

    def __init__(self, tensors: list[Tensor], size: int) -> None:
        self.tensors, self.size = tensors, size
        self.words = f"batch of {size}"

    def make(self) -> None:
        """Change the tensors in place."""
        for t in self.tensors:
            rows = t.detach()
            if self.size > rows.shape[0]:
                rows = cat([rows] * -(-self.size // rows.shape[0]))
            rows = rows[: self.size]
            whole = t._storage.nbytes == t.nbytes or self.size > t.shape[0]
            t.data = rows.clone() if whole else rows


def batch_of(
    step: Callable[..., Any], args: Any, kwargs: Any, roots: Models
) -> tuple[int, dict[str, Tensor]]:
    """Return the commonest leading dimension, and the tensors that have it, by name.

    The step's tensor arguments, and defaults of arguments, are asked first; without any, the
    tensors that it closes over or finds among its globals. Parameters, buffers and what requires a
    gradient are no batch.

    Args:
        step: The step.
        args: Its arguments.
        kwargs: Its named arguments.
        roots: The models that it reaches.

    Returns:
        0 and nothing if there is none.
    """
    own = {id(t) for root in roots.values() for t in (*root.parameters(), *root.buffers())}
    named: dict[str, Tensor] = {}
    for name, value in _arguments(step, args, kwargs):
        named.update(tensors_in(name, value))
    named = {n: t for n, t in named.items() if _may_change(t, own)}
    if not named:
        for name, value in values_of(step, (), {}, set()):
            found = {n: t for n, t in tensors_in(name, value) if _may_change(t, own)}
            named.update(found)
    sizes = Counter(t.shape[0] for t in named.values())
    if not sizes:
        return 0, {}
    size = max(sizes, key=lambda n: sizes[n])  # of equal ones, the first met
    chosen: dict[int, tuple[str, Tensor]] = {}
    for name, t in named.items():
        if t.shape[0] == size:
            chosen.setdefault(id(t), (name, t))
    return int(size), dict(chosen.values())


def _arguments(step: Callable[..., Any], args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    # With the names that the step has for them, if Python can tell.
    try:
        bound = inspect.signature(step).bind(*args, **kwargs)
    except (TypeError, ValueError):
        yield from ((f"args[{k}]", a) for k, a in enumerate(args))
        yield from kwargs.items()
    else:
        bound.apply_defaults()
        yield from bound.arguments.items()


def _may_change(t: Tensor, own: set[int]) -> bool:
    return t.dim() > 0 and id(t) not in own and not t.requires_grad and t.shape[0] > 1


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Iterate over a tensor, or those in lists, tuples and dicts, with their names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for k, v in enumerate(value):
            yield from tensors_in(f"{name}[{k}]", v)
    elif isinstance(value, dict) and not is_module(value):
        for k, v in value.items():
            yield from tensors_in(f"{name}[{k!r}]", v)
