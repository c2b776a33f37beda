"""Module hooks: forward ones and their pre-hooks; those of gradients are in ``backward_hooks.py``.

A module without hooks pays one attribute test per call: ``_call_hooks`` is None on the class, and
an object on the modules that have some. Hooks of every module hang on the class itself, so they
cost nothing either while there are none.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..framework.attribution import scopes
from ..framework.autograd.removable_handle import RemovableHandle, add_hook
from ..framework.capture.trail import module_calls
from ..framework.checkpointing.regions import checkpointing
from ..framework.modes import local
from .backward_hooks import Hook, ModuleBackwardHooks

if TYPE_CHECKING:
    from .module import Module

T = TypeVar("T", bound="HooksMixin")


class CallHooks:
    """The hooks of one module's calls by kind, in the order in which they run."""

    __slots__ = (
        "always",
        "backward",
        "backward_pre",
        "compiled",
        "forward",
        "forward_pre",
        "region",
        "with_kwargs",
    )

    def __init__(self) -> None:
        self.region: checkpointing | None = None  # in which forward runs
        self.compiled: Any = None  # what records and replays calls (compiled.py)
        self.forward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.forward: OrderedDict[int, Hook] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.backward: OrderedDict[int, Hook] = OrderedDict()
        self.with_kwargs: set[int] = set()  # keys of hooks that want keyword arguments
        self.always: set[int] = set()  # keys of hooks that run even if forward raises

    def __bool__(self) -> bool:
        hooks = self.forward_pre or self.forward or self.backward_pre or self.backward
        return bool(hooks) or self.region is not None or self.compiled is not None

    def functions(self) -> list[Hook]:
        """Return all hooks."""
        kinds = (self.forward_pre, self.forward, self.backward_pre, self.backward)
        return [hook for kind in kinds for hook in kind.values()]


EVERYWHERE = CallHooks()  # the hooks of every module


class CallHandle(RemovableHandle):
    """A handle that removes a hook; without hooks the module calls ``forward`` directly."""

    def __init__(self, owner: Any, hooks: OrderedDict[int, Any], key: int) -> None:
        super().__init__(hooks, key)
        self._owner: Callable[[], Any] = weakref.ref(owner)

    def __getstate__(self) -> Any:
        return self._hooks, self.id

    def __setstate__(self, state: Any) -> None:
        self._hooks, self.id = state
        self._owner = _nobody

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        super().remove()
        owner = self._owner()
        if owner is not None and not owner.__dict__.get("_call_hooks", True):
            if isinstance(owner, type):
                owner._call_hooks = None  # type: ignore[attr-defined]
            else:
                del owner.__dict__["_call_hooks"]


def _nobody() -> None:
    """The owner of a handle that was copied or unpickled."""


def _kind(kind: str) -> property:
    # The dict of a kind of hooks, as an attribute.
    def read(module: Any) -> OrderedDict[int, Hook]:
        return getattr(_own(module), kind)

    def write(module: Any, hooks: Any) -> None:
        setattr(_own(module), kind, OrderedDict(hooks))

    return property(read, write)


class HooksMixin:
    """Methods of :class:`Module` for hooks."""

    _call_hooks: CallHooks | None = None

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Register a hook that runs before ``forward``; its result replaces the arguments.

        Args:
            hook: ``hook(module, args)``, which returns None, new arguments as a tuple, or a single
                new argument; with ``with_kwargs``, ``hook(module, args, kwargs)``, which returns
                None or (args, kwargs).
            prepend: Run it before the hooks that are there.
            with_kwargs: Whether it takes keyword arguments.
        """
        return _add(self, "forward_pre", hook, prepend, with_kwargs)

    def register_forward_hook(
        self,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Register a hook that runs after ``forward``; its result replaces the output.

        Args:
            hook: ``hook(module, args, output)``, or ``hook(module, args, kwargs, output)``.
            prepend: Run it before the hooks that are there.
            with_kwargs: Whether it takes keyword arguments.
            always_call: Also run it if ``forward`` or another hook raises; the output is then None
                or what is known so far.
        """
        return _add(self, "forward", hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Register ``hook(module, grad_output)``, called before gradients enter the module.

        Args:
            hook: Gets a tuple with a gradient for each output (None for one without); it may
                return another.
            prepend: Run it before the hooks that are there.
        """
        return _add(self, "backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Register ``hook(module, grad_input, grad_output)``, called after the module's backward.

        Args:
            hook: Gets tuples with a gradient for each positional argument of the call, and for each
                output; None stands for what is no tensor or needs no gradient. It may return
                another ``grad_input``. An input that nothing was computed from gets zeros.
            prepend: Run it before the hooks that are there.

        Memory:
            ``grad_output`` lives until backward has left the module. The other hooks keep nothing.
        """
        return _add(self, "backward", hook, prepend)

    def set_checkpointing(self: T, policy: Any = None, enabled: bool = True) -> T:
        """Enable activation checkpointing of this module's ``forward``.

        What ``forward`` would keep for backward is recomputed there, as with
        ``lowtide.checkpoint(module, ...)``. Hooks run outside of the region. Copies of the module
        and pickles have the setting too. Where no graph is recorded, it changes nothing.

        Args:
            policy: What becomes of each value (``lowtide.checkpointing.policies``); None recomputes
                all.
            enabled: False ends it; ``set_checkpointing(False)`` too.

        Returns:
            The module.

        Raises:
            TypeError: The module has no ``forward``: a ``ModuleList``, say.

        Example:
            >>> import lowtide as lt
            >>> model = lt.nn.Sequential(lt.nn.Linear(8, 8), lt.nn.Linear(8, 8))
            >>> for block in model:
            ...     block = block.set_checkpointing()
        """
        if isinstance(policy, bool):  # the question is on or off, as everybody writes it
            policy, enabled = None, policy and enabled
        if enabled:
            if _has_no_forward(self):
                raise TypeError(
                    f"set_checkpointing: a {type(self).__name__} has no forward and is never "
                    "called, so this would change nothing. Set it for the modules in it."
                )
            _own(self).region = checkpointing(policy)
        elif "_call_hooks" in self.__dict__:
            own = _own(self)
            own.region = None
            if not own:
                del self.__dict__["_call_hooks"]
        return self

    # PyTorch's own names for the dicts, which model code clears or looks into

    _forward_pre_hooks = _kind("forward_pre")
    _forward_hooks = _kind("forward")
    _backward_pre_hooks = _kind("backward_pre")
    _backward_hooks = _kind("backward")


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Register ``hook(module, args)``, called before ``forward`` of every module."""
    return _add_everywhere("forward_pre", hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Register ``hook(module, args, output)``, called after ``forward`` of every module."""
    return _add_everywhere("forward", hook, with_kwargs, always_call)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Register ``hook(module, grad_output)``, called before gradients enter any module."""
    return _add_everywhere("backward_pre", hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Register ``hook(module, grad_input, grad_output)``, called after any module's backward."""
    return _add_everywhere("backward", hook)


# Keeping them


def _own(owner: Any) -> CallHooks:
    # Straight in __dict__: Module.__setattr__ is for what users assign.
    found: CallHooks | None = owner.__dict__.get("_call_hooks")
    if found is None:
        found = owner.__dict__["_call_hooks"] = CallHooks()
    return found


def _add_everywhere(
    kind: str, hook: Hook, with_kwargs: bool = False, always: bool = False
) -> RemovableHandle:
    from .module import Module

    Module._call_hooks = EVERYWHERE
    return _insert(Module, EVERYWHERE, kind, hook, False, with_kwargs, always)


def _add(
    owner: Any,
    kind: str,
    hook: Hook,
    prepend: bool,
    with_kwargs: bool = False,
    always: bool = False,
) -> RemovableHandle:
    return _insert(owner, _own(owner), kind, hook, prepend, with_kwargs, always)


def _insert(
    owner: Any, to: CallHooks, kind: str, hook: Hook, prepend: bool, with_kwargs: bool, always: bool
) -> RemovableHandle:
    hooks: OrderedDict[int, Hook] = getattr(to, kind)
    key = add_hook({kind: hooks}, kind, hook).id
    if prepend:
        hooks.move_to_end(key, last=False)
    if with_kwargs:
        to.with_kwargs.add(key)
    if always:
        to.always.add(key)
    return CallHandle(owner, hooks, key)


# Running them


def call_watched(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module while a profiler listens, or a compiled function may record its calls."""
    entry = scopes.enter(module) if scopes.recording.on else None
    state = local.state
    try:
        own = module._call_hooks
        if state.inner is not None and (own is None or own.compiled is None):
            compiled = state.inner.call_of(module, run_hooked)
            if compiled is not None:
                return compiled(*args, **kwargs)
        if own is not None:
            return call_hooked(module, args, kwargs)
        return _forward_of(module)(*args, **kwargs)
    finally:
        if entry is not None:  # `leave`, written out: an interrupt at its entry would undo it
            entry.closed = True
            if state.scope is entry:
                state.scope = entry.outer


def call_hooked(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that has hooks, or is compiled."""
    own = module._call_hooks
    if own is not None and own.compiled is not None:
        return own.compiled(*args, **kwargs)
    return run_hooked(module, *args, **kwargs)


def compile_calls(module: Module, compiled: Any) -> None:
    """Let ``compiled`` run the calls of a module."""
    _own(module).compiled = compiled


def run_hooked(module: Module, *args: Any, **kwargs: Any) -> Any:
    """Call ``forward`` with the hooks of this module and those of every module."""
    own = module._call_hooks
    if own is None:
        return _forward_of(module)(*args, **kwargs)
    groups = (own,) if own is EVERYWHERE else (EVERYWHERE, own)
    called: set[int] = set()
    result = None
    try:
        for group in groups:
            for key, hook in list(group.forward_pre.items()):
                args, kwargs = _before(module, hook, key in group.with_kwargs, args, kwargs)
        border = None
        watching = [h for g in groups for h in g.backward.values()]
        before = [h for g in groups for h in g.backward_pre.values()]
        if watching or before:
            border = ModuleBackwardHooks(module, watching, before)
            args = border.enter(args)
        if own.region is None:
            result = _forward_of(module)(*args, **kwargs)
        else:
            result = _in_region(own.region, module, args, kwargs)
        for group in groups:
            for key, hook in list(group.forward.items()):
                called.add(key)
                replaced = _after(module, hook, key in group.with_kwargs, args, kwargs, result)
                if replaced is not None:
                    result = replaced
        return result if border is None else border.leave(result)
    except Exception:
        for group in groups:
            for key, hook in list(group.forward.items()):
                if key in group.always and key not in called:
                    try:
                        with_kwargs = key in group.with_kwargs
                        replaced = _after(module, hook, with_kwargs, args, kwargs, result)
                    except Exception as error:
                        warnings.warn(
                            "a forward hook with always_call=True raised an exception that was "
                            f"silenced, since forward had raised another: {error!r}",
                            stacklevel=3,
                        )
                        continue
                    if replaced is not None:
                        result = replaced
        raise


module_calls[run_hooked.__code__] = "module"


def _forward_of(module: Module) -> Any:
    inner = local.state.inner
    return module.forward if inner is None else inner.forward_of(module)


def _has_no_forward(module: Any) -> bool:
    from .module import Module

    return getattr(module.forward, "__func__", None) is Module.forward


def _in_region(
    region: checkpointing, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with region._again():  # another thread may be in it
        if not scopes.listening():
            return module.forward(*args, **kwargs)
        # Paths in the region begin at this module, though its call began outside.
        entry = scopes.enter(module)
        try:
            return module.forward(*args, **kwargs)
        finally:
            scopes.leave(entry)


def _before(
    module: Module, hook: Hook, with_kwargs: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if with_kwargs:
        found = hook(module, args, kwargs)
        if found is None:
            return args, kwargs
        if not isinstance(found, tuple) or len(found) != 2:
            raise RuntimeError(
                f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                f"{found}."
            )
        return found
    found = hook(module, args)
    if found is None:
        return args, kwargs
    return found if isinstance(found, tuple) else (found,), kwargs


def _after(
    module: Module, hook: Hook, with_kwargs: bool, args: Any, kwargs: Any, result: Any
) -> Any:
    if with_kwargs:
        return hook(module, args, kwargs, result)
    return hook(module, args, result)
