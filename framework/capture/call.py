"""A call of a compiled function: its arguments, and the key that calls of one kind share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import execution
from ..attribution import scopes
from ..device import device, get_default_device
from ..devices import backend
from ..dtypes import get_default_dtype
from ..interop.pytree import tree_flatten
from ..modes import local
from ..storage import Storage
from ..tensor import Tensor
from .kernel_recorder import owner_of

CPU = device("cpu")


class Call:
    """A call.

    Args:
        function: What is called.
        args: Its arguments.
        kwargs: Those by name.

    Attributes:
        again: Calls the function as it is written.
        reason: Why the call can be no recorded one; None if it can.
        tensors: The tensors among the arguments.
        others: All other arguments.
        owners: Who owns the memory of each tensor.
        key: What calls of one kind have in common: specs, strides, values, modes.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.again = functools.partial(function, *args, **kwargs)
        self.reason: str | None = None
        self.tensors: list[Tensor] = []
        self.others: list[Any] = []
        key: list[Any] = []
        leaves, structure = ([*args], len(args)) if not kwargs else tree_flatten((args, kwargs))
        if not kwargs and not all(type(x) is Tensor for x in args):
            leaves, structure = tree_flatten(args)
        for x in leaves:
            if not isinstance(x, Tensor):
                self.others.append(x)
                key.append((type(x), x if isinstance(x, _COMPARED) else id(x)))
                continue
            array = x._array
            if x._viewed is not None:
                x._refresh()
            marked = x._extra is not None and x._extra != _INFERENCE
            if type(x) is not Tensor or marked or x.device.type != "cpu":
                self.reason = "an argument is no plain tensor of the CPU"
                return
            if x._spec.runs is not None:
                self.reason = "an argument is sparse"
                return
            storage = x._storage.root
            if not (isinstance(storage, Storage) or array.flags.c_contiguous):
                self.reason = "an argument is a NumPy array that is not contiguous"
                return
            self.tensors.append(x)
            key.append((x._spec, array.strides, x._requires_grad))
        self.owners = [memory_of(t) for t in self.tensors]
        if len(self.owners) > 1:
            key.append(self._aliasing())
        self.key = (structure, *key, _modes())

    def _aliasing(self) -> Any:
        # Which tensors share memory, and how far apart they lie in it.
        ids = [id(o) for o in self.owners]
        if len(set(ids)) == len(ids):
            return None
        first = [ids.index(i) for i in ids]
        at = [int(t._array.__array_interface__["data"][0]) for t in self.tensors]
        return tuple((k, at[n] - at[k]) for n, k in enumerate(first))


_INFERENCE = {"inference": True}
_COMPARED = (bool, int, float, complex, str, bytes, type(None))


def memory_of(t: Tensor) -> Any:
    """Return who owns the bytes of a tensor."""
    return owner_of(t._array)


def may_replay() -> bool:
    """True outside of what changes how calls run: regions, profilers, budgets, estimates, vmap."""
    state = local.state
    ledger = backend(CPU).ledger
    return (
        stance[0] == "default"
        and state.capture is None
        and state.saver is None
        and state.recorder is None
        and state.dependence is None
        and state.running is None
        and state.function is None
        and not state.levels
        and not state.anomaly
        and not ledger.observers
        and not ledger.budgets
        and type(execution.current) is execution.Executor
        and not scopes.listening()
    )


def _modes() -> tuple[Any, ...]:
    state = local.state
    autocast = None if state.autocast is None else tuple(sorted(state.autocast.items()))
    others = tuple(ask() for ask in _settings)
    defaults = get_default_dtype(), get_default_device()
    return state.grad, state.inference, autocast, defaults, others


stance = ["default"]  # or "force_eager": no call is recorded or replayed
_settings: list[Callable[[], Any]] = []


def depends_on(ask: Callable[[], Any]) -> None:
    """Let recordings hold only while ``ask()`` returns the same: a setting of all modules."""
    _settings.append(ask)
