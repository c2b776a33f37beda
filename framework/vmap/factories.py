"""Factories inside vmap: tensors like a batched one are batched, and random ones may differ.

``zeros_like(x)`` and ``x.new_zeros(...)`` of a sample's tensor can be written with a sample's
values, so they have memory for all samples. While some ``vmap`` runs, in any thread, the functions
through which factories allocate and draw are exchanged for those here; otherwise they pay nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from ..interrupts import WholeContext
from ..modes import local
from ..ops.creation import fill
from ..ops.creation.factory import like, new
from ..ops.random import distributions, draw
from ..spec import Spec
from ..tensor import Tensor
from .batched import Batched, batched, levels_of, value_of
from .draws import need_randomness
from .levels import only, sizes

_plain_like = like
_plain_new_like = fill._new_like
_plain_draw = draw._draw_checked

_lock = threading.Lock()
_running = 0


def _like(name: str, input: Any, *args: Any) -> Tensor:
    made = _plain_like(name, value_of(input), *args)
    return batched(made, levels_of(input))


def _new_like(name: str, input: Any, size: Any, *args: Any) -> Tensor:
    made = _plain_new_like(name, input, size, *args)
    levels = levels_of(input)
    if not levels:
        return made
    spec = made._spec
    return batched(new(Spec((*sizes(levels), *spec.shape), spec.dtype, spec.device)), levels)


def _draw_checked(name: str, t: Tensor, *args: Any) -> Tensor:
    apart = need_randomness(local.state.levels)
    spec = t._spec
    if not apart:
        if isinstance(t, Batched):
            t = new(Spec(spec.shape, spec.dtype, spec.device))
        with only(()):
            return _plain_draw(name, t, *args)
    every = new(Spec((*sizes(apart), *spec.shape), spec.dtype, spec.device))
    with only(()):
        return batched(_plain_draw(name, every, *args), apart)


_EXCHANGED: list[tuple[Any, str, Any, Any]] = [
    (fill, "like", _plain_like, _like),
    (draw, "like", _plain_like, _like),
    (distributions, "like", _plain_like, _like),
    (fill, "_new_like", _plain_new_like, _new_like),
    (draw, "_draw_checked", _plain_draw, _draw_checked),
]


class exchanged(WholeContext):
    """Have factories know of batched tensors, while some thread is inside."""

    def _enter(self) -> None:
        global _running
        with _lock:
            _running += 1
            if _running == 1:
                for module, name, _, ours in _EXCHANGED:
                    setattr(module, name, ours)

    def _leave(self) -> None:
        global _running
        with _lock:
            _running -= 1
            if _running == 0:
                for module, name, plain, _ in _EXCHANGED:
                    setattr(module, name, plain)
