"""Sites of a recorded call, which its replays show to profilers.

A replay of a compiled function runs none of the program's lines and calls no module. So the
recording notes where each value was made (:class:`SiteNotes`), and a replay says so in the place of
what a walk of the stack would find (:class:`ReplayedSites`). What lies around the call is not
recorded: the lines that led to it, and what the program calls its models, are those of the replay.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from ..interrupts import RestoringExit
from ..modes import local, state_of_thread
from . import scopes
from .call_stacks import UNKNOWN, CallLine, at_line


class _Path(NamedTuple):
    # Of a module or a named scope. `around`: the names of scopes around the outermost module that
    # the call has called, `root`; `inner`: what follows.
    around: str
    root: weakref.ref[Any] | None
    inner: str


class RecordedSite(NamedTuple):
    """Where a recorded call has allocated a value, or saved it.

    Attributes:
        path: The module.
        op: The op.
        phase: Such as ``forward``.
        lines: (line, code object) of the lines inside the call, innermost first.
        complete: Lines around the call are not known; ``lines`` are all there are.
    """

    path: _Path
    op: str
    phase: str
    lines: tuple[tuple[str, Any], ...]
    complete: bool


class SiteNotes:
    """Notes sites while a call is recorded. Made where the call begins."""

    def __init__(self) -> None:
        self._around = scopes.current()
        self._caller = UNKNOWN
        self._paths: dict[str, _Path] = {}  # of modules that forward has called
        self._known: dict[scopes.Site, RecordedSite] = {}

    def begin(self) -> None:
        """Start noting: call sites are recorded until :meth:`end`."""
        scopes.listen(True)
        if self._caller is UNKNOWN:
            self._caller = scopes.place(sys._getframe(1))[1]

    def end(self) -> None:
        """Stop noting."""
        scopes.unlisten(True)

    def now(self) -> RecordedSite:
        """Return the site of an event of the ledger."""
        site = scopes.site()
        found = self._known.get(site)
        if found is None:
            found = self._known[site] = self._recorded(*site)
        return found

    def _recorded(self, path: str, op: str, phase: str, stack: CallLine) -> RecordedSite:
        lines = []
        caller = self._caller.line, self._caller.code  # equal stacks may be cut at other depths
        level: CallLine | None = stack
        while level is not None and (level.line, level.code) != caller:
            lines.append((level.line, level.code))
            level = level.outer
        return RecordedSite(self._path(path), op, phase, (*lines,), level is None)

    def _path(self, path: str) -> _Path:
        # Backward has the path of the node that runs; its module was called by forward.
        top = level = scopes.current()
        if top is None or top is self._around or top.path != path:
            return self._paths.get(path, _Path("", None, path))
        root = None
        while level is not None and level is not self._around:
            root = level if level.module is not None else root
            level = level.outer
        before = "" if self._around is None else self._around.prefix
        outer = "" if root is None or root.outer is None else _within(root.outer.prefix, before)
        module = None if root is None else root.module
        found = self._paths[path] = _Path(outer, module, scopes.path_within(self._around))
        return found


class ReplayedSites:
    """Sites as a replay shows them. Made where the replay begins."""

    def __init__(self) -> None:
        self._around = scopes.current()
        self._caller = scopes.place(sys._getframe(1))[1]
        self._roots: dict[Any, Any] = {}  # the entry of each outermost module
        self._found: dict[RecordedSite | None, scopes.Site] = {}

    def site(self, recorded: RecordedSite | None) -> scopes.Site:
        """Return a site; of what belongs to no op, that of the call."""
        found = self._found.get(recorded)
        if found is None:
            found = self._found[recorded] = self._site(recorded)
        return found

    def _site(self, recorded: RecordedSite | None) -> scopes.Site:
        if recorded is None:
            path = "" if self._around is None else self._around.path
            return path, "compiled function", "other", self._caller
        stack: CallLine | None = None if recorded.complete else self._caller
        for line, code in reversed(recorded.lines):
            stack = at_line(line, stack, code)
        path = self._path(recorded.path)
        return path, recorded.op, recorded.phase, stack or UNKNOWN

    def _path(self, path: _Path) -> str:
        before = "" if self._around is None else self._around.prefix
        module = None if path.root is None else path.root()
        if module is None:
            return scopes.joined(before, scopes.joined(path.around, path.inner))
        root = self._roots.get((path.around, path.root))
        if root is None:
            root = self._entry(path.around, module)
            self._roots[path.around, path.root] = root
        return scopes.joined(root.prefix, path.inner) if path.inner else str(root.path)

    def _entry(self, names: str, module: Any) -> scopes.Scope:
        # What the call of an outermost module would enter.
        around = self._around
        if names:
            inside = scopes.joined("" if around is None else around.prefix, names)
            around = scopes.Scope(inside, inside, None, around)
        with scopes.resume_scope(around, local.state.phase):
            entry = scopes.enter(module)
        entry.closed = True
        return entry


class shown:
    """Give allocations inside a site.

    Args:
        site: The site.
    """

    def __init__(self, site: scopes.Site) -> None:
        self._site = site
        self._before: list[Any] = [None] * 2

    def __enter__(self) -> None:
        state = local.state
        self._before[:] = state.phase, state.site
        state.phase, state.site = scopes.REPLAYED, self._site

    __exit__ = RestoringExit(state_of_thread, "phase", "site")


def _within(path: str, prefix: str) -> str:
    return path.removeprefix(prefix).removeprefix(".") if prefix else path
