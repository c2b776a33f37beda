"""``torch._tensor_str``: how tensors are printed, for classes that print a tensor of theirs."""

from __future__ import annotations

from typing import Any

from lowtide.framework import printing as _printing


def _tensor_str(self: Any, indent: int) -> str:
    """Return a tensor's values as text, its lines indented."""
    return _printing._body(self.detach(), indent, _printing._options[0])


def _str_intern(inp: Any, *, tensor_contents: str | None = None) -> str:
    """Return a tensor as text, its values as given."""
    return _printing._repr(inp, tensor_contents=tensor_contents)


def _add_suffixes(tensor_str: str, suffixes: list[str], indent: int, force_newline: bool) -> str:
    """Return text with words behind it, on a separate line where they do not fit."""
    width = 0 if force_newline else _printing._options[0].linewidth
    return _printing._joined(tensor_str, suffixes, indent, width)


def __getattr__(name: str) -> Any:
    """The options of printing, as they are when asked for."""
    if name == "PRINT_OPTS":
        return _printing._options[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
