"""Hooks of modules: before and after ``forward``, and where gradients enter and leave.

A module without hooks pays one attribute test per call: ``_call_hooks`` is None on the class, and
an object on the modules that have some. Hooks of every module hang on the class itself, so they
cost nothing either while there are none.

Gradients are seen at the borders of a call. Where a module has backward hooks, its inputs and its
outputs each pass through a node that does nothing forward. Backward reaches the outputs' node
first: it notes the gradients with the running pass (never in the graph, which would keep them
alive), and the inputs' node calls the hooks with both. The tensors on the other side are views, so
writing them in place works as without hooks.

Not optimal: the two nodes cost a view for each tensor that crosses the border.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..framework.attribution import scopes
from ..framework.autograd.engine import zeros_of
from ..framework.autograd.node import Node, _sequence, attach, edge_to
from ..framework.autograd.removable_handle import RemovableHandle, add_hook
from ..framework.checkpointing.regions import checkpointing
from ..framework.modes import local
from ..framework.tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

Hook = Callable[..., Any]
T = TypeVar("T", bound="HooksMixin")


class CallHooks:
    """The hooks of one module's calls, by kind; each in the order in which they run."""

    __slots__ = (
        "always", "backward", "backward_pre", "forward", "forward_pre", "region", "with_kwargs",
    )  # fmt: skip

    def __init__(self) -> None:
        self.region: checkpointing | None = None  # in which forward runs
        self.forward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.forward: OrderedDict[int, Hook] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.backward: OrderedDict[int, Hook] = OrderedDict()
        self.with_kwargs: set[int] = set()  # keys of hooks that want keyword arguments
        self.always: set[int] = set()  # keys of hooks that run even if forward raises

    def __bool__(self) -> bool:
        hooks = self.forward_pre or self.forward or self.backward_pre or self.backward
        return bool(hooks) or self.region is not None


EVERYWHERE = CallHooks()  # the hooks of every module


class CallHandle(RemovableHandle):
    """Removes a hook; with the last one, the module calls ``forward`` directly again."""

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
        """Call a hook before ``forward``; what it returns replaces the arguments.

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
        """Call a hook after ``forward``; what it returns, if not None, replaces the result.

        Args:
            hook: ``hook(module, args, output)``, or ``hook(module, args, kwargs, output)``.
            prepend: Run it before the hooks that are there.
            with_kwargs: Whether it takes keyword arguments.
            always_call: Also run it if ``forward`` or another hook raises; the output is then None
                or what is known so far.
        """
        return _add(self, "forward", hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` before gradients enter the module.

        Args:
            hook: Gets a tuple with a gradient for each output (None for one without); it may
                return another.
            prepend: Run it before the hooks that are there.
        """
        return _add(self, "backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when gradients have left the module.

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
        """Run ``forward`` in a region of activation checkpointing, each time the module is called.

        What ``forward`` would keep for backward is made again there, as with
        ``lowtide.checkpoint(module, ...)``. Hooks run outside of the region. Copies of the module
        and pickles have the setting too. Where no graph is recorded, it changes nothing.

        Args:
            policy: What becomes of each value (``lowtide.checkpointing.policies``); None recomputes
                all.
            enabled: False ends it.

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
    """Call ``hook(module, args)`` before the ``forward`` of every module."""
    return _add_everywhere("forward_pre", hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after the ``forward`` of every module."""
    return _add_everywhere("forward", hook, with_kwargs, always_call)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_output)`` before gradients enter any module."""
    return _add_everywhere("backward_pre", hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` when gradients have left any module."""
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


def call_hooked(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``forward`` with the hooks of this module and those of every module around it."""
    own = module._call_hooks
    assert own is not None
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
            border = _ModuleBackwardHooks(module, watching, before)
            args = border.enter(args)
        if own.region is None:
            result = module.forward(*args, **kwargs)
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


# Backward


class _ModuleBackwardHooks:
    """What the two nodes around one call share. It holds hooks and the module, and no tensor."""

    __slots__ = ("before", "hooks", "inputs", "module", "n_inputs", "n_outputs", "outputs")

    def __init__(self, module: Module, hooks: list[Hook], before: list[Hook]) -> None:
        self.module = module
        self.hooks = hooks
        self.before = before
        self.inputs: list[int] = []  # which positional arguments need a gradient
        self.outputs: list[int] = []
        self.n_inputs = self.n_outputs = 0

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, seen through the inputs' node."""
        self.n_inputs = len(args)
        if not self.hooks:
            return args
        self.inputs, args = _through(args, self._at_inputs, zeros=True)
        return args

    def leave(self, result: Any) -> Any:
        """The result, seen through the outputs' node."""
        if isinstance(result, tuple):
            outputs = result
        elif isinstance(result, Tensor):
            outputs = (result,)
        else:
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}",
                stacklevel=4,
            )
            return result
        self.n_outputs = len(outputs)
        self.outputs, outputs = _through(outputs, self._at_outputs)
        if not isinstance(result, tuple):
            return outputs[0]
        return type(result)(*outputs) if hasattr(result, "_fields") else outputs

    def _at_outputs(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        grad_outputs = _spread(self.outputs, grads, self.n_outputs)
        for hook in self.before:
            found = hook(self.module, grad_outputs)
            if found is not None:
                grad_outputs = _checked("Backward pre hook", "grad_output", found, self.n_outputs)
        if self.hooks and self.inputs:
            local.state.running.notes[self] = dict(enumerate(grad_outputs))
        elif self.hooks:
            self._without_inputs(grad_outputs)
        return [grad_outputs[k] for k in self.outputs]

    def _at_inputs(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        noted = local.state.running.notes.pop(self, None)
        if noted is None:  # this gradient did not come from the module's outputs
            return grads
        grad_outputs = tuple(noted.values())
        grad_inputs = _spread(self.inputs, grads, self.n_inputs)
        for hook in self.hooks:
            found = hook(self.module, grad_inputs, grad_outputs)
            if found is not None:
                grad_inputs = _checked("Backward hook", "grad_input", found, self.n_inputs)
        return [grad_inputs[k] for k in self.inputs]

    def _without_inputs(self, grad_outputs: tuple[Tensor | None, ...]) -> None:
        # No input needs a gradient, so this is the only border that backward passes.
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module "
            "outputs since no inputs require gradients.",
            stacklevel=2,
        )
        for hook in self.hooks:
            found = hook(self.module, (None,) * self.n_inputs, grad_outputs)
            if found is not None and not (
                isinstance(found, tuple) and all(g is None for g in found)
            ):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always "
                    "return None or None for all gradients."
                )


class _BackwardHookNode(Node):
    """Passes gradients on, and shows them to one side of a border.

    With ``zeros``, a missing gradient is shown, and goes on, as zeros; so PyTorch treats inputs.
    """

    __slots__ = ("edge_specs", "show", "zeros")

    def __init__(self, tensors: list[Tensor], show: Hook, zeros: bool) -> None:
        self.edges = [edge_to(t) for t in tensors]
        self.edge_specs = [t._spec for t in tensors]
        self.show = show
        self.zeros = zeros
        self.seq = next(_sequence)
        self.extra = None

    @property
    def output_count(self) -> int:  # type: ignore[override]
        """As many as it has inputs."""
        return len(self.edges)

    def name(self) -> str:
        """PyTorch's name for the same thing."""
        return "BackwardHookFunctionBackward"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Show the gradients; what comes back goes on."""
        if self.zeros:
            specs = self.edge_specs
            grads = [zeros_of(s) if g is None else g for g, s in zip(grads, specs, strict=True)]
        return self.show(grads)


def _through(
    values: tuple[Any, ...], show: Hook, zeros: bool = False
) -> tuple[list[int], tuple[Any, ...]]:
    # (positions of the values that need a gradient, the values with those behind a node)
    if not local.state.grad:
        return [], values
    places = [k for k, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    if not places:
        return [], values
    views = [values[k].view_as(values[k]) for k in places]
    node = _BackwardHookNode([values[k] for k in places], show, zeros)
    out = list(values)
    for index, (k, view) in enumerate(zip(places, views, strict=True)):
        attach(view, node, index)
        out[k] = view
    return places, tuple(out)


def _spread(places: list[int], grads: Sequence[Tensor | None], n: int) -> tuple[Tensor | None, ...]:
    full: list[Tensor | None] = [None] * n
    for k, g in zip(places, grads, strict=True):
        full[k] = g
    return tuple(full)


def _checked(what: str, name: str, found: Any, n: int) -> tuple[Tensor | None, ...]:
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    if len(found) != n:
        raise RuntimeError(
            f"{what} returned an invalid number of {name}, got {len(found)}, but expected {n}. "
            "Return one for each, None where there is no gradient; or None to change nothing."
        )
    return found
