"""State dicts of modules: saving, loading, and one message with every problem.

``load_state_dict`` walks the tree twice over. The first walk calls each module's
``_load_from_state_dict``, which subclasses may override as in PyTorch, and only notes what is to be
written; then, if nothing is missing, unexpected or mis-shaped, it is written. So a state dict that
does not fit leaves every tensor as it was. (Post-hooks may forgive missing keys, and they must see
the loaded values: with one registered, the verdict on keys comes after the writes.)

Tied tensors stay tied under ``assign=True`` if the state dict gives them the same memory.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..framework.autograd.removable_handle import RemovableHandle, add_hook
from ..framework.autograd.view_history import check_writable
from ..framework.devices import backend
from ..framework.distributed.shards import shard_of
from ..framework.interrupts import defer_interrupts
from ..framework.modes import no_grad
from ..framework.tensor import Tensor
from .parameter import Parameter

if TYPE_CHECKING:
    from .module import Module

EXTRA = "_extra_state"
Hook = Callable[..., Any]


class IncompatibleKeys(NamedTuple):
    """The missing and the unexpected keys of a ``load_state_dict``."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        missing, unexpected = self
        return f"IncompatibleKeys(missing_keys={missing}, unexpected_keys={unexpected})"

    def __str__(self) -> str:
        return repr(self)


class StateDictMixin:
    """Methods of :class:`Module` for its state dict."""

    if TYPE_CHECKING:  # typing.get_type_hints() of a model must not meet names that are not there
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]
        _modules: dict[str, Module | None]
        _non_persistent_buffers_set: set[str]
    _state_hooks: dict[str, Any] | None = None  # kind -> hooks in the order of registration

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """Return parameters, persistent buffers and extra state by path.

        Args:
            args: PyTorch's old positional form of the same three.
            destination: A dict to add to; by default a new ``OrderedDict``.
            prefix: What each path begins with.
            keep_vars: Give the parameters themselves, not detached views of them.

        Returns:
            ``destination``. Its tensors share memory with the module's.
        """
        if args:
            values = (*args, *(destination, prefix, keep_vars)[len(args) :])
            destination, prefix, keep_vars = values
        if destination is None:
            destination = OrderedDict()
        for hook, _ in _hooks(self, "state_pre"):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(
                    destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
                )
        for hook, may_replace in _hooks(self, "state_post"):
            replaced = hook(self, destination, prefix, {})
            if replaced is not None:
                if not may_replace:
                    raise RuntimeError(
                        "state_dict post-hook must return None; change the dict in place."
                    )
                destination = replaced
        return destination

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # What this module itself adds; subclasses may override it.
        for name, p in self._parameters.items():
            if p is not None:
                destination[prefix + name] = p if keep_vars else p.detach()
        for name, b in self._buffers.items():
            if b is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = b if keep_vars else b.detach()
        if _overrides(self, "get_extra_state"):
            destination[prefix + EXTRA] = self.get_extra_state()

    def get_extra_state(self) -> Any:
        """Return extra state for the state dict; subclasses define it."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called. "
            "Define get_extra_state and set_extra_state together."
        )

    def set_extra_state(self, state: Any) -> None:
        """Restore what ``get_extra_state`` returned; subclasses define it."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called. "
            "Define get_extra_state and set_extra_state together."
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Load values by path; if anything does not fit, nothing is written.

        Args:
            state_dict: Tensors by path.
            strict: Missing and unexpected keys are errors.
            assign: Take the given tensors over instead of copying into the present ones; their
                dtype and device become the module's.

        Returns:
            (missing_keys, unexpected_keys).

        Raises:
            TypeError: ``state_dict`` is no mapping.
            RuntimeError: One message with every missing, unexpected and mis-shaped key.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        before, _loading.plan = _loading.plan, _Plan(assign)
        try:
            plan = _loading.plan
            _walk(self, OrderedDict(state_dict), "", plan)
        finally:
            _loading.plan = before
        keys = plan.keys
        wrong = strict and (keys.missing_keys or keys.unexpected_keys)
        if plan.errors or (wrong and not plan.hooks):
            raise _refusal(self, keys, plan.errors, strict)
        plan.write()
        for module, hook in plan.hooks:
            if hook(module, keys) is not None:
                raise RuntimeError(
                    "Hooks registered with register_load_state_dict_post_hook are not expected to "
                    "return new values; modify incompatible_keys in place."
                )
        if strict and (keys.missing_keys or keys.unexpected_keys):
            raise _refusal(self, keys, [], strict)
        return keys

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # What this module itself reads; subclasses may override it, and change state_dict before
        # they call this. Called outside load_state_dict it writes at once.
        plan = _loading.plan or _Plan(bool(local_metadata.get("assign_to_params_buffers")))
        for hook, with_module in _hooks(self, "load_pre"):
            hook(
                *((self,) if with_module else ()),
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        own: dict[str, Tensor] = {n: p for n, p in self._parameters.items() if p is not None}
        own |= {
            n: b
            for n, b in self._buffers.items()
            if b is not None and n not in self._non_persistent_buffers_set
        }
        for name, have in own.items():
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            problem = plan.note(self, name, have, key, state_dict[key])
            if problem is not None:
                error_msgs.append(problem)
        if _overrides(self, "set_extra_state"):
            if prefix + EXTRA in state_dict:
                plan.extra.append((self.set_extra_state, (state_dict[prefix + EXTRA],)))
            elif strict:
                missing_keys.append(prefix + EXTRA)
        elif strict and prefix + EXTRA in state_dict:
            unexpected_keys.append(prefix + EXTRA)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and key != prefix + EXTRA:
                    name, dot, _ = key[len(prefix) :].partition(".")
                    if name not in (self._modules if dot else own):
                        unexpected_keys.append(key)
        if plan is not _loading.plan:
            plan.write()

    # Hooks

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Register ``hook(module, prefix, keep_vars)``, called before ``state_dict`` collects."""
        return _add(self, "state_pre", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Register ``hook(module, state_dict, prefix, metadata)``, called after ``state_dict``.

        It changes the dict in place and returns None.
        """
        return _add(self, "state_post", hook)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        # PyTorch's older form, which may return another dict.
        return _add(self, "state_post", hook, flag=True)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Register a hook that runs before this module loads its part of a state dict.

        Args:
            hook: ``hook(module, state_dict, prefix, local_metadata, strict, missing_keys,
                unexpected_keys, error_msgs)``; it may change the dict and the lists in place.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        # PyTorch's older form of the same, by default without the module.
        return _add(self, "load_pre", hook, with_module)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Register ``hook(module, incompatible_keys)``, called after values were loaded.

        It may take keys off the two lists, and so forgive them.
        """
        return _add(self, "load_post", hook)


def _add(module: Any, kind: str, hook: Hook, flag: bool = False) -> RemovableHandle:
    hooks = module.__dict__.setdefault("_state_hooks", {})
    return add_hook(hooks, kind, (hook, flag))


def _hooks(module: Any, kind: str) -> list[tuple[Hook, bool]]:
    # Hooks of a kind, each with its flag: whether it may replace the dict, or takes the module.
    registered = module._state_hooks
    return list(registered[kind].values()) if registered and kind in registered else []


def _overrides(module: Any, method: str) -> bool:
    return getattr(type(module), method, None) is not getattr(StateDictMixin, method)


# Loading


class _Plan:
    """The writes that a ``load_state_dict`` will make, and the problems found."""

    def __init__(self, assign: bool) -> None:
        self.assign = assign
        self.keys = IncompatibleKeys([], [])
        self.errors: list[str] = []
        self.writes: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.extra: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []  # of the user's
        self.hooks: list[tuple[Any, Hook]] = []
        self.assigned: dict[int, tuple[Tensor, Tensor]] = {}  # id of the old -> (old, new)

    def note(self, owner: Any, name: str, have: Tensor, key: str, given: Any) -> str | None:
        """Plan to load a tensor, or record why its value does not fit."""
        if not isinstance(given, Tensor):
            return (
                f'While copying the parameter named "{key}", expected a Tensor from checkpoint but '
                f"received {type(given)}."
            )
        if have.ndim == 0 and tuple(given.shape) == (1,):
            given = given[0]  # checkpoints from when there were no 0-d tensors
        shard = shard_of(have)
        if shard is not None and shard_of(given) is None and tuple(given.shape) == shard.shape:
            given = given[slice(*shard.own)]  # of the values of all ranks
        if have.shape != given.shape:
            return (
                f"size mismatch for {key}: copying a param with shape {_size(given)} from "
                f"checkpoint, the shape in current model is {_size(have)}."
            )
        if self.assign:
            self.writes.append((_put, (self.assigned, owner, name, have, given)))
            return None
        if given.is_meta and not have.is_meta:
            return (
                f"{key} in the checkpoint is on meta and has no values to copy. "
                "Pass assign=True to take it over as it is."
            )
        if have.is_meta and not given.is_meta:
            warnings.warn(
                f"for {key}: copying from a non-meta parameter in the checkpoint to a meta "
                "parameter in the current model, which is a no-op. (Did you mean to pass "
                "`assign=True` to assign items in the state dictionary to their corresponding key "
                "in the module instead of copying them in place?)",
                stacklevel=6,
            )
            return None
        # What may fail or takes memory comes before the first write.
        with no_grad():
            check_writable(have, "copy_")
            overlaps = given._storage.root is have._storage.root and not _same_memory(given, have)
            if overlaps or given.device != have.device:
                given = given.detach().to(have.device, copy=True)
        self.writes.append((have.copy_, (given,)))
        return None

    def write(self) -> None:
        """Write all tensors, which cannot fail half-way; then load extra state."""
        with no_grad():
            with defer_interrupts():
                for write, arguments in self.writes:
                    write(*arguments)
            for write, arguments in self.extra:
                write(*arguments)


def _put(
    assigned: dict[int, tuple[Tensor, Tensor]], owner: Any, name: str, have: Tensor, given: Tensor
) -> None:
    # A function, not a method of the plan, which would hold itself through what it has planned.
    old = assigned.get(id(have))
    if old is not None and _same_memory(old[1], given):
        setattr(owner, name, old[1])
        return
    new: Tensor = given.detach()
    if isinstance(have, Parameter):
        if isinstance(given, Parameter):
            new = given.requires_grad_(have.requires_grad)
        else:
            new = Parameter(given, have.requires_grad)
    assigned[id(have)] = (have, new)
    setattr(owner, name, new)


class _Loading(threading.local):
    plan: _Plan | None = None


_loading = _Loading()


def _walk(module: Any, state: dict[str, Any], prefix: str, plan: _Plan) -> None:
    metadata = {"assign_to_params_buffers": True} if plan.assign else {}
    missing, unexpected = plan.keys
    module._load_from_state_dict(
        state, prefix, metadata, True, missing, unexpected, plan.errors
    )  # always strict: keys are collected, and judged at the end
    below: dict[str, dict[str, Any]] = {}  # by child, and sorted once for all of them
    for key, value in state.items():
        if key.startswith(prefix):
            name, dot, _ = key[len(prefix) :].partition(".")
            if dot:
                below.setdefault(name, {})[key] = value
    for name, child in module._modules.items():
        if child is not None:
            _walk(child, below.get(name, {}), f"{prefix}{name}.", plan)
    plan.hooks += [(module, hook) for hook, _ in _hooks(module, "load_post")]


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a._storage.root is b._storage.root
        and a._spec is b._spec
        and a.stride() == b.stride()
        and backend(a.device).address(a._array) == backend(b.device).address(b._array)
    )


def _size(t: Tensor) -> str:
    return str(tuple(t.shape))


def _refusal(module: Any, keys: IncompatibleKeys, errors: list[str], strict: bool) -> RuntimeError:
    problems = list(errors)
    if strict and keys.unexpected_keys:
        problems.insert(0, f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}.")
    if strict and keys.missing_keys:
        problems.insert(0, f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}.")
    return RuntimeError(
        f"Error(s) in loading state_dict for {type(module).__name__}:\n\t"
        + "\n\t".join(problems)
        + ("" if errors else "\nstrict=False loads what both have.")
    )


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{k}"' for k in sorted(keys))


__all__ = ["IncompatibleKeys", "StateDictMixin"]
