"""Recording of a call: its kernel calls, and what Python sees of them.

:class:`Recorder` adds to the kernel calls what they leave: gradients of leaves, writes to tensors
that were there before, results, calls that each replay makes anew. And it checks that nothing else
is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from operator import is_
from typing import Any

import numpy as np

from ..autograd.node import Alias, OpNode
from ..autograd.view_history import base_of
from ..interop.pytree import tree_flatten
from ..memory.ledger import SAVED
from ..tensor import Tensor
from .guards import Guards, state_of_live
from .kernel_recorder import PLAIN, KernelRecorder, address_of, owner_of
from .program import (
    ARENA,
    CONSTANT,
    FRESH,
    GIVEN,
    Effects,
    EmptyArray,
    Given,
    LiveCall,
    Place,
    Result,
    Row,
    StepProgram,
    Value,
)
from .returned_numbers import Number


class Recorder(KernelRecorder):
    """Records one call.

    Args:
        arguments: The tensors that the call is given.
        guards: What the walk has found (``guards.py``).
        gathered: Those among the arguments that are gathered for the call.

    Attributes:
        outputs: Results with a graph whose backward runs later: tensors on the real graph.
        keeps: It is refused because the call keeps a tensor elsewhere than in its result.
        by_result: It is refused because of what the call returns.
        wrong_result: The tensor among the results that it is refused for, or None.
    """

    def __init__(
        self, arguments: Sequence[Tensor], guards: Guards, gathered: Sequence[Tensor] = ()
    ) -> None:
        super().__init__(arguments, guards.tensors)
        self.gathered = gathered
        self.program.gathered_from = len(arguments) - len(gathered)
        self.outputs: list[Tensor] = []
        self.keeps = self.by_result = False
        self.wrong_result: Tensor | None = None
        self._guards = guards
        self._gradients = {k: self._gradient_owner(k) for k in self._leaves}
        self._old_gradients = dict(self._gradients)
        self._kept_for_live: set[int] = set()  # leaves whose old gradient a live call may read
        self._lives = 0
        self._versions = [t._storage.version for t in self._tensors]
        self._live_states = [state_of_live(o) for o in guards.live]

    # Calls that are made anew

    def live(
        self, method: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call that each replay makes anew, and note it."""
        leaves, _ = tree_flatten((args, kwargs))
        if not all(isinstance(x, PLAIN) or self._guards.reaches(x) for x in leaves):
            name = f"{type(owner).__name__}.{method.__name__}"
            self.refuse(f"{name} is given what may be another object at its next call")
        if self.reason is None:
            self._check_live()
        if self.reason is not None:
            return self._run_live(method, owner, args, kwargs)
        self._note_effects()
        if not self._lives:
            same = {k for k, g in self._gradients.items() if g == self._old_gradients[k]}
            self._kept_for_live = same
        self._lives += 1
        self._append(LiveCall(method, owner, args, kwargs))
        result = self._run_live(method, owner, args, kwargs)
        self._versions = [t._storage.version for t in self._tensors]
        self._gradients = {k: self._gradient_owner(k) for k in self._leaves}
        self._live_states = [state_of_live(o) for o in self._guards.live]
        if result is not None:
            self.refuse(f"{type(owner).__name__}.{method.__name__} returns a value")
        return result

    def _run_live(self, method: Any, owner: Any, args: Any, kwargs: Any) -> Any:
        state = self._state
        self._live, state.run_kernel, state.capture = True, self._runner, None
        try:
            return method(owner, *args, **kwargs)
        finally:
            self._live, state.run_kernel, state.capture = False, self._run, self

    def _check_live(self) -> None:
        for owner, state in zip(self._guards.live, self._live_states, strict=True):
            now = state_of_live(owner)
            if len(now) != len(state) or not all(map(is_, now, state)):
                self.refuse(f"it changes a {type(owner).__name__} beside the calls that do")

    # What Python sees

    def _gradient_owner(self, leaf: int) -> Any:
        g = self._tensors[leaf]._grad
        if g is None:
            return None
        if not isinstance(g._array, np.ndarray):
            self.refuse("a gradient is sparse, or on another device")
            return None
        if not g._array.size:
            return ("empty", id(g))
        owner = owner_of(g._array)
        value = self._value(owner)
        return ("old", id(owner)) if value is None else ("new", value.number)

    def _note_effects(self) -> None:
        now = {k: self._gradient_owner(k) for k in self._leaves}
        gradients: list[tuple[int, Place | None]] = []
        for k, owner in now.items():
            if owner == self._gradients[k]:
                continue
            g = self._tensors[k]._grad
            if g is None:
                gradients.append((k, None))
                continue
            value = self._value(owner_of(g._array))
            if value is not None:
                value.kind = FRESH
            elif g._array.size:
                self.refuse("a gradient is a tensor that was there before the call")
                return
            gradients.append((k, self._place_of_result(g)))
        versions = [
            (k, t._storage.version - before)
            for k, (t, before) in enumerate(zip(self._tensors, self._versions, strict=True))
            if t._storage.version != before and self._first_with(k) == k
        ]
        self._gradients = now
        self._versions = [t._storage.version for t in self._tensors]
        if gradients or versions:
            self.program.entries.append(Effects(gradients, versions))
            self._row += 1

    def _first_with(self, number: int) -> int:
        # The first tensor of the same storage: its version is counted once.
        storage = self._tensors[number]._storage
        return next(k for k, t in enumerate(self._tensors) if t._storage is storage)

    def _place_of_result(self, t: Tensor) -> Any:
        if not t._array.size:
            return EmptyArray(t._array.shape, t._array.dtype)
        value = self._value(owner_of(t._array))
        assert value is not None
        value.last = self._row
        array = t._array
        offset = address_of(array) - owner_of(array).address
        return Place(value.number, offset, array.shape, array.dtype, array.strides)

    def finish(self, result: Any) -> None:
        """Note what the call has returned and left; or ``reason``, why it cannot be replayed."""
        for note in (
            self._check_live,
            self._note_effects,
            lambda: self._note_result(result),
            self._note_escapes,
            self._drop_old_gradients,
            self._need_gradients_untouched,
        ):
            if self.reason is None:
                note()

    def _note_result(self, result: Any) -> None:
        self._note_returned(result)
        self.by_result = self.reason is not None

    def _note_returned(self, result: Any) -> None:
        leaves, self.program.structure = tree_flatten(result)
        numbers = {id(n.value): n for n in self.numbers if type(n.value) is float}
        leaves = [numbers.get(id(x), x) for x in leaves]  # a float that was read is no other one
        made: dict[int, Any] = {}
        for x in leaves:
            if not isinstance(x, Tensor):
                if not isinstance(x, (*PLAIN, Number)):
                    self.refuse(f"it returns a {type(x).__name__}")
                self.program.results.append(x)
                continue
            if id(x) not in made:
                known = next((k for k, t in enumerate(self._tensors) if t is x), None)
                made[id(x)] = self._made_result(x) if known is None else Given(known)
            self.program.results.append(made[id(x)])
            if self.reason is not None:
                self.wrong_result = x
                return
        self._note_views([x for x in leaves if isinstance(x, Tensor)], made)
        returned = {x.index for x in leaves if type(x) is Number}
        if len(returned) != len(self.numbers):
            self.refuse("Python reads a tensor's value (item), and does not return it")

    def _made_result(self, x: Tensor) -> Any:
        if type(x) is not Tensor or not isinstance(x._array, np.ndarray):
            return self.refuse(
                f"it returns a {type(x).__name__} that is no dense tensor of the CPU"
            )
        if x._array.size:
            value = self._value(owner_of(x._array))
            if value is None:
                return self.refuse("it returns a view of a tensor that was there before")
            if not value.written and value.kind != CONSTANT:
                return self.refuse("it returns a tensor that no kernel has written")
            if value.kind == CONSTANT and value.contents is None:
                value.contents = owner_of(x._array).view(np.ndarray).copy()
            value.changed |= value.kind == CONSTANT
            value.kind = FRESH
        output = -1
        if x._requires_grad and (x._node is None or not is_freed(x._node)):
            if x._node is None:
                return self.refuse("it returns a new leaf")
            output = next((k for k, o in enumerate(self.outputs) if o is x), len(self.outputs))
            if output == len(self.outputs):
                self.outputs.append(x)
        name = x._node.name() if x._requires_grad else ""
        return Result(self._place_of_result(x), x._spec, x._requires_grad, name, output)

    def _note_views(self, results: list[Tensor], made: dict[int, Any]) -> None:
        # Results that share memory, which a later write in place gives a history in common.
        views: dict[int, list[Tensor]] = {}
        for x in {id(x): x for x in results}.values():
            if x._viewed is None or not x._requires_grad:
                continue
            base = made.get(id(base_of(x._viewed)))
            if isinstance(base, Result):
                made[id(x)].base = base
            else:
                views.setdefault(id(base_of(x._viewed)), []).append(x)
        for siblings in views.values():
            arrays = [x._array for x in siblings]
            if any(np.may_share_memory(a, b) for a, b in combinations(arrays, 2)):
                self.refuse("it returns views that require grad and overlap")

    def _note_escapes(self) -> None:
        for value in self._born.values():
            saved = bool(self.outputs) and value.role == SAVED
            if value.kind != FRESH and not saved:
                self.keeps = True
                self.refuse(
                    f"a tensor of {value.nbytes} bytes that the call makes is kept somewhere else "
                    "than in its result"
                )
                return

    # Backward that runs later

    def _need_gradients_untouched(self) -> None:
        # A call whose results' backward runs later may set gradients to None, and no more.
        if not self.outputs:
            return
        for entry in self.program.entries:
            if isinstance(entry, LiveCall):
                called = f"{type(entry.owner).__name__}.{entry.method.__name__}"
                self.refuse(f"it calls {called}, and the backward of its results runs later")
            elif isinstance(entry, Effects) and any(p is not None for _, p in entry.gradients):
                self.refuse("it makes gradients, and the backward of its results runs later")
        if any(v.is_gradient for v in self.program.values):
            self.refuse("it uses gradients, and the backward of its results runs later")

    def sources(self) -> list[Tensor]:
        """Return the tensors whose gradients the backward of the outputs computes.

        The graph of the call ends at them. Or refuse: a hook on one of them would run twice.
        """
        # An argument may be given twice: its gradient is one.
        first = {id(t): k for k, t in reversed([*enumerate(self._tensors)])}
        found = [k for k, t in enumerate(self._tensors) if t._requires_grad and first[id(t)] == k]
        for k in found:
            hooks = self._tensors[k]._extra
            if hooks and any(isinstance(key, tuple) and key[0] == "tensor" for key in hooks):
                self.refuse("a tensor whose gradient it computes has hooks")
        self.program.sources = found
        return [self._tensors[k] for k in found]

    def begin_backward(self, gradients: Sequence[Tensor | None], several: list[int]) -> None:
        """Note that the backward of the outputs begins.

        Args:
            gradients: Those that arrive.
            several: As of :class:`StepProgram`.
        """
        self.program.several = several
        self.program.backward_at = len(self.program.entries)
        self._given_at = [
            0 if g is None or not g._array.size else address_of(g._array) for g in gradients
        ]
        for k, g in enumerate(gradients):
            if g is None or not g._array.size:
                continue
            owner = owner_of(g._array)
            value = Value(len(self.program.values), owner.nbytes, GIVEN, written=True, tensor=k)
            self.program.values.append(value)
            if id(owner) in self._given or id(owner) in self._known:
                self.refuse("gradients that arrive share memory")
            self._given[id(owner)] = value

    def finish_backward(self, gradients: Sequence[Tensor | None]) -> StepProgram | None:
        """Return the program whose backward has computed these; None with ``reason``."""
        program = self.program
        for g in gradients:
            if g is None:
                program.gradients.append(None)
                continue
            if type(g) is not Tensor or not isinstance(g._array, np.ndarray):
                self.refuse("a gradient is sparse")
                break
            if not g._array.size:
                program.gradients.append(EmptyArray(g._array.shape, g._array.dtype))
                continue
            owner = owner_of(g._array)
            value = self._given.get(id(owner)) or self._value(owner)
            if value is None or value.kind not in (ARENA, GIVEN, FRESH):
                self.refuse("a gradient is a tensor that was there before")
                break
            if value.kind == ARENA and value.first < (program.backward_at or 0):
                self.refuse("a gradient is a value that forward has saved")
                break
            value.kind = FRESH if value.kind == ARENA else value.kind
            offset = address_of(g._array) - self._start(value, owner)
            array = g._array
            program.gradients.append(
                Place(value.number, offset, array.shape, array.dtype, array.strides)
            )
        tail = program.entries[program.backward_at :]
        if any(not isinstance(e, Row) for e in tail):
            self.refuse("its backward draws random numbers, or changes what Python sees")
        if any(v.changed and v.last >= (program.backward_at or 0) for v in program.values):
            self.refuse("its backward reads a tensor of Python's numbers that forward has changed")
        return program if self.reason is None else None

    def _drop_old_gradients(self) -> None:
        read = {v.tensor for v in self.program.values if v.is_gradient} | self._kept_for_live
        for k in self._leaves:
            old = self._old_gradients[k]
            if old is not None and self._gradients[k] != old and k not in read:
                self.program.dropped.append(k)


def is_freed(node: Any) -> bool:
    """True if a backward pass has gone through the graph of the call, and freed what it saved."""
    seen = {node}
    waiting = [node]
    freed = False
    while waiting:
        node = waiting.pop()
        if isinstance(node, OpNode):
            if node.rules.releases_saved:
                if node.handles is not None:
                    return False
                freed = True
        elif getattr(node, "_handles", None):  # of an autograd.Function
            return False
        for target, _ in node.edges:
            if target._is_node and target not in seen and not isinstance(target, Alias):
                seen.add(target)
                waiting.append(target)
    return freed
