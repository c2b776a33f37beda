"""Overriding functions by a tensor's class (``__torch_function__``), which lowtide does not do.

A subclass of ``Tensor`` takes part in operations as a tensor; what it defines as
``__torch_function__`` is not called. So the questions here have one answer.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from collections.abc import Iterable as _Iterable
from typing import Any

from lowtide.framework.tensor import Tensor as _Tensor


def has_torch_function(relevant_args: _Iterable[Any]) -> bool:
    """False: no argument overrides a function."""
    return False


def has_torch_function_unary(obj: Any) -> bool:
    """False: no argument overrides a function."""
    return False


def has_torch_function_variadic(*args: Any) -> bool:
    """False: no argument overrides a function."""
    return False


def handle_torch_function(
    public_api: _Callable[..., Any], relevant_args: _Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the function itself."""
    return public_api(*args, **kwargs)


def is_tensor_like(inp: Any) -> bool:
    """True for a tensor."""
    return isinstance(inp, _Tensor)


def is_tensor_method_or_property(func: _Callable[..., Any]) -> bool:
    """True for a method of ``Tensor``."""
    return getattr(_Tensor, getattr(func, "__name__", ""), None) is func


def resolve_name(f: _Callable[..., Any]) -> str | None:
    """Return the name of a function, ``torch.x``, ``torch.Tensor.x``; None if it is another's."""
    import lowtide

    name = getattr(f, "__name__", "")
    for home, shown in (
        (lowtide, "torch"),
        (_Tensor, "torch.Tensor"),
        (lowtide.nn.functional, "torch.nn.functional"),
    ):
        if getattr(home, name, None) is f:
            return f"{shown}.{name}"
    return None


def wrap_torch_function(dispatcher: _Callable[..., Any]) -> _Callable[[Any], Any]:
    """Return a decorator that leaves a function as it is."""
    return lambda func: func


class TorchFunctionMode:
    """A mode that would see each call of a function: it can be defined, and not be entered.

    Raises:
        NotImplementedError: It is entered.
    """

    def __enter__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__}: lowtide has no modes of functions, so nothing would call "
            "__torch_function__. Use hooks of modules, or lowtide.profiling."
        )

    def __exit__(self, *exc: object) -> None:
        """Never reached."""


class DisableTorchFunction:
    """A context without overrides, as everything is."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


class DisableTorchFunctionSubclass(DisableTorchFunction):
    """A context without overrides, as everything is."""


BaseTorchFunctionMode = TorchFunctionMode
