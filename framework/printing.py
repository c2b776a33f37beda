"""Tensor printing in PyTorch's format.

A :class:`_Style` looks at the numbers that will be shown and chooses one notation and width for
all of them; :func:`_block` lays them out in rows and brackets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .devices import backend
from .dtypes import COMPLEX, bool_, get_default_dtype, int64
from .tensor import Tensor, install_method


@dataclass(frozen=True)
class _Options:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}
_options = [_Options()]
_PLAIN = ("Tensor", "Parameter")  # classes that print as tensor(...)


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set the options for printing tensors.

    Args:
        precision: Digits after the point (4).
        threshold: Elements beyond which only the edges are shown (1000).
        edgeitems: Elements shown at each end of a dimension (3).
        linewidth: Characters a line may have (80).
        profile: ``"default"``, ``"short"`` or ``"full"``: a set of all of these. Any other name
            changes nothing.
        sci_mode: Scientific notation always or never; None decides from the values.
    """
    options = _PROFILES.get(profile or "", _options[0])
    given: dict[str, Any] = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    options = replace(options, **{k: v for k, v in given.items() if v is not None})
    _options[0] = replace(options, sci_mode=sci_mode)


class _Style:
    """Notation and width for a set of numbers."""

    def __init__(self, values: Any, options: _Options) -> None:
        self.floating = values.dtype.kind == "f"
        self.precision = options.precision
        self.scientific = False
        self.whole = True
        if not self.floating:
            self.width = max((len(str(v)) for v in values.ravel().tolist()), default=1)
            return
        finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        self.width = 1
        if not finite.size:
            return
        size = np.abs(finite)
        least, most = float(size.min()), float(size.max())
        self.whole = bool((finite == np.ceil(finite)).all())
        self.scientific = (
            bool(most / least > 1000.0 or most > 1.0e8 or least < 1.0e-4)
            if options.sci_mode is None
            else options.sci_mode
        )
        self.width = max(len(self._text(v)) for v in finite.tolist())

    def _text(self, value: float) -> str:
        if self.scientific:
            return f"{value:.{self.precision}e}"
        if self.whole:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{self.precision}f}"

    def __call__(self, value: Any) -> str:
        text = self._text(value) if self.floating else str(value)
        return text.rjust(self.width)


class _ComplexStyle:
    """Styles for real and imaginary parts."""

    def __init__(self, values: Any, options: _Options) -> None:
        self.real = _Style(values.real, options)
        self.imag = _Style(values.imag, options)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = (self.imag(value.imag) + "j").lstrip()
        sign = "" if value.imag < 0 else "+"
        return self.real(value.real) + sign + imag


def _block(values: Any, shown: tuple[Any, ...], indent: int, style: Any, options: _Options) -> str:
    # values: the array; shown: per dimension None, or how many at each end.
    if not values.ndim:
        return str(style(values.item()))
    n, edge = len(values), shown[0]
    split = n if edge is None else edge
    if values.ndim == 1:
        items = [style(v) for v in values[:split].tolist()]
        if edge is not None:
            items += [" ...", *(style(v) for v in values[n - edge :].tolist())]
        per_line: int = max(1, (options.linewidth - indent) // (style.width + 2))
        rows = [", ".join(items[k : k + per_line]) for k in range(0, len(items), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(rows) + "]"
    parts = [_block(v, shown[1:], indent + 1, style, options) for v in values[:split]]
    if edge is not None:
        parts.append("...")
        parts += [_block(v, shown[1:], indent + 1, style, options) for v in values[n - edge :]]
    between: str = "," + "\n" * (values.ndim - 1) + " " * (indent + 1)
    return "[" + between.join(parts) + "]"


def _values(t: Tensor, edges: tuple[Any, ...]) -> Any:
    # What will be shown, on the host: of a long dimension only its ends.
    array = t._array
    be = backend(t.device)
    if any(e is not None for e in edges):
        for axis, edge in enumerate(edges):
            if edge is not None:
                lead = (slice(None),) * axis
                n = array.shape[axis]
                xp = be.xp
                array = xp.concatenate(
                    [array[(*lead, slice(0, edge))], array[(*lead, slice(n - edge, n))]], axis=axis
                )
    host = be.to_host(array)
    return host.astype(np.float32) if t.dtype.is_narrow else host


def _body(t: Tensor, indent: int, options: _Options) -> str:
    summarize = t.numel() > options.threshold
    edge = options.edgeitems
    edges = tuple(edge if summarize and n > 2 * edge else None for n in t.shape)
    values = _values(t, edges)
    style = (_ComplexStyle if t.dtype.category == COMPLEX else _Style)(values, options)
    return _block(values, edges, indent, style, options)


def text_of(t: Tensor) -> str:
    """Return the text of ``repr(t)``."""
    options = _options[0]
    name = type(t).__name__
    prefix = "tensor(" if name in _PLAIN else f"{name}("
    indent = len(prefix)
    suffixes = []
    natural = (get_default_dtype(), get_default_dtype().to_complex(), int64, bool_)
    show_dtype = t.dtype not in natural
    if t.device.type != "cpu":
        suffixes.append(f"device='{t.device}'")
    if t.device.type == "meta":
        suffixes.append(f"size={tuple(t.shape)}")
        body = "..."
    elif not t.numel():
        if t.ndim != 1:
            suffixes.append(f"size={tuple(t.shape)}")
        show_dtype = t.dtype is not get_default_dtype()
        body = "[]"
    else:
        body = _body(t, indent, options)
    if show_dtype:
        suffixes.append(f"dtype={t.dtype}")
    if t.grad_fn is not None:
        suffixes.append(f"grad_fn=<{t.grad_fn.name()}>")
    elif t.requires_grad:
        suffixes.append("requires_grad=True")
    return _joined(prefix + body, suffixes, indent, options.linewidth)


def _joined(text: str, suffixes: list[str], indent: int, linewidth: int) -> str:
    # Suffixes go on the last line while they fit, then on lines of their own.
    used = len(text) - text.rfind("\n") - 1 + 1  # with the bracket that closes
    for suffix in suffixes:
        if used + len(suffix) + 2 > linewidth:
            text += ",\n" + " " * indent + suffix
            used = indent + len(suffix)
        else:
            text += ", " + suffix
            used += len(suffix) + 2
    return text + ")"


def _format(self: Tensor, spec: str) -> str:
    # A 0-d tensor formats as its number; with no format, any tensor as its repr.
    if self.ndim == 0 and self.device.type != "meta" and type(self) is Tensor:
        return format(self.item(), spec)
    return object.__format__(self, spec)


def _repr(self: Tensor, *, tensor_contents: str | None = None) -> str:
    return text_of(self)


install_method("__repr__", _repr)
install_method("__format__", _format)
