"""``__torch_function__`` of foreign classes: they say what a function of torch does to them.

A class that is no tensor, such as a linear operator that is never written out, may define
``__torch_function__(func, types, args, kwargs)``: ``torch.matmul(operator, x)`` calls it. To look
for that in each call costs time, so nothing looks until the first such class is made:
``__build_class__``, by which Python makes every class, tells us. From then on functions of
``torch``, ``torch.linalg``, ``torch.special`` and ``torch.nn.functional``, and Tensor's methods of
two operands, are wrapped. A subclass of ``Tensor`` is none of these classes: it takes part as a
tensor.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import lowtide

_enabled = [False]
_NONE = (lowtide.Tensor, int, float, tuple, list, type(None), bool, str)
_overrides: dict[type, bool] = dict.fromkeys(_NONE, False)
METHODS = """add sub mul div true_divide matmul mm bmm mv dot pow remainder floor_divide maximum
minimum eq ne lt le gt ge isclose allclose expand_as view_as reshape_as where"""
OPERATORS = """add sub mul truediv floordiv mod pow matmul lt le gt ge"""


NEVER = [
    "is_tensor",
    "is_storage",
    "typename",
    "tensor",
    "as_tensor",
    "asarray",
    "from_numpy",
    "save",
    "load",
    "compile",
    "manual_seed",
    "seed",
    "checkpoint",
    "get_default_dtype",
    "set_default_dtype",
    "is_grad_enabled",
    "set_grad_enabled",
    "broadcast_shapes",
    "promote_types",
    "can_cast",
    "get_device_module",
    "set_printoptions",
]


def watch_classes() -> None:
    """Look at each class that is made from now on, until one has ``__torch_function__``."""
    plain = builtins.__build_class__

    def build(func: Any, name: str, /, *bases: Any, **keywords: Any) -> Any:
        made = plain(func, name, *bases, **keywords)
        if isinstance(made, type) and "__torch_function__" in vars(made) and overrides(made):
            builtins.__build_class__ = plain
            enable()
        return made

    builtins.__build_class__ = build


def overrides(kind: type) -> bool:
    """True for a class with ``__torch_function__`` that is no tensor."""
    found = _overrides.get(kind)
    if found is None:
        found = hasattr(kind, "__torch_function__") and not issubclass(kind, lowtide.Tensor)
        _overrides[kind] = found
    return found


def enable() -> None:
    """Wrap the functions; a second call does nothing."""
    if _enabled[0]:
        return
    _enabled[0] = True
    import sys

    torch = sys.modules.get("torch")
    spaces = [vars(torch)] if torch is not None else []
    spaces += [vars(lowtide.linalg), vars(lowtide.nn.functional), vars(lowtide.special)]
    for space in spaces:
        for name, value in list(space.items()):
            if isinstance(value, types.FunctionType) and name[0] != "_" and name not in NEVER:
                space[name] = Overridable(value)
    for name in METHODS.split():
        method = getattr(lowtide.Tensor, name, None)
        if method is not None:
            setattr(lowtide.Tensor, name, _method(method))
    for name in OPERATORS.split():
        dunder = f"__{name}__"
        setattr(lowtide.Tensor, dunder, _operator(getattr(lowtide.Tensor, dunder)))


def relevant(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments, also in lists, that say what a function does to them."""
    for value in (*args, *kwargs.values()):
        if overrides(type(value)):
            yield value
        elif type(value) in (list, tuple):
            yield from (inner for inner in value if overrides(type(inner)))


def _asked(func: Any, found: list[Any], args: Any, kwargs: Any) -> Any:
    kinds = list(dict.fromkeys(type(value) for value in found))
    for value in found:
        handler: Any = type(value).__torch_function__
        answer = handler(func, tuple(kinds), args, kwargs)
        if answer is not NotImplemented:
            return answer
    name = getattr(func, "__name__", func)
    shown = ", ".join(kind.__name__ for kind in kinds)
    raise TypeError(
        f"no implementation found for 'torch.{name}' on types that implement "
        f"__torch_function__: [{shown}]"
    )


class Overridable:
    """A function of torch that arguments may override; it equals the function it was made of."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what an argument says, or the function."""
        found = list(relevant(args, kwargs))
        if found:
            return _asked(self, found, args, kwargs)
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return getattr(other, "_function", other) is self._function

    def __hash__(self) -> int:
        return hash(self._function)

    def __repr__(self) -> str:
        return repr(self._function)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        found = list(relevant(args, kwargs))
        return _asked(method, found, args, kwargs) if found else function(*args, **kwargs)

    return method


def _operator(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(function)
    def operator(self: Any, other: Any) -> Any:
        # Python asks the other operand then: __radd__, __rmatmul__, and so on.
        return NotImplemented if overrides(type(other)) else function(self, other)

    return operator
