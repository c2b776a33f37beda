"""Devices by name: ``cpu``, ``cuda:N``, ``meta``, and ``sim``, a simulated GPU for tests."""

from __future__ import annotations

import threading
from operator import getitem
from typing import Any

from .interrupts import RestoringExit

TYPES = ("cpu", "cuda", "meta", "sim")  # the last one, for tests, is in no message
_interned: dict[tuple[str, int | None], device] = {}


class _Current(threading.local):
    stack: tuple[device, ...] = ()


_current = _Current()


class device:
    """The device of a tensor; one object per device, compared by identity.

    Also a context manager and decorator: factories called inside without ``device=`` use it.

    Args:
        type: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"meta"``, ``"sim"``, or a device.
        index: Which of several; only cuda has more than one.

    Raises:
        RuntimeError: The name is not a device.

    Example:
        >>> device("cuda:0").index, device("cpu").type
        (0, 'cpu')
    """

    __slots__ = ("__weakref__", "index", "type")
    type: str
    index: int | None

    def __new__(cls, type: Any = "cpu", index: int | None = None) -> device:
        """Return the device of a given name."""
        if isinstance(type, device):
            return type
        if isinstance(type, int):
            type, index = "cuda", type
        name, _, number = str(type).partition(":")
        if name not in TYPES or (number and not number.isdigit()):
            raise RuntimeError(
                f"device must be one of {', '.join(TYPES[:-1])}, with an index for cuda as in "
                f"'cuda:0'; got {type!r}."
            )
        if number:
            index = int(number)
        if name != "cuda":
            index = None  # "cpu:0" is the cpu
        elif index is None:
            index = 0
        key = (name, index)
        self = _interned.get(key)
        if self is None:
            self = object.__new__(cls)
            self.type, self.index = name, index
            self = _interned.setdefault(key, self)
        return self

    def __enter__(self) -> device:
        _current.stack = (*_current.stack, self)
        return self

    # Looks at the stack when the block has ended, in C as all of it.
    __exit__ = RestoringExit(
        lambda: _current,
        "stack",
        values=lambda _: map(getitem, map(getattr, (_current,), ("stack",)), (slice(-1),)),
    )

    def __call__(self, function: Any) -> Any:
        """Decorate ``function`` to run with this device as the default."""
        import functools

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        if self.index is None:
            return f"device(type={self.type!r})"
        return f"device(type={self.type!r}, index={self.index})"

    def __reduce__(self) -> Any:
        return device, (str(self),)


_default = [device("cpu")]


def get_default_device() -> device:
    """Return the device on which factories without ``device=`` create tensors."""
    return _current.stack[-1] if _current.stack else _default[0]


def set_default_device(d: Any) -> None:
    """Set the device on which factories without ``device=`` create tensors."""
    _default[0] = device("cpu" if d is None else d)
