"""Base of elementwise optimizers: one update, on every device.

A subclass says what state a parameter has (:meth:`Elementwise.start`), which numbers this step
takes (:meth:`Elementwise.advance`), and the update of an element (``@update``), of which
``framework/updates.py`` makes compiled loops and calls of NumPy. A step whose state exists takes no
memory on the CPU, and cannot fail half-way on any device. Parameters on the CPU
whose numbers are the same are updated by one compiled call (``framework/listed_updates.py``), all
others by a call each.

In all updates ``sign`` is -1 to maximize, ``decay`` the L2 penalty that enters the gradient,
``keep`` the factor of decoupled decay, ``a1`` is 1 - b1.

Complex parameters are stepped as pairs of real numbers, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.kernels.formula.formula import formula
from ..framework.kernels.formula.update import Update
from ..framework.listed_updates import LOOPED, ListedUpdate, listable
from ..framework.ops.creation.fill import full_like, zeros_like
from ..framework.tensor import Tensor
from ..framework.updates import planned_update
from .optimizer import SCALARS, Optimizer, Todo, number, own

Call = tuple[Update, tuple[Any, ...], dict[str, float]]


class Elementwise(Optimizer):
    """Base class of optimizers that update each element independently.

    Attributes:
        rule: The update of a parameter, its gradient and its state.
    """

    rule: Update
    _listed = True  # whether start() and call() say all that prepare() does

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own_way = "prepare" in cls.__dict__ or "planned" in cls.__dict__
        cls._listed = cls.__dict__.get("_listed", cls._listed and not own_way)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Return the initial state of a parameter; subclasses define it."""
        raise NotImplementedError

    def advance(
        self, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, float]]:
        """Count the step; return the state tensors and the numbers that the update takes.

        Nothing but the numbers in ``state`` and the options of the group decides about them.
        """
        raise NotImplementedError

    def call(self, state: dict[str, Any], group: dict[str, Any]) -> Call | None:
        """Return the update, the state tensors and the numbers of a step; count it.

        Args:
            state: Of a parameter.
            group: Options.

        Returns:
            None for a parameter whose first step is another: :meth:`prepare` knows it.
        """
        return self.rule, *self.advance(state, group)

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if not state:
            state.update(self.start(p, group))
        held, numbers = self.advance(state, group)
        return self.planned(self.rule, (p, g, *held), numbers)

    def planned(self, rule: Update, tensors: Sequence[Any], numbers: dict[str, float]) -> Any:
        """Return the call of an update of a parameter, its gradient and its state."""
        return planned_update(rule, tensors, numbers, self.elements)

    def _together(self, todo: Sequence[Todo]) -> tuple[list[Any], Sequence[Todo]]:
        patched = "prepare" in self.__dict__ or "planned" in self.__dict__
        if patched or not self._listed or not listable(self.elements):
            return [], todo
        batches: list[Batch] = []
        try:
            rest = [one for one in todo if not self._joins(one, batches)]
            for batch in batches:
                rest += batch.prepare()
        except BaseException:
            for batch in batches:
                batch.clear()  # the error's frames hold them
            raise
        return batches, rest

    def _joins(self, one: Todo, batches: list[Batch]) -> bool:
        # Add a parameter to the batch that has its numbers, or to one of its own.
        p, group = one
        spec = p._spec
        if spec.dtype not in LOOPED or spec.device.type != "cpu" or p._grad._spec is not spec:
            return False
        known = self.state.get(p)
        state = known or self.start(p, group)
        for batch in reversed(batches):
            if batch.takes(p, state, group):
                return batch.add(one, state, not known)
        found = self._batch(p, state, group)
        if found is None or not found.add(one, state, not known):
            return False
        batches.append(found)
        return True

    def _batch(self, p: Any, state: dict[str, Any], group: dict[str, Any]) -> Batch | None:
        draft = state.copy()
        call = self.call(draft, group)
        if call is None:
            return None
        rule, held, numbers = call
        before = {k: v for k, v in state.items() if type(v) is not Tensor}
        changed = {k: v for k, v in draft.items() if v is not state.get(k)}
        names = [next((k for k, v in state.items() if v is t), None) for t in held]
        if any(t is not None and name is None for t, name in zip(held, names, strict=True)):
            return None
        plain = all(type(v) in _NUMBERS for v in before.values())
        if not plain or not changed.keys() <= before.keys():
            return None
        update = ListedUpdate(*rule.of_call(numbers), p._spec.dtype)
        if not update.takes:
            return None
        names = [names[k - 2] for k in update.places[2:]]
        return Batch(update, group, names, before, changed, len(state))

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's own shape, but for counters."""
        return None if key in SCALARS else tuple(p.shape)


_NUMBERS = (int, float, bool, type(None))


class Batch:
    """Parameters that take the same update with the same numbers.

    Args:
        update: Of all of them.
        group: The group whose options the numbers were computed from.
        names: Of the state tensors that the update takes.
        before: Numbers of the states.
        changed: Those that the step changes, as they are afterwards.
        length: How many entries each state has.

    Attributes:
        todo: The parameters, each with its group.
    """

    def __init__(
        self,
        update: ListedUpdate,
        group: Any,
        names: list[Any],
        before: dict[str, Any],
        changed: dict[str, Any],
        length: int,
    ) -> None:
        self.update, self.todo = update, list[Todo]()
        self._group, self._names, self._before = group, names, list(before.items())
        self._changed, self._length = changed, length
        self._states: list[dict[str, Any]] = []
        self._new: dict[int, Any] = {}  # by id of the state: the parameter that it is for

    def takes(self, p: Any, state: dict[str, Any], group: dict[str, Any]) -> bool:
        """Whether the step of a parameter has the numbers of this one."""
        if group is not self._group or p._spec.dtype is not self.update.dtype:
            return False
        if len(state) != self._length:
            return False
        for name, value in self._before:  # noqa: SIM110 - a generator takes four times as long
            if state.get(name) != value:
                return False
        return True

    def add(self, one: Todo, state: dict[str, Any], new: bool) -> bool:
        """Add a parameter; False if it needs a separate call.

        Args:
            one: The parameter with its group.
            state: Its state.
            new: The optimizer does not have that state yet.
        """
        p = one[0]
        tensors = [p, p._grad]
        for name in self._names:
            t = state.get(name)
            if type(t) is not Tensor:
                return False
            tensors.append(t)
        if not self.update.add(tensors):
            return False
        self.todo.append(one)
        self._states.append(state)
        if new:
            self._new[id(state)] = p
        return True

    def prepare(self) -> list[Todo]:
        """Do all that may fail; return the parameters that need separate calls."""
        left = []
        while (k := self.update.prepare()) is not None:
            self.update.drop(k)
            left.append(self.todo.pop(k))
            self._new.pop(id(self._states.pop(k)), None)
        return left

    def count(self, states: dict[Any, dict[str, Any]]) -> None:
        """Write the numbers of the states, and give the optimizer the new ones."""
        for state in self._states:
            state.update(self._changed)
            p = self._new.get(id(state))
            if p is not None:
                states[p].update(state)

    def clear(self) -> None:
        """Let go of the states."""
        self.update.clear()
        self._states.clear()
        self._new.clear()


def zeros(p: Any) -> Any:
    """Return zero state of a parameter's shape and dtype."""
    return own(zeros_like(p), p)


def filled(p: Any, value: float) -> Any:
    """Return state filled with ``value``, in both parts for a complex parameter."""
    return own(full_like(p, complex(value, value) if p.is_complex() else value), p)


def first_numbers(group: dict[str, Any]) -> dict[str, float]:
    """Return ``sign`` and ``decay`` of a group whose weight decay is an L2 penalty."""
    sign = -1.0 if group["maximize"] else 1.0
    return {"sign": sign, "decay": number(group["weight_decay"])}


def decay_numbers(group: dict[str, Any], lr: float, decoupled: bool) -> dict[str, float]:
    """Return ``sign``, ``decay`` and ``keep`` of a group whose weight decay may be decoupled."""
    decay = group["weight_decay"]
    return {
        "sign": -1.0 if group["maximize"] else 1.0,
        "decay": 0.0 if decoupled else decay,
        "keep": 1 - lr * decay if decoupled else 1.0,
    }


@formula
def penalized(g: Any, p: Any, *, sign: Any, decay: Any) -> Any:
    """The gradient with its sign and the L2 penalty."""
    return sign * g + decay * p if decay != 0 else sign * g  # 0 times infinity is not 0


@formula
def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers; NaN if one is NaN."""
    return a if a > b or a != a else b


@formula
def sign_of(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    return 1 if x > 0 else (-1 if x < 0 else 0)
