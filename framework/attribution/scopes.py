"""Scopes: the module path, op, phase and source line of an allocation.

Nothing here runs without a listener (:func:`listen`). While ``recording.on`` is true:

- the call of a module enters a scope;
- every node of the graph notes where it was made, as a path and a line (``node._site``);
- the engine says which node's backward runs, so that what backward allocates belongs to the
  forward op.

A path comes from the calls: a module called inside another is named as the other's attributes
name it, so a shared module has the path of each call. The outermost one lends its paths no prefix,
unless another was there first, or a scope or a listener names it. Modules are known by
``named_modules`` and weak references; nothing is kept alive. Of several models each is called
what the program's variables call it, if a listener can tell, else by its class; so are single
layers, and those of a list. Parts that are called without their model have their paths in it.

The user's line and its callers are found by walking the stack (``frames.py``).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..interrupts import RestoringExit
from ..modes import _Mode, local, state_of_thread
from .call_stacks import BEFORE, UNKNOWN, CallLine, forget
from .frames import ENGINE, OP, walk

Site = tuple[str, str, str, CallLine]  # module path, op, phase, the user's line

_lock = threading.RLock()
_counts = {"listening": 0, "lines": 0}
REPLAYED = "replayed"  # a phase: a replay has set the site (recorded_sites.py)
_children: dict[int, tuple[Any, dict[int, tuple[Any, str]]]] = {}
_roots: dict[tuple[int, str], tuple[Any, Scope]] = {}
_given: list[tuple[Any, str]] = []
_listeners: dict[str, list[Callable[..., Any]]] = {
    "seen": [],
    "stepped": [],
    "made": [],
    "owned": [],
    "began": [],
    "called": [],
    "entered": [],
    "replayed": [],
}
optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # all there are; each adds itself


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Recording:
    """Whether call sites are recorded.

    Attributes:
        on: True while a listener is registered.
        calls: Calls of modules take the longer way: ``on``, or once :func:`watch_calls` was called.
    """

    __slots__ = ("calls", "on", "watched")

    def __init__(self) -> None:
        self.on = self.calls = self.watched = False


recording = Recording()  # of the process; calls of modules and new nodes look at it


class Scope:
    """An entry on a thread's stack of scopes: a module's call, or a name the user gave.

    Attributes:
        path: What is allocated here belongs to.
        prefix: What the paths of modules called from here begin with.
        module: A weak reference, or None for a named scope.
        owner: The innermost module's entry, this one included; None outside of modules.
        outer: The entry below.
        stack: Of a module's entry: the user's lines that led to the call, once someone asked.
        closed: It was left; one left out of turn (by a generator) goes when it comes to lie on top.
        evaluates: The outermost module around it was called without gradients being recorded.
    """

    __slots__ = ("closed", "evaluates", "module", "outer", "owner", "path", "prefix", "stack")
    owner: Scope | None

    def __init__(self, path: str, prefix: str, module: Any, outer: Scope | None) -> None:
        self.path = path
        self.prefix = prefix
        self.module = module
        self.outer = outer
        self.owner = self if module is not None else outer.owner if outer is not None else None
        self.stack: CallLine | None = None
        self.closed = False
        inside = outer is not None and outer.owner is not None
        self.evaluates: bool = outer.evaluates if inside else not local.state.grad  # type: ignore[union-attr]


# Listening


def listen(lines: bool, **told: Callable[..., Any]) -> None:
    """Start recording call sites, until :func:`unlisten` is called with the same arguments.

    Args:
        lines: The user's source lines too.
        **told: Whom to call of what: ``seen(module, prefix)`` when an outermost module is first
            called; ``stepped(optimizer)`` after each step; ``owned(tensor, parameter)`` with each
            new tensor of an optimizer's state; ``made(node)`` with each new node of the graph,
            before it has its edges; ``began(node)`` when a backward begins, with its first node;
            ``entered(module)`` at each call of an outermost module, before it;
            ``called(module)`` to answer what the program calls an outermost module, the module
            around it, if only that has a name, and if there is no other model beside it; or None;
            ``replayed(leaves)`` when a compiled function is replayed, with leaves that it uses.
    """
    with _lock:
        _counts["listening"] += 1
        _counts["lines"] += lines
        for what, listener in told.items():
            _listeners[what].append(listener)
        if "seen" in told:
            for reference, entry in list(_roots.values()):
                if reference() is not None:
                    told["seen"](reference(), entry.prefix)
        recording.on = recording.calls = True


def unlisten(lines: bool, **told: Callable[..., Any]) -> None:
    """Stop what :func:`listen` started."""
    with _lock:
        _counts["listening"] -= 1
        _counts["lines"] -= lines
        for what, listener in told.items():
            _listeners[what].remove(listener)
        if _counts["listening"] == 0:
            recording.on = False
            recording.calls = recording.watched
            for kept in (_children, _roots, _given):
                kept.clear()
            forget()


def watch_calls() -> None:
    """Let calls of modules ask ``State.inner`` from now on (``capture/inner_modules.py``)."""
    recording.calls = recording.watched = True


def listening() -> bool:
    """True while a listener is registered."""
    return recording.on


def name_module(module: Any, prefix: str) -> None:
    """Set the path prefix of a module and its submodules, while a listener is registered."""
    _given.append((weakref.ref(module), prefix))


def stepped(optimizer: Any) -> None:
    """Notify listeners of an optimizer step."""
    for listener in list(_listeners["stepped"]):
        listener(optimizer)


def belongs(tensor: Any, parameter: Any) -> None:
    """Notify listeners that a new tensor is the optimizer state of a parameter."""
    for listener in list(_listeners["owned"]):
        listener(tensor, parameter)


def replayed(leaves: list[Any]) -> None:
    """Notify listeners of a replay, and of leaves that it uses."""
    for listener in list(_listeners["replayed"]):
        listener(leaves)


# Scopes


class scope(_Mode):
    """Attribute allocations inside to a named part of the program.

    The name becomes part of the path, where a module's would be: ``blocks.3.attention.softmax`` for
    ``scope("softmax")`` in the forward of ``attention``; and a model called inside
    ``scope("teacher")`` has the paths ``teacher.blocks.0``. It is also a decorator.

    Args:
        name: What to call it.
        args: Accepted as ``torch.profiler.record_function`` does; becomes part of the name.

    Example:
        >>> import lowtide as lt
        >>> with lt.profiling.MemoryProfiler() as prof:
        ...     with lt.profiling.scope("noise"):
        ...         x = lt.ones(1000)
        >>> prof.at_peak("module", role="temporary").as_dict()["noise"]
        4000
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"scope: a name is a non-empty string; got {name!r}.")
        self.name = name if args is None else f"{name}({args})"
        self._entries: list[Scope] = []

    def _again(self) -> Any:
        return type(self)(self.name)

    def __enter__(self) -> scope:
        top = current()
        path = joined(top.prefix if top is not None else "", self.name)
        entry = Scope(path, path, None, top)
        state = local.state
        self._entries += (entry,)  # no call before the next line
        state.scope = entry
        return self

    # Marks the last entry as closed: `current` passes over it.
    __exit__ = RestoringExit(
        None,
        "closed",
        values=lambda _: (True,),
        owners=lambda self: islice(iter(self._entries.pop, None), 1),
    )


record_function = scope


def current() -> Scope | None:
    """Return the innermost open scope of this thread."""
    state = local.state
    top: Scope | None = state.scope
    while top is not None and top.closed:
        top = top.outer
    state.scope = top
    return top


def enter(module: Any) -> Scope:
    """Enter the scope of a module's call; ``leave`` exits it."""
    top = current()
    entry = None
    owner = top.owner if top is not None else None
    level = owner
    while level is not None:  # mostly the first one is it
        parent = level.module()
        name = _name_in(parent, module) if parent is not None else None
        if name is not None:
            base = top.prefix if level is owner and top is not None else level.prefix
            path = joined(base, name) if name else level.path
            entry = Scope(path, path if name else level.prefix, weakref.ref(module), top)
            break
        level = level.outer.owner if level.outer is not None else None
    if entry is None:
        if owner is None:
            for listener in _listeners["entered"]:
                listener(module)
            entry = _root(module, top)
        else:  # a module that no module around it knows
            assert top is not None
            path = joined(top.prefix, type(module).__name__)
            entry = Scope(path, path, weakref.ref(module), top)
    local.state.scope = entry
    return entry


def path_within(around: Scope | None) -> str:
    """Return the path of the innermost scope, relative to the outermost module inside ``around``.

    It does not depend on who listens, or since when: that module's own path does.
    """
    inner = current()
    if inner is None or inner is around:
        return ""
    top, level = None, inner
    while level is not None and level is not around:
        if level.module is not None:
            top = level
        level = level.outer  # type: ignore[assignment]
    if inner is top:
        return ""
    base = top.prefix if top is not None else "" if around is None else around.prefix
    return inner.path.removeprefix(base).removeprefix(".")


def leave(entry: Scope) -> None:
    """Exit a scope, also out of order."""
    entry.closed = True
    state = local.state
    if state.scope is entry:
        state.scope = entry.outer


class resume_scope:
    """Enter an earlier scope again, in a phase: for recomputation of a part of the forward.

    Args:
        scoped: What :func:`current` returned then; it may have been left since.
        phase: Such as ``recompute``.
    """

    def __init__(self, scoped: Scope | None, phase: str | None) -> None:
        self.scoped = None if scoped is None else _reopened(scoped)
        self.phase = phase
        self._before: list[Any] = [None] * 3

    def __enter__(self) -> None:
        state = local.state
        self._before[:] = state.scope, state.phase, state.site
        state.scope, state.phase, state.site = self.scoped, self.phase, None

    __exit__ = RestoringExit(state_of_thread, "scope", "phase", "site")


def _reopened(scoped: Scope) -> Scope:
    # Copies that are open, down to the outermost module.
    outer = None if scoped.outer is None else _reopened(scoped.outer)
    copy = Scope(scoped.path, scoped.prefix, scoped.module, outer)
    copy.stack = scoped.stack
    return copy


def joined(prefix: str, name: str) -> str:
    """Return the path of a name below a prefix; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _name_in(parent: Any, module: Any) -> str | None:
    # The path of a module below another; None if it is not there.
    key = id(parent)
    found = _children.get(key)
    if found is None or found[0]() is not parent:
        found = _children[key] = (weakref.ref(parent), {})
    known = found[1].get(id(module))
    if known is None or known[0]() is not module:
        for name, m in parent.named_modules():
            found[1].setdefault(id(m), (weakref.ref(m), name))
            if found[1][id(m)][0]() is not m:
                found[1][id(m)] = (weakref.ref(m), name)
        known = found[1].get(id(module))
        if known is None or known[0]() is not module:
            return None
    return known[1]


def _root(module: Any, top: Scope | None) -> Scope:
    reference, named = _known_root(module, top.prefix if top is not None else "")
    return Scope(named.path, named.prefix, reference, top)


def _known_root(module: Any, base: str) -> tuple[Any, Scope]:
    known = _roots.get((id(module), base))
    if known is None or known[0]() is not module:
        with _lock:
            known = _roots.get((id(module), base))  # another thread may have been first
            if known is not None and known[0]() is module:
                return known
            known = _new_root(module, base)
        for listener in list(_listeners["seen"]):
            listener(module, known[1].prefix)
    return known


def _new_root(module: Any, base: str) -> tuple[Any, Scope]:
    reference = weakref.ref(module)
    kind = type(module).__name__
    for given, prefix in _given:
        root = given()
        name = _name_in(root, module) if root is not None else None
        if name is not None:
            path = joined(base, joined(prefix, name))
            entry = Scope(path or kind, path, reference, None)
            break
    else:
        called, around, alone = _called(module) if _has_parameters(module) else ("", None, True)
        if around is not None:
            prefix = joined(_known_root(around, base)[1].prefix, _name_in(around, module) or kind)
        elif alone and not called.rpartition(".")[2].isdigit() and _leads(module, base):
            prefix = base
        else:
            prefix = _free(joined(base, called or kind), base)
        entry = Scope(prefix or kind, prefix, reference, None)
    _roots[id(module), base] = (reference, entry)
    return reference, entry


def _leads(module: Any, base: str) -> bool:
    # The first model lends no prefix: not a single layer, nor a loss.
    single = next(iter(module.children()), None) is None
    if single or not _has_parameters(module):
        return False
    others = [r() for (_, b), (r, _) in list(_roots.items()) if b == base]
    return not any(other is not None and _has_parameters(other) for other in others)


def _free(name: str, base: str) -> str:
    others = [e for (_, b), (r, e) in list(_roots.items()) if b == base and r() is not None]
    taken = {e.prefix for e in others} | {e.path for e in others}
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def _called(module: Any) -> tuple[str, Any, bool]:
    # What the program calls it, or an empty string; the module around it, if that has the name;
    # and whether there is no other model beside it.
    for listener in list(_listeners["called"]):
        told: tuple[str, Any, bool] | None = listener(module)
        if told is not None:
            return told
    return "", None, True


def _has_parameters(module: Any) -> bool:
    return next(iter(module.parameters()), None) is not None


# Sites


def site() -> Site:
    """Return the call site of the caller's caller in the user's program, for ledger observers."""
    state = local.state
    phase = state.phase
    if state.site is not None and phase in ("backward", "recompute", REPLAYED):
        return state.site
    scoped = state.scope
    if scoped is not None and scoped.closed:
        scoped = current()
    op, stack, kind = walk(
        sys._getframe(3), None if scoped is None else scoped.owner, _counts["lines"] > 0
    )
    if op == "apply" and state.function is not None:
        op = state.function
    if phase is None:
        if kind == ENGINE:
            phase = "backward"
        elif scoped is not None and scoped.owner is not None:
            phase = "evaluation" if scoped.evaluates else "forward"
        elif kind == OP and state.grad:
            phase = "forward"
        else:
            phase = "other"
    elif phase == "optimizer" and state.grad and kind == OP:  # a closure that computes the loss
        phase = "forward"
    return ("" if scoped is None else scoped.path, op, phase, stack)


# Nodes


def note_node(node: Any) -> None:
    """Note where a new node is made; of one that backward makes, the site of the running node."""
    state = local.state
    if state.phase == "backward" and state.site is not None:
        node._site = (state.site[0], state.site[3])
    else:
        node._site = place(sys._getframe(1))
    for listener in _listeners["made"]:
        listener(node)


def place(frame: Any) -> tuple[str, CallLine]:
    """Return the module path and the user's source line of a frame."""
    scoped = current()
    owner = None if scoped is None else scoped.owner
    stack = walk(frame, owner, True)[1] if _counts["lines"] else UNKNOWN
    return ("" if scoped is None else scoped.path, stack)


def enter_node(node: Any) -> None:
    """Attribute later allocations to the backward of a node: to its forward op."""
    if local.state.site is None:
        for listener in list(_listeners["began"]):
            listener(node)
    made = getattr(node, "_site", None)
    module, stack = ("", BEFORE if _counts["lines"] else UNKNOWN) if made is None else made
    local.state.site = (module, node.name(), "backward", stack)
