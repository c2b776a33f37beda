"""Replays that a memory profiler watches.

They allocate what other replays do, and say where: the module, op and lines of each value are those
that the recording has noted. They tell, too, which values the graph would hold for backward. Small
values, which share a block, are one allocation of the compiled function. Kernel calls are made one
after the other, without tapes. An estimate makes none of them, and counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .. import execution
from ..attribution import scopes
from ..attribution.recorded_sites import ReplayedSites, shown
from ..memory.events import publish_overwrite
from ..memory.ledger import SAVED, TEMPORARY
from ..spec import Spec
from .binding import Binding, Call, run_rows
from .passes.tiled_pass import TiledPass
from .program import OUTSIDE, Row, StepProgram, Value
from .replay import Replay
from .replayed_backward import ForwardPass
from .split_replay import SplitReplay


class _Watched(Binding):
    # What both kinds share. `_told`: the sites of the present call. `_changes`: the changes of
    # roles before each entry, once they are known. `_unsaved`: the role of each value while it is
    # not saved.

    _told: ReplayedSites

    def __init__(self, *args: Any) -> None:
        self._changes: dict[int, list[Call]] = {}
        self._unsaved: dict[int, int] = {}
        super().__init__(*args)
        self._empty = self._empty_block

    def _begin(self, program: StepProgram) -> ReplayedSites:
        # Where the call begins: its modules are met, then leaves that no module has.
        self._told = sites = ReplayedSites()
        for value in program.values:
            sites.site(value.site)
        found = program.tensors[program.argument_count :]
        scopes.replayed([t for t in found if t._requires_grad and t._node is None])
        return sites

    def _birth(self, value: Value, role: int) -> Call:
        first = TEMPORARY if role == SAVED else role  # until it is saved
        self._unsaved[value.number] = first
        return self._bear_at, [value.number, self._bytes(value.nbytes), first]

    def _bear_at(self, number: int, spec: Spec, role: int) -> None:
        with shown(self._told.site(self.program.values[number].site)):
            self._bear(number, spec, role)

    def _take_over(self, old: int, number: int, spec: Spec, role: int) -> None:
        super()._take_over(old, number, spec, role)
        storage = self._storages[number]
        with shown(self._told.site(self.program.values[number].site)):
            publish_overwrite(storage.ledger, storage)

    def _empty_block(self, spec: Spec, role: int) -> Any:
        with shown(self._told.site(None)):
            return self._be.empty(spec, role)

    # Kernel calls

    def _bound_row(self, row: Row) -> Call:
        if isinstance(row.function, TiledPass):  # the other replay's points to its own memory
            row = replace(row, function=row.function.copy())
        return self._make, [row, *self._as_recorded(row)]

    def _make(self, row: Row, function: Callable[..., Any], arguments: list[Any]) -> None:
        executor = execution.current
        if executor.computes:
            function(*arguments)
            return
        executor.count_row(row)
        for number in row.written:
            value = self.program.values[number]
            if value.kind == OUTSIDE:
                t = self._tensor(value.tensor)
                executor.now_unknown((t._grad if value.is_gradient else t)._array)

    def _run(self, rows: list[Call]) -> None:
        if execution.current.computes:
            super()._run(rows)
        else:
            run_rows(rows)

    # Roles

    def _saved(self, value: Value) -> tuple[int, int] | None:
        # From when until when. In a pass, a call may save what another one has written.
        if value.saved is None:
            return None
        since, until = value.saved
        return max(since, value.first + 1), until

    def _role_changes(self, k: int) -> list[Call]:
        if not self._changes:
            for value in self.program.values:
                saved = self._saved(value)
                if saved is not None:
                    for at, change in zip(saved, (self._save, self._let_go), strict=True):
                        self._changes.setdefault(at, []).append((change, [value]))
        return self._changes.get(k, [])

    def _save(self, value: Value) -> None:
        storage = self._storages.get(value.number)
        if storage is not None:
            with shown(self._told.site(value.saver or value.site)):
                storage.set_role(SAVED)

    def _let_go(self, value: Value) -> None:
        storage = self._storages.get(value.number)
        if storage is not None:
            storage.set_role(self._unsaved[value.number])


class WatchedReplay(_Watched, Replay):
    """A replay of a call that runs its own backward, or has none.

    Args:
        plain: The same for calls outside of profilers.
    """

    def __init__(self, plain: Replay) -> None:
        super().__init__(plain.recorded, plain)

    def _end_segment(self, rows: list[Call]) -> None:
        if rows:
            self._segments.append(partial(self._run, rows))

    def __call__(self, call: Any) -> Any:
        """Run the program on the tensors of a call; return what the function would."""
        self._begin(self.program)
        return super().__call__(call)


class WatchedSplitReplay(_Watched, SplitReplay):
    """A replay of a call whose backward runs later.

    Args:
        plain: The same for calls outside of profilers.
    """

    def __init__(self, plain: SplitReplay) -> None:
        super().__init__(plain.recorded, plain.layouts, plain)

    def _saved(self, value: Value) -> tuple[int, int] | None:
        # What backward reads is kept, and nothing else.
        if value.number not in self._kept:
            return None
        return super()._saved(value) or (self._at, len(self.program.entries))

    def _new_pass(self, call: Any) -> ForwardPass:
        left = super()._new_pass(call)
        left.sites = self._begin(self.program)
        return left

    def _run_backward(self, left: ForwardPass, gradients: list[Any], retain: bool) -> Any:
        self._told = left.sites
        return super()._run_backward(left, gradients, retain)


def watched(plain: Any) -> Any:
    """Return a replay for calls that a profiler watches."""
    kind = WatchedReplay if isinstance(plain, Replay) else WatchedSplitReplay
    return kind(plain)
