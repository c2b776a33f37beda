"""Files of tensors, under the path where PyTorch has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator as _Iterator
from typing import Any

from lowtide.framework.serialization import load as load
from lowtide.framework.serialization import save as save

MAP_LOCATION = Any
DEFAULT_PROTOCOL = 2
_safe: list[Any] = []


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Remember classes that a file may name; ``load`` makes none of them all the same.

    A file of lowtide has no classes. Of PyTorch's files ``load`` reads tensors and plain
    containers, and raises for others, named here or not.
    """
    _safe.extend(safe_globals)


def get_safe_globals() -> list[Any]:
    """Return what :func:`add_safe_globals` was given."""
    return list(_safe)


def clear_safe_globals() -> None:
    """Forget what :func:`add_safe_globals` was given."""
    _safe.clear()


@contextlib.contextmanager
def safe_globals(safe_globals: list[Any]) -> _Iterator[None]:
    """As :func:`add_safe_globals`, until the block ends."""
    before = list(_safe)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _safe[:] = before


def get_default_load_endianness() -> None:
    """None: the machine's own order of bytes."""


def set_default_load_endianness(endianness: Any) -> None:
    """Accept the machine's own order of bytes.

    Raises:
        NotImplementedError: It is another.
    """
    if endianness is not None:
        raise NotImplementedError(
            "set_default_load_endianness: files are read in the byte order that they name; pass "
            "None."
        )


def register_package(priority: int, tagger: Any, deserializer: Any) -> None:
    """Not supported: there are no devices but cpu, cuda and meta.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "register_package adds a kind of device to files; lowtide has cpu, cuda and meta, and "
        "map_location moves what a file has."
    )
