"""``compile(f, check=N)``: every N-th replay is compared with the function itself.

The function runs first, as it is written; then all that it changed is put back, and the replay
runs. What both return, and the tensors, gradients, generators and states of optimizers afterwards,
have to be equal to the last bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from ..interop.pytree import tree_flatten
from ..random.generator import generators_in_use, positions_of, put_back
from ..tensor import Tensor
from .guards import Guards
from .program import Draw, StepProgram


class Snapshot:
    """The bits of what a call may change.

    Args:
        tensors: The tensors it is given or finds.
        guards: Tells what else it finds.
        program: Its recording.
    """

    def __init__(self, tensors: list[Tensor], guards: Guards, program: StepProgram) -> None:
        self.tensors = [*tensors, *guards.tensors]
        self.values = [t._array.copy() for t in self.tensors]
        self.gradients = [t._grad for t in self.tensors]
        self.gradient_values = [None if g is None else g._array.copy() for g in self.gradients]
        drawn = [e.generator for e in program.entries if isinstance(e, Draw)]
        generators = dict.fromkeys([*generators_in_use().values(), *drawn])
        self.positions = positions_of(generators)
        self.owners = guards.live
        self.states = [copy.deepcopy(o.state_dict()) for o in self.owners]

    def restore(self) -> None:
        """Put all of it back."""
        for t, value in zip(self.tensors, self.values, strict=True):
            np.copyto(t._array, value)
        for t, g, value in zip(self.tensors, self.gradients, self.gradient_values, strict=True):
            t._grad = g
            if g is not None and value is not None:
                np.copyto(g._array, value)
        put_back(self.positions)
        for owner, state in zip(self.owners, self.states, strict=True):
            owner.load_state_dict(state)

    def difference(self, other: Snapshot) -> str | None:
        """Return what differs from another, in words; None if nothing does."""
        pairs = zip(self.values, other.values, self.tensors, strict=True)
        for a, b, t in pairs:
            if not _equal(a, b):
                return f"a tensor of shape {tuple(t.shape)}, after the call"
        for a, b in zip(self.gradient_values, other.gradient_values, strict=True):
            if a is None or b is None:
                if a is not b:
                    return "a gradient"
            elif not _equal(a, b):
                return "a gradient"
        if self.positions != other.positions:
            return "the state of a random generator"
        for a, b, owner in zip(self.states, other.states, self.owners, strict=True):
            if not equal_trees(a, b):
                return f"the state of the {type(owner).__name__}"
        return None


def checked(
    function: Callable[[], Any], replay: Callable[[], Any], take: Callable[[], Snapshot]
) -> Any:
    """Run a function both ways and return what the replay returns.

    Raises:
        AssertionError: They differ; the message says in what.
    """
    before = take()
    expected = _bits(function())
    after = take()
    before.restore()
    result = replay()
    difference = after.difference(take())
    if not equal_trees(expected, _bits(result)):
        difference = "what it returns"
    if difference is not None:
        raise AssertionError(
            f"compile: the replay and the function differ in {difference}. The function depends on "
            "something that recordings do not compare, such as the time, a file or the environment."
        )
    return result


def _bits(result: Any) -> Any:
    leaves, structure = tree_flatten(result)
    return [x._array.copy() if isinstance(x, Tensor) else x for x in leaves], structure


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def equal_trees(a: Any, b: Any) -> bool:
    """Whether two trees of tensors, arrays and values are equal, bit for bit."""
    (ours, shape), (theirs, other) = tree_flatten(a), tree_flatten(b)
    if shape != other or len(ours) != len(theirs):
        return False
    return all(map(_equal_leaves, ours, theirs))


def _equal_leaves(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        a, b = a._array, b._array
    if isinstance(a, np.ndarray):
        return _equal(a, b)
    return bool(a == b)
