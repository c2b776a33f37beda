"""Printing a formula as calls of NumPy, with as few buffers as they need.

    def silu_backward(xp, out, b0, grad, x):
        negate(xp, x, b0)
        xp.exp(b0, out=b0)
        ...

Every call writes to ``out`` or to a buffer. A buffer is used again as soon as nothing reads it.

The function of an update, ``(xp, *buffers, *inputs, *numbers)``, writes a new value into its input
once nothing reads the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.special_functions import special
from ..common.strided_ufuncs import negate
from .functions import TABLE
from .loop import GIVEN
from .steps import Apply, Constant, Element, Local, Number, Steps

_UFUNCS = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "true_divide",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
    "&": "logical_and",
    "|": "logical_or",
}


@dataclass(slots=True)
class _Call:
    """One call: its text with places for operands, what it reads and writes.

    ``reads`` are names of inputs, texts of numbers, and numbers of values; ``writes`` is the number
    of a value. ``onto`` is a value whose buffer the call changes, which is then this one's.
    ``apart`` says that it must not write over what it reads.
    """

    text: str
    reads: list[Any]
    writes: int
    onto: int | None = None
    apart: bool = False


class Calls:
    """The calls of a formula.

    Args:
        name: Of the function that is printed.
        elements: Names of the inputs.
        count: How many numbers it takes.
        steps: What it computes.
        over_input: ``out`` may be the first input: it is written when no input is read any more.
    """

    def __init__(
        self, name: str, elements: list[str], count: int, steps: Steps, over_input: bool
    ) -> None:
        self._begin(name, elements, count, steps)
        self._count(steps.result)
        found = self._place(steps.result)
        if not isinstance(found, int):
            found = self._add("xp.copyto({out}, {0})", [found])
        self.result = found
        self.homes = self._allocate(over_input)

    def _begin(self, name: str, elements: list[str], count: int, steps: Steps) -> None:
        self.name, self.elements, self.count = name, elements, count
        self.calls: list[_Call] = []
        self.bools: set[int] = set()
        self.values = 0
        self.assigned = dict(steps.assignments)
        self.locals: dict[str, Any] = {}  # computed when they are first read
        self.left: dict[str, int] = {}  # how often a local is read after here
        self.buffers: list[str] = []  # "float" or "bool" of each
        self.first_parameters = ["xp", "out"]

    def _count(self, value: Any) -> None:
        if isinstance(value, Local):
            if value.name not in self.left:
                self._count(self.assigned[value.name])
            self.left[value.name] = self.left.get(value.name, 0) + 1
        elif isinstance(value, Apply):
            for v in _needed(value):
                self._count(v)

    # Calls, of numbered values

    def _add(self, text: str, reads: list[Any], condition: bool = False, **more: Any) -> int:
        self.values += 1
        if condition:
            self.bools.add(self.values)
        self.calls.append(_Call(text, reads, self.values, **more))
        return self.values

    def _place(self, value: Any) -> Any:
        # Where an expression is: the name of an input, a number's text, or a value's number.
        if isinstance(value, Element):
            return value.name
        if isinstance(value, Local):
            if value.name not in self.locals:
                self.locals[value.name] = self._place(self.assigned[value.name])
            return self.locals[value.name]
        if isinstance(value, Constant):
            return repr(value.value)
        if isinstance(value, Number):
            return GIVEN.format(value.index)
        return self._applied(value)

    def _applied(self, value: Apply) -> int:
        found = self._chosen(value) if value.what == "choose" else self._called(value)
        for v in _needed(value):  # not before: what is placed may still wait for its call
            if isinstance(v, Local):
                self.left[v.name] -= 1
        return found

    def _called(self, value: Apply) -> int:
        reads = [self._place(v) for v in _needed(value)]
        if value.what in TABLE:
            return self._add(TABLE[value.what].numpy.format(x="{0}", y="{1}", out="{out}"), reads)
        if value.what == "neg":
            return self._add("negate(xp, {0}, {out})", reads)
        if value.what == "not":
            return self._add("xp.logical_not({0}, out={out})", reads, True)
        text = f"xp.{_UFUNCS[value.what]}({{0}}, {{1}}, out={{out}})"
        return self._add(text, reads, value.condition)

    def _chosen(self, value: Apply) -> int:
        test, yes, no = value.operands
        if self._spare(yes) and not self._spare(no):  # the one that may be overwritten is the base
            test, yes, no = Apply("not", (test,)), no, yes
        spare = self._spare(no)
        base, over, mask = self._place(no), self._place(yes), self._place(test)
        if not (spare and isinstance(base, int)):
            base = self._add("xp.copyto({out}, {0})", [base], apart=True)
        return self._add("xp.copyto({out}, {0}, where={1})", [over, mask], onto=base)

    def _spare(self, value: Any) -> bool:
        # Whether nothing else reads what an expression gives.
        return isinstance(value, Apply) or (isinstance(value, Local) and self.left[value.name] <= 1)

    # Buffers

    def _allocate(self, over_input: bool) -> dict[int, str]:
        group, first, last, read = self._lifetimes()
        inputs = max(read.values(), default=-1)  # the last call that reads an input
        final = group[self.result]
        last[final] = len(self.calls)
        if over_input and first[final] < inputs:
            self.result = self._add("xp.copyto({out}, {0})", [self.result])
            return self._allocate_apart(group, first, last)
        held: dict[str, int] = {}  # last call that needs what is in a buffer
        homes: dict[int, str] = {}
        for k, call in enumerate(self.calls):
            owner = group[call.writes]
            if owner not in homes:
                homes[owner] = self._home(
                    k, owner, final, first, last, held, call, inputs, over_input
                )
                held[homes[owner]] = last[owner]
        return {value: homes[owner] for value, owner in group.items()}

    def _lifetimes(self) -> tuple[dict[int, int], dict[int, int], dict[int, int], dict[str, int]]:
        # Of each value the first one in its buffer; the first and the last call of each buffer; the
        # last call that reads each input.
        group: dict[int, int] = {}
        for call in self.calls:
            group[call.writes] = group[call.onto] if call.onto is not None else call.writes
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        read: dict[str, int] = {}
        for k, call in enumerate(self.calls):
            first.setdefault(group[call.writes], k)
            last[group[call.writes]] = k
            for r in call.reads:
                if isinstance(r, int):
                    last[group[r]] = max(last[group[r]], k)
                elif r in self.elements:
                    read[r] = k
        return group, first, last, read

    def _allocate_apart(self, group: Any, first: Any, last: Any) -> dict[int, str]:
        # A result that is built while inputs are read gets a buffer, and is copied at the end.
        held: dict[str, int] = {}
        homes: dict[int, str] = {}
        for k, call in enumerate(self.calls[:-1]):
            owner = group[call.writes]
            if owner not in homes:
                homes[owner] = self._buffer(k, owner, held, call)
                held[homes[owner]] = last[owner]
        found = {value: homes[owner] for value, owner in group.items()}
        return found | {self.result: "out"}

    def _home(
        self,
        k: int,
        owner: int,
        final: int,
        first: Any,
        last: Any,
        held: Any,
        call: _Call,
        inputs: int,
        over_input: bool,
    ) -> str:
        if owner == final:
            return "out"
        reads_out = call.apart and held.get("out", -1) == k
        free = held.get("out", -1) <= k and not reads_out and last[owner] <= first[final]
        final_apart = next(c for c in self.calls if c.writes == final).apart
        if final_apart and last[owner] == first[final]:
            free = False
        if free and owner not in self.bools and not (over_input and k < inputs):
            return "out"
        return self._buffer(k, owner, held, call)

    def _buffer(self, k: int, owner: int, held: dict[str, int], call: _Call) -> str:
        kind = "bool" if owner in self.bools else "float"
        for j, other in enumerate(self.buffers):
            ends = held.get(f"b{j}", -1)
            if other == kind and (ends < k or (ends == k and not call.apart)):
                return f"b{j}"
        self.buffers.append(kind)
        return f"b{len(self.buffers) - 1}"

    def text(self) -> str:
        """Return the function's source."""
        buffers = [f"b{k}" for k in range(len(self.buffers))]
        numbers = [GIVEN.format(k) for k in range(self.count)]
        parameters = [*self.first_parameters, *buffers, *self.elements, *numbers]
        lines = [f"def {self.name}({', '.join(parameters)}):"]
        for call in self.calls:
            reads = [self.homes[r] if isinstance(r, int) else r for r in call.reads]
            lines.append("    " + call.text.format(*reads, out=self.homes[call.writes]))
        return "\n".join([*lines, ""])


class UpdateCalls(Calls):
    """The calls of an update.

    Args:
        name: Of the function that is printed.
        elements: Names of the inputs.
        count: How many numbers it takes.
        steps: What it computes.
        written: The inputs that have new values, in the order of the steps' results.
    """

    def __init__(
        self, name: str, elements: list[str], count: int, steps: Steps, written: list[str]
    ) -> None:
        self._begin(name, elements, count, steps)
        self.first_parameters = ["xp"]
        for value in steps.result:
            self._count(value)
        results: dict[str, int] = {}
        for element, value in zip(written, steps.result, strict=True):
            found = self._place(value)
            if not isinstance(found, int):
                found = self._add("xp.copyto({out}, {0})", [found], apart=True)
            results[element] = found
        self.homes = self._allocate_results(results)

    def _allocate_results(self, results: dict[str, int]) -> dict[int, str]:
        group, first, last, read = self._lifetimes()
        direct: dict[int, str] = {}  # buffers that are an input's array
        for element, value in results.items():
            owner = group[value]
            begins, ends = first[owner], read.get(element, -1)
            apart = next(c for c in self.calls if c.writes == owner).apart
            if owner not in direct and (ends < begins or (ends == begins and not apart)):
                direct[owner] = element
            last[owner] = len(self.calls)
        held: dict[str, int] = {}
        homes: dict[int, str] = {}
        for k, call in enumerate(self.calls):
            owner = group[call.writes]
            if owner not in homes:
                homes[owner] = direct.get(owner) or self._buffer(k, owner, held, call)
                held[homes[owner]] = last[owner]
        found = {value: homes[owner] for value, owner in group.items()}
        for element, value in results.items():
            if found[value] != element:
                found[self._add("xp.copyto({out}, {0})", [value])] = element
        return found


class BitsCalls(Calls):
    """The calls of a formula of bits, with an array of bool in the place of each array of bits.

    The conditions are computed first, so far as they do not ask for the value.

    Args:
        name: Of the function that is printed.
        elements: Names of the inputs.
        count: How many numbers it takes.
        steps: What it computes.
        made: Names of the conditions' results.
    """

    def __init__(
        self, name: str, elements: list[str], count: int, steps: Steps, made: list[str]
    ) -> None:
        self._begin(name, elements, count, steps)
        self.first_parameters = ["xp", "out", *made]
        for value in steps.result:
            self._count(value)
        value, *tests = steps.result
        every = [*zip(made, tests, strict=True), ("out", value)]
        self.homes = self._allocate_results({name: self._copied(v) for name, v in every})

    def _copied(self, value: Any) -> int:
        found = self._place(value)
        if isinstance(found, int) and isinstance(value, Local):
            self.left[value.name] -= 1
        elif not isinstance(found, int):
            found = self._add("xp.copyto({out}, {0})", [found])
        return found

    def _allocate_results(self, results: dict[str, int]) -> dict[int, str]:
        group, first, last, _ = self._lifetimes()
        homes: dict[int, str] = {}
        for name, value in results.items():
            if homes.setdefault(group[value], name) != name:
                raise ValueError(f"{self.name}: two results of it are the same.")
            last[group[value]] = len(self.calls)
        held: dict[str, int] = {}
        for k, call in enumerate(self.calls):
            owner = group[call.writes]
            if owner not in homes:
                # A condition's array is there for what is computed before it; ``out`` is not, as it
                # may be an input.
                spare = [
                    name
                    for name, value in results.items()
                    if value in self.bools
                    and held.get(name, -1) <= k
                    and last[owner] <= first[group[value]]
                ]
                spare = spare if owner in self.bools and not call.apart else []
                homes[owner] = spare[0] if spare else self._buffer(k, owner, held, call)
                held[homes[owner]] = last[owner]
        return {value: homes[owner] for value, owner in group.items()}


def _needed(value: Apply) -> tuple[Any, ...]:
    # The operands that NumPy's call takes.
    hint = value.what in TABLE and TABLE[value.what].second == "hint"
    return value.operands[:1] if hint else value.operands


def numpy_function(calls: Calls, module: str, qualname: str) -> Any:
    """Return the function of some calls."""
    known: dict[str, Any] = {
        "negate": negate,
        "special": special,
        "inf": float("inf"),
        "nan": float("nan"),
    }
    exec(compile(calls.text(), f"<formula {module}.{qualname}>", "exec"), known)
    return known[calls.name]
