"""Modules that are recorded inside of what runs as it is written.

A call that cannot be recorded runs its Python code. The modules that it calls may be recorded all
the same. Each gets a compiled function, when it is first called there. A module that cannot be
recorded either runs as it is written, with the modules in it recorded, and so on. In between the
statements of its forward are divided (``division/``), if its class is the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ..attribution.scopes import watch_calls
from ..modes import local
from .gathered import Gathered
from .trail import Step
from .walk import is_lowtide

_UNUSED = 256  # calls after which a module is forgotten that they did not call


def _after_fork() -> None:
    local.state.inner = None  # a child may be forked by what runs as it is written


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Entry:
    # A module's compiled function, or None if the module is run as it is written.

    def __init__(self, module: Any, compiled: Any) -> None:
        self.module = module  # so no other object gets its id
        self.compiled = compiled
        self.last = 0


class InnerModules:
    """The compiled functions of modules that a call runs.

    Args:
        make: Returns a compiled function: ``make(function, module)``.
        module: The module whose calls the function makes, if it makes one's.
    """

    def __init__(self, make: Callable[[Any, Any], Any], module: Any = None) -> None:
        self.module = module
        self._make = make
        self._entries: dict[int, _Entry] = {}
        self._forward: Any = None
        self._runs = 0
        self._reason = ""
        self._trail: Sequence[Step] = ()  # modules that cannot be recorded, for this reason

    def expect(self, reason: str, trail: Sequence[Step]) -> None:
        """Divide modules in the next call, without an attempt to record them.

        Args:
            reason: Why a recording has ended.
            trail: The calls of modules in which it has.
        """
        self._reason, self._trail = reason, trail

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function as it is written, and record the modules that it calls."""
        watch_calls()
        self._runs += 1
        if self._runs % _UNUSED == 0:
            self._forget_unused()
        state = local.state
        before = state.inner
        state.inner = self
        try:
            return function(*args, **kwargs)
        finally:
            state.inner = before
            self._trail = ()

    def call_of(self, module: Any, run: Callable[..., Any]) -> Any:
        """Return what makes a module's call; None to make it as it is written.

        Args:
            module: The module.
            run: ``run(module, *args, **kwargs)`` makes the call as it is written.
        """
        if module is self.module:
            return None
        entry = self._entries.get(id(module))
        if entry is None:
            compiled = self._make(partial(run, module), module) if _is_worth_it(module) else None
            places = [k for k, step in enumerate(self._trail) if step.module is module]
            if compiled is not None and places:
                compiled.presume(self._reason, self._trail[places[0] :])
            entry = self._entries[id(module)] = _Entry(module, compiled)
        entry.last = self._runs
        return entry.compiled

    def forward_of(self, module: Any) -> Any:
        """Return what runs the forward of a module: statement by statement, of this one."""
        if module is not self.module:
            return module.forward
        forward = module.forward
        if self._forward is None or self._forward.function != forward:
            if not _is_divisible(module):
                return forward
            self._forward = self._make(forward, None)
            trail = self._trail
            if trail and trail[0].module is module:
                self._forward.presume_statement(self._reason, trail[0], trail[1:])
        return self._forward

    def compiled(self) -> Iterator[Any]:
        """Yield the compiled functions."""
        if self._forward is not None:
            yield self._forward
        for entry in self._entries.values():
            if entry.compiled is not None:
                yield entry.compiled

    def forget(self) -> None:
        """Forget all of them."""
        self._entries.clear()
        self._forward = None

    def _forget_unused(self) -> None:
        # Modules of the past are not kept alive.
        old = [k for k, entry in self._entries.items() if entry.last < self._runs - _UNUSED]
        for key in old:
            del self._entries[key]


def _is_worth_it(module: Any) -> bool:
    # A layer of lowtide's without modules inside is a few ops: what a replay saves is less than
    # what it costs.
    if "_compiled" in module.__dict__:  # what compile(module) returned
        return False
    return bool(module._modules) or not is_lowtide(type(module).__module__)


def _is_divisible(module: Any) -> bool:
    forward = module.forward
    if not isinstance(forward, MethodType) or not isinstance(forward.__func__, FunctionType):
        return False
    return not is_lowtide(forward.__func__.__module__) and not Gathered(module).tensors
