"""Restoring objects from saved states, all of them or none.

The objects take their states one after the other, and each is asked by its own ``load_state_dict``
whether the state fits. If one refuses, or reading or memory fails, or Ctrl-C comes, it and those
before it get a copy of their old states back. The object with the most bytes comes last, and no
copy is made of its tensors: at the start of a run, where optimizers are empty, that is the model.

What this rests on: the ``load_state_dict`` of that last object changes nothing when it raises,
which holds for modules and optimizers; and an object takes back what its ``state_dict`` gave. A
lazy module whose shapes became known with the new state cannot lose them again: the error says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..interrupts import defer_interrupts
from ..random.generator import Generator, generators_in_use
from ..random.philox import MASK64
from ..tensor import Tensor
from .atomic_files import Source
from .map_location import Placement
from .safetensors import Entry
from .structure_decoder import Decoder

_ENDS = (  # how an object gives its state, and how it takes it back
    ("state_dict", "load_state_dict"),
    ("get_state", "set_state"),  # generators; numpy.random
    ("getstate", "setstate"),  # Python's random
)


def ends_of(thing: Any) -> tuple[str, str] | None:
    """Return the methods that get and set an object's state, or None if it has none."""
    if isinstance(thing, type):
        return None
    for ends in _ENDS:
        if all(callable(getattr(thing, end, None)) for end in ends):
            return ends
    return None


def give(
    source: Source,
    entries: dict[str, Entry],
    placement: Placement,
    states: dict[str, Any],
    generators: dict[str, list[int]],
    objects: dict[str, Any],
) -> None:
    """Restore ``objects`` and the generators in use from a verified file.

    Args:
        source: The file.
        entries: What its header lists.
        placement: Where tensors go.
        states: The JSON of each object's state, by name.
        generators: Seed and offset by device.
        objects: By name; all have a state in the file.

    Raises:
        Exception: What an object raised. All objects are as they were.
    """
    ordered, complete = _largest_last(objects), not objects
    undo: list[_Old] = []
    try:
        for k, (name, thing) in enumerate(ordered, 1):
            # a decoder each, and its node goes: what was read for one is let go before the next
            state = Decoder(source, entries, placement, False).decode(states.pop(name))
            getter, setter = ends_of(thing) or _ENDS[0]
            with defer_interrupts():
                old = getattr(thing, getter)()
                if k < len(ordered) or not bytes_of(old):
                    undo.append(_Old(name, thing, setter, copied(old)))
                del old  # an optimizer's own state goes as the new one comes
                getattr(thing, setter)(state)
                if k == len(ordered):
                    _set_generators(generators)
                    complete = True
            del state
    except BaseException as error:
        if not complete:  # else a Ctrl-C that waited for the end
            with defer_interrupts():
                _put_back(undo, error)
        raise
    if not objects:
        _set_generators(generators)


def _largest_last(objects: dict[str, Any]) -> list[tuple[str, Any]]:
    ordered = list(objects.items())
    if len(ordered) > 1:
        sizes = [bytes_of(getattr(t, (ends_of(t) or _ENDS[0])[0])()) for _, t in ordered]
        largest = max(range(len(ordered)), key=lambda k: (sizes[k], k))
        ordered.append(ordered.pop(largest))
    return ordered


class _Old:
    """The state of an object before it was restored."""

    def __init__(self, name: str, thing: Any, setter: str, state: Any) -> None:
        self.name, self.thing, self.setter, self.state = name, thing, setter, state
        self.attributes = set(getattr(thing, "__dict__", ()))

    def put_back(self) -> None:
        getattr(self.thing, self.setter)(self.state)
        # A schedule takes every attribute that a state names; the old state does not undo these.
        for name in set(getattr(self.thing, "__dict__", ())) - self.attributes:
            delattr(self.thing, name)


def _put_back(undo: list[_Old], error: BaseException) -> None:
    for old in reversed(undo):
        try:
            old.put_back()
        except Exception as another:  # told beside the first error, the rest goes on
            error.add_note(f"restore: {old.name} did not take its old state back: {another!r}.")


def copied(state: Any) -> Any:
    """Deep-copy a state: its tensors and containers."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, dict):
        made = state.copy()  # of its own class
        for key, value in state.items():
            made[key] = copied(value)
        return made
    if type(state) in (list, tuple):
        return type(state)(map(copied, state))
    return set(state) if type(state) is set else state


def bytes_of(state: Any) -> int:
    """Return the bytes of tensors and arrays in a state; shared ones count each time."""
    if isinstance(state, Tensor | np.ndarray):
        return int(state.nbytes)
    if isinstance(state, dict):
        return sum(map(bytes_of, state.values()))
    return sum(map(bytes_of, state)) if isinstance(state, list | tuple) else 0


def check_generators(states: Any) -> None:
    """Raise an error unless there are seed and offset for each device.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(states, dict):
        raise ValueError(f"generators must be a dict; got {type(states).__name__}")
    for place in states.values():
        if not isinstance(place, list) or [type(n) for n in place] != [int, int]:
            raise ValueError(f"a generator's state must be a seed and an offset; got {place!r}")
        if not 0 <= place[1] <= MASK64:
            raise ValueError(f"a generator's offset must be in [0, 2**64); got {place[1]}")
        Generator().manual_seed(place[0])  # refuses what is no seed


def _set_generators(states: dict[str, list[int]]) -> None:
    known: dict[str, Generator] = {str(d): g for d, g in generators_in_use().items()}
    for name, (seed, offset) in states.items():
        if name in known:  # one of a device that this process has not met is left alone
            known[name].manual_seed(seed).set_offset(offset)
