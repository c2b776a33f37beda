"""Checks that libraries make by torch's private names: what does not hold raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt


def _assert(condition: Any, message: str) -> None:
    """Raise if a condition, a truth value or a tensor of one, does not hold.

    Raises:
        AssertionError: It does not; with ``message``.
    """
    if not condition:
        raise AssertionError(message)


def _check_with(
    error_type: type[Exception], cond: Any, message: Callable[[], Any] | None = None
) -> None:
    """Raise an exception of a given type, with the text that ``message`` makes."""
    if not cond:
        raise error_type("Expected cond to be True" if message is None else str(message()))


def _check(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise RuntimeError unless ``cond``."""
    _check_with(RuntimeError, cond, message)


def _check_value(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise ValueError unless ``cond``."""
    _check_with(ValueError, cond, message)


def _check_type(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise TypeError unless ``cond``."""
    _check_with(TypeError, cond, message)


def _check_index(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise IndexError unless ``cond``."""
    _check_with(IndexError, cond, message)


def _check_not_implemented(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise NotImplementedError unless ``cond``."""
    _check_with(NotImplementedError, cond, message)


def _check_tensor_all(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise RuntimeError unless all elements hold."""
    _check_with(RuntimeError, bool(cond.all()), message)


def _check_is_size(i: int, message: Callable[[], Any] | None = None, *, max: Any = None) -> None:
    """Raise RuntimeError for a negative number, or one above ``max``."""
    _check(i >= 0 and (max is None or i <= max), message)


def _shape_as_tensor(input: Any) -> Any:
    """Return the shape as a tensor of int64."""
    return _lt.tensor(list(input.shape), dtype=_lt.int64)


def _is_all_true(input: Any) -> Any:
    """Return whether all elements hold, as a tensor."""
    return input.all()


def _is_any_true(input: Any) -> Any:
    """Return whether an element holds, as a tensor."""
    return input.any()


def alert_not_deterministic(caller: str) -> None:
    """Do nothing: each operation is deterministic."""


class SymInt:
    """The class of sizes that a compiler does not know; all sizes are numbers here."""


class SymFloat:
    """The class of numbers that a compiler does not know; there are none."""


class SymBool:
    """The class of truth values that a compiler does not know; there are none."""
