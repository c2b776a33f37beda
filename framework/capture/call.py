"""A call of a compiled function: its arguments, and the key that calls of one kind share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import execution
from ..autograd.node import Alias, attach
from ..autograd.view_history import base_of, check_writable, continued, rebase
from ..device import device, get_default_device
from ..devices import backend
from ..dtypes import get_default_dtype
from ..interop.pytree import tree_flatten, tree_map
from ..modes import local
from ..storage import Storage
from ..tensor import Tensor, ViewInfo, wrap
from .containers import GivenContainers
from .gathered import Gathered
from .kernel_recorder import owner_of

CPU = device("cpu")


class Call:
    """A call.

    Args:
        function: What is called.
        args: Its arguments.
        kwargs: Those by name.
        module: The module whose call it is, if it is one's.

    Attributes:
        again: Calls the function as it is written.
        reason: Why the call can be no recorded one; None if it can.
        gathered: The parameters that are gathered for this call.
        tensors: The tensors among the arguments, and then ``gathered.tensors``.
        others: All other arguments.
        owners: Who owns the memory of each tensor.
        key: What calls of one kind have in common: specs, strides, values, modes.
        modes: The modes it is called in.
        autocast: The dtypes of autocast, as ``modes.State`` has them.
        guards: What the recording that is replayed for it depends on (``guards.py``).
    """

    guards: Any = None

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: Any = None,
    ) -> None:
        self.again = functools.partial(function, *args, **kwargs)
        self.autocast = local.state.autocast
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
                key.append(_key_of(x))
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
            if not (isinstance(storage, Storage) or _lies_close(array)):
                self.reason = "an argument is a NumPy array that is not contiguous, or not aligned"
                return
            self.tensors.append(x)
            key.append((x._spec, array.strides, x._requires_grad))
        self.gathered = Gathered(module)
        for p in self.gathered.tensors:
            self.tensors.append(p)
            key.append((p._spec, p._requires_grad))
        self.owners = [memory_of(t) for t in self.tensors]
        if len(self.owners) > 1:
            key.append(self._aliasing())
        self.modes = modes()
        self.key = (structure, *key, self.modes)

    def names_objects(self) -> bool:
        """True if it is told from calls of other kinds by the identity of an object."""
        return not all(isinstance(x, _COMPARED) for x in self.others)

    def _aliasing(self) -> Any:
        # Which tensors share memory, and how far apart they lie in it.
        # And which are one tensor: of two that share memory, each has a gradient.
        ids = [id(o) for o in self.owners]
        if len(set(ids)) == len(ids):
            return None
        first = [ids.index(i) for i in ids]
        at = [int(t._array.__array_interface__["data"][0]) for t in self.tensors]
        who = [id(t) for t in self.tensors]
        return tuple((k, at[n] - at[k], who.index(who[n])) for n, k in enumerate(first))


def _lies_close(array: Any) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned)


_INFERENCE = {"inference": True}
_COMPARED = (bool, int, float, complex, str, bytes, type(None))


def _key_of(x: Any) -> tuple[type, Any]:
    return type(x), x if isinstance(x, _COMPARED) else id(x)


def key_of_others(x: Any) -> tuple[Any, ...]:
    """Return what an argument adds to the key of a call, but for its tensors."""
    leaves, structure = tree_flatten(x)
    return structure, *(_key_of(leaf) for leaf in leaves if not isinstance(leaf, Tensor))


def memory_of(t: Tensor) -> Any:
    """Return who owns the bytes of a tensor."""
    return owner_of(t._array)


def may_replay() -> bool:
    """True outside of what changes how calls run: regions, budgets, ``vmap``, timing of kernels.

    Memory profilers see replays as they are, and estimates make them without kernels. An observer
    of the ledger that does not say ``sees_replays`` gets the call as it is written.
    """
    state = local.state
    ledger = backend(CPU).ledger
    return (
        state.capture is None
        and state.saver is None
        and state.recorder is None
        and state.dependence is None
        and state.running is None
        and state.function is None
        and not state.levels
        and not state.anomaly
        and (not ledger.observers or sees_replays(ledger))
        and not ledger.budgets
        and (type(execution.current) is execution.Executor or _counts_replays(ledger))
    )


def _counts_replays(ledger: Any) -> bool:
    # In an estimate: replays whose allocations someone watches are made without kernels.
    return bool(execution.current.counts_replays and ledger.observers)


def sees_replays(ledger: Any) -> bool:
    """True if all observers of a ledger accept a replay in place of the call as written."""
    return all(getattr(o, "sees_replays", False) for o in ledger.observers)


def modes() -> tuple[Any, ...]:
    """Return the modes that kernel calls depend on, and the settings of all modules."""
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


class Inside:
    """A call's arguments as the recorded function gets them: where its graph ends is known.

    Those that require grad are given as other tensors of the same bytes. Gathered parameters are
    leaves.

    Attributes:
        tensors: The tensors of the call, in order.
        function: Calls the function with them.
    """

    def __init__(self, call: Call) -> None:
        args, kwargs = call.again.args, call.again.keywords
        recording = local.state.grad
        given = call.tensors[: len(call.tensors) - len(call.gathered.tensors)]
        differentiable = {id(t): t for t in given if t._requires_grad and recording}
        self.outer = list(differentiable.values())
        self._inner = {id(t): _cut(t) for t in self.outer}
        self._ends = [self._inner[id(t)]._node for t in self.outer]
        self.tensors = [self._inner.get(id(t), t) for t in call.tensors]
        self._versions = [t._storage.version for t in self.outer]
        if self.outer:
            args, kwargs = tree_map(self._given, (args, kwargs))
        self.function = functools.partial(call.again.func, *args, **kwargs)
        whole = call.again.args, call.again.keywords
        self._outer_of = {id(inner): t for t in self.outer for inner in (self._inner[id(t)],)}
        self.containers = GivenContainers(whole, (args, kwargs), self._outer_of)

    def _given(self, x: Any) -> Any:
        return self._inner.get(id(x), x) if isinstance(x, Tensor) else x

    def returned(self, result: Any) -> Any:
        """Return the function's result with the caller's own tensors in it."""
        return self.containers.returned((result,))[0] if self.outer else result

    def join(self, result: Any) -> None:
        """Let the graph of the call go on into the caller's graph, as that of a plain call does.

        Args:
            result: Of the call. Nodes behind it lead to the caller's nodes at once, so that these
                add gradients in the order of a plain call. What else the call has kept goes by
                the ends.
        """
        if not self._ends:
            return
        beyond = {end: end.edges[0] for end in self._ends}
        first = min(end.seq for end in self._ends)
        results = [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)]
        for x in results:
            if x._viewed is not None:
                self._show_base(x, x._viewed)
        seen = {x._node for x in results if x._node is not None}
        waiting = [*seen]
        while waiting:
            node = waiting.pop()
            if node not in beyond and any(target in beyond for target, _ in node.edges):
                node.edges = [beyond.get(target, (target, k)) for target, k in node.edges]
            for target, _ in node.edges:
                if target._is_node and target not in seen and target.seq > first:
                    seen.add(target)
                    waiting.append(target)

    def _show_base(self, x: Tensor, viewed: ViewInfo) -> None:
        # A view of an argument is one of the caller's tensor, which writes in place have to find.
        base = base_of(viewed)
        t = self._outer_of.get(id(base))
        if t is None:
            return
        if t._viewed is None:
            viewed.base = t
        else:
            chain = continued(t._viewed.chain, viewed.chain)
            x._viewed = ViewInfo(base_of(t._viewed), chain, viewed.version, t._viewed.tracked)

    def found(self, result: Any, call: Call) -> list[str]:
        """Return why a call cannot be replayed, by what it did to its arguments and to modes.

        Containers that it has changed are passed on to the caller.

        Raises:
            RuntimeError: It has written to a leaf that requires grad, or to one of two arguments
                that require grad and share memory, and did not in its first call.
        """
        reasons = []
        if self._take_writes():
            reasons.append(_WRITES)
        if self.containers.give_back():
            reasons.append("it changes a list or dict that it is given")
        if self.containers.are_returned(result):
            reasons.append("it returns a list or dict that it is given, or one list or dict twice")
        if modes() != call.modes:
            reasons.append("it changes a mode, such as grad mode, and leaves it changed")
        if any(end.reached for end in self._ends):
            reasons.append(_GOES_THROUGH)
        return reasons

    def _take_writes(self) -> bool:
        # The caller's tensors take the history of writes in place.
        pairs = zip(self.outer, self._versions, strict=True)
        written = [t for t, version in pairs if t._storage.version != version]
        for t in written:
            inner = self._inner[id(t)]
            if isinstance(inner._node, End):  # under no_grad, or by an argument that shares memory
                continue
            check_writable(t, "compile", recorded=True)
            if sum(other._storage.root is t._storage.root for other in self.outer) > 1:
                raise RuntimeError(
                    "compile: the function has written to an argument that requires grad and "
                    "shares memory with another, and did not when it was first called. Call it as "
                    "it is written: compile(f, disable=True)."
                )
            rebase(t, inner._node, inner._index)
        return bool(written)


def _cut(t: Tensor) -> Tensor:
    inner = wrap(t._array, t._spec, t._storage)
    attach(inner, End(t))
    return inner


class End(Alias):
    """Where the graph of a call ends: at an argument. A backward inside of the call goes on there.

    Attributes:
        reached: A backward has gone on.
    """

    __slots__ = ("reached",)

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self.reached = False

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Pass the gradient on unchanged."""
        self.reached = True
        return grads


def changed_by(tensors: list[Tensor]) -> Callable[[], str | None]:
    """Return a function that tells what a call did to arguments that require grad.

    It is to be called after the call, also after one that failed.
    """
    versions = [(t, t._storage.version) for t in tensors if t._requires_grad]
    gradients = [(t, _gradient_of(t)) for t, _ in versions if t._node is None]
    reached: list[Any] = []
    nodes = {t._node for t, _ in versions if t._node is not None}
    handles = [node.register_prehook(reached.append) for node in nodes]

    def tell() -> str | None:
        for handle in handles:
            handle.remove()
        if any(t._storage.version != version for t, version in versions):
            return _WRITES
        if reached or any(_gradient_of(t) != before for t, before in gradients):
            return _GOES_THROUGH
        return None

    return tell


_WRITES = "it writes to an argument that requires grad"
_GOES_THROUGH = "its backward goes through an argument"


def _gradient_of(leaf: Tensor) -> Any:
    g = leaf._grad
    return None if g is None else (id(g), g._storage.version)
