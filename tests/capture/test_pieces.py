"""Pieces of functions do what the functions do; which functions are not cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lowtide.framework.capture.division.building import CannotDivide
from lowtide.framework.capture.division.statements import Body
from tests.capture.steps import loaded

# What cannot be cut


def generates(x: Any) -> Any:
    yield x


def sees_itself(x: Any) -> Any:
    y = 1
    return locals(), x, y


def closure_sees_changes(x: Any) -> Any:
    def inner() -> Any:
        return y

    y = 1
    return inner() + x


def matches(x: Any) -> Any:
    match x:
        case 1:
            return 2
    return 3


EXECUTED: dict[str, Any] = {}
exec("def from_text(x):\n    y = x\n    return y\n", EXECUTED)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (generates, "generator"),
        (sees_itself, "sees its variables"),
        (closure_sees_changes, "a nested function sees y change"),
        (matches, "match"),
        (EXECUTED["from_text"], "source"),
        (lambda x: x, "no function with statements"),
    ],
)
def test_functions_that_are_not_cut(function: Any, why: str) -> None:
    with pytest.raises(CannotDivide, match=why):
        Body(function)


def test_a_file_that_has_changed_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def f(x):\n    y = x + 1\n    return y\n")
    module = loaded(file)
    file.write_text("def f(x):\n    y = x + 2\n    return y\n")
    with pytest.raises(CannotDivide, match="not what runs"):
        Body(module.f)


def test_no_cut_where_a_variable_may_be_without_a_value(tmp_path: Path) -> None:
    file = tmp_path / "maybe.py"
    file.write_text("def f(x):\n    if x:\n        y = 1\n    z = 2\n    return y + z\n")
    with pytest.raises(CannotDivide, match="y may be without a value"):
        Body(loaded(file).f).pieces([0, 1])


@pytest.mark.parametrize("starts", [[0, 1, 2], [0, 2]])
def test_no_cut_after_a_variable_was_deleted(starts: list[int], tmp_path: Path) -> None:
    file = tmp_path / "deleted.py"
    file.write_text("def f(x):\n    y = x\n    del y\n    if x:\n        y = 2\n    return y\n")
    with pytest.raises(CannotDivide, match="y may be without a value"):
        Body(loaded(file).f).pieces(starts)


def test_a_branch_that_returns_leaves_no_variable_without_a_value(tmp_path: Path) -> None:
    file = tmp_path / "returns.py"
    text = "def f(x):\n    if x:\n        return 1\n    else:\n        y = 2\n    return y\n"
    file.write_text(text)
    call = in_pieces(Body(loaded(file).f), [0, 1])
    assert (call(True), call(False)) == (1, 2)


# Drawn functions: however they are cut, the pieces do what the function does


class Draw:
    """The text of a function, drawn from a seed; its calls write down what they see."""

    NAMES = "abcde"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.assigned = {"a", "b"}

    def value(self) -> str:
        pick = self.rng.choice
        known = sorted(self.assigned)
        return pick(
            [
                pick(known),
                f"{pick(known)} + {self.rng.randint(1, 5)}",
                f"note({pick(known)})",
                f"sum([{pick(known)} for a in range(3)])",
                f"(lambda b: b + 1)({pick(known)})",
                f"GLOBAL[0] * {pick(known)}",
            ]
        )

    def statement(self, depth: int) -> list[str]:
        pick = self.rng.choice
        kind = pick(["assign"] * 5 + ["add", "note", "if", "for", "with", "del", "return", "try"])
        name = pick(self.NAMES)
        before = set(self.assigned)
        if kind == "add" and name in self.assigned:
            return [f"{name} += {self.value()}"]
        if kind == "note":
            return [f"note({self.value()})"]
        if kind == "del" and name in self.assigned and name not in "ab":
            self.assigned.discard(name)
            return [f"del {name}"]
        if kind == "return" and depth and self.rng.random() < 0.5:
            return [f"return {self.value()}"]
        if kind in ("if", "for", "with", "try") and depth < 2:
            head = {
                "if": f"if ({self.value()}) % 2:",
                "for": f"for {name} in range({self.rng.randint(0, 2)}):",
                "with": "with noting():",
                "try": "try:",
            }[kind]
            body = self.block(depth + 1)
            inside = self.assigned
            self.assigned = inside if kind == "with" else before & inside
            if kind == "try":
                return [head, *body, "except NameError:", "    note(-1)"]
            return [head, *body]
        text = f"{name} = {self.value()}"
        self.assigned.add(name)
        return [text]

    def block(self, depth: int) -> list[str]:
        lines = [x for _ in range(self.rng.randint(1, 3)) for x in self.statement(depth)]
        return [f"    {x}" for x in lines]

    def text(self) -> str:
        lines = [x for _ in range(self.rng.randint(2, 7)) for x in self.statement(0)]
        head = self.rng.choice(
            ["a, b=1", "a, b=2, /", "a, /, *, b=3", "a, *rest, b=4, **others", "*, a=1, b=2"]
        )
        lines.append(f"return {self.value()}")
        body = "\n".join(f"    {x}" for x in lines)
        return f"def f({head}):\n    '''Drawn.'''\n{body}\n"


PRELUDE = """
from contextlib import contextmanager

SEEN = []
GLOBAL = [3]


def note(x):
    SEEN.append(x)
    return len(SEEN)


@contextmanager
def noting():
    SEEN.append("in")
    yield
    SEEN.append("out")


"""


def outcome(module: Any, call: Callable[..., Any], a: int) -> Any:
    module.SEEN.clear()
    keywords = {"a": a} if "(*," in DRAWN_HEAD[module.__name__] else {}
    args = () if keywords else (a,)
    try:
        result: Any = call(*args, **keywords)
    except (NameError, UnboundLocalError) as error:
        result = type(error)
    return result, list(module.SEEN)


DRAWN_HEAD: dict[str, str] = {}


def in_pieces(body: Body, starts: list[int]) -> Callable[..., Any]:
    pieces, bind = body.pieces(starts), body.binder()

    def call(*args: Any, **kwargs: Any) -> Any:
        values = bind(*args, **kwargs)
        for piece in pieces:
            done, found = piece.function(*[values[n] for n in piece.takes])
            if done:
                return found
            values.update(zip(piece.results, found, strict=True))
            for name in piece.ends:
                values.pop(name, None)
        return None

    return call


@pytest.mark.quick(1)
@pytest.mark.parametrize("part", range(4))
def test_pieces_of_drawn_functions_do_what_the_functions_do(part: int, tmp_path: Path) -> None:
    cut = refused = 0
    for seed in range(part * 40, part * 40 + 40):
        text = Draw(seed).text()
        file = tmp_path / f"drawn{seed}.py"
        file.write_text(PRELUDE + text)
        module = loaded(file)
        DRAWN_HEAD[module.__name__] = text.partition("\n")[0]
        body = Body(module.f)
        expected = [outcome(module, module.f, a) for a in range(3)]
        for chosen in range(1 << (body.count - 1)):
            starts = [0, *(k for k in range(1, body.count) if chosen >> (k - 1) & 1)]
            assert all(i < k for i, k in pairwise(starts))
            try:
                call = in_pieces(body, starts)
            except CannotDivide:
                refused += 1
                continue
            cut += len(starts) > 1
            assert [outcome(module, call, a) for a in range(3)] == expected, (text, starts)
    assert cut > 500
    assert cut > refused
