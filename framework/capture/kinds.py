"""The kinds of calls of a compiled function, and which of them have recordings.

Calls with tensors of other shapes are of another kind, and have recordings of their own. These take
memory of Python's. So there is room for a number of kernel calls, and for eight kinds in any case.
Where there is none, the kinds that are called most have recordings.
"""

from __future__ import annotations

from typing import Any

from .call import Call
from .recordings import Kind

MOST_ROWS = 16_000  # kernel calls in all recordings of a function, of 12 KiB each
_ALWAYS = 8  # recorded kinds that there is room for
_SEEN_ONCE = 64  # kinds of one call each, after which there is no point in noting more
_MOST_KINDS = 1024
_RECENT = 64  # calls within which a kind of call with an object counts as in use
_UNUSED = 256  # calls after which a kind's recordings make room for others


class Kinds(dict[Any, Kind]):
    """The kinds of calls, by their keys."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def of(self, call: Call) -> Kind | None:
        """Return the kind of a call; None if it is the first of its kind."""
        self._calls += 1
        kind = self.get(call.key)
        if kind is not None:
            kind.calls += 1
            kind.last = self._calls
        return kind

    def begin(self, call: Call) -> Kind | None:
        """Return a new kind; None if all calls are of different kinds."""
        self._forget_objects()
        if len(self) >= _SEEN_ONCE and all(kind.calls == 1 for kind in self.values()):
            return None
        if len(self) >= _MOST_KINDS:
            self._forget_seldom()
        kind = self[call.key] = Kind(call.names_objects())
        kind.last = self._calls
        return kind

    def make_room(self, kind: Kind) -> bool:
        """Let go of recordings that are used less, if need be; return whether there is room."""
        others = [k for k in self.values() if k.recordings and k is not kind]
        if kind.recordings or len(others) < _ALWAYS:
            return True
        if sum(r.rows for k in others for r in k.recordings) < MOST_ROWS:
            return True
        before = self._calls - _UNUSED
        less = [k for k in others if k.last < before or k.calls < kind.calls]
        if not less:
            return False
        min(less, key=lambda k: (k.last >= before, k.calls)).forget()
        return True

    def close(self) -> None:
        """Let go of all recordings."""
        for kind in self.values():
            kind.close()

    def _forget_objects(self) -> None:
        # Recordings of calls with models of the past would keep them alive.
        for key, kind in list(self.items()):
            if kind.names_objects and kind.last < self._calls - _RECENT:
                del self[key]
                kind.close()

    def _forget_seldom(self) -> None:
        idle = [key for key, kind in self.items() if not kind.recordings]
        for key in sorted(idle, key=lambda key: self[key].last)[: _MOST_KINDS // 2]:
            del self[key]
