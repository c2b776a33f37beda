"""Compiled functions of which a part runs as it is written: statements, or all but modules inside.

Statements are divided in ``division/``. Modules that are called by what runs as it is written are
compiled functions themselves (``inner_modules.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ..interop.pytree import tree_flatten
from ..tensor import Tensor
from .call import key_of_others
from .division.arguments import ChangingArguments, arguments_of, plain_function
from .division.building import CannotDivide
from .division.callees import calls_and_drops
from .division.divided import DividedFunction
from .inner_modules import InnerModules
from .kinds import Kinds
from .recorder import Recorder
from .trail import Step


class InPieces:
    """What a compiled function does to run in parts, some of which are compiled functions."""

    function: Callable[..., Any]
    check: int
    fullgraph: bool
    quiet: bool
    replays: int
    reasons: list[str]
    _name: str
    _divisible: bool
    _kinds: Kinds
    _warn: Callable[[str, str], None]

    def __init__(self, check: int, module: Any) -> None:
        self.check = check
        self._cut: DividedFunction | None = None
        self._divided: DividedFunction | None = None  # that, if it is in pieces
        self._piece_of = weakref.ref(self)  # or what this is a piece of
        self._is_inner = False  # of what runs as it is written
        self._small = False  # it is, and has so few kernel calls that a replay would take longer
        self._told = False  # a warning has said that statements are set apart
        self._around: tuple[Any, ...] = ()  # the function that this is a piece of
        self._presumed = ""  # why a call of another kind cannot be recorded
        self._results: list[str] = []  # the variables that a piece returns
        self._arguments = ChangingArguments(key_of_others)
        self.module = module
        self.inner = InnerModules(partial(_inner, type(self), self.check), module)

    def _call_pieces(self, divided: DividedFunction, args: Any, kwargs: Any) -> Any:
        before = self._replayed_inside()
        if isinstance(self.function, MethodType):
            args = (self.function.__self__, *args)
        result = divided(*args, **kwargs)
        self.replays += self._replayed_inside() > before
        return result

    def _call_inner(self, args: Any, kwargs: Any) -> Any:
        # Run the function as it is written, and record the modules that it calls.
        if self.fullgraph:
            return self.function(*args, **kwargs)
        before = self._replayed_inside()
        result = self.inner.run(self.function, *args, **kwargs)
        self.replays += self._replayed_inside() > before
        return result

    def parts(self) -> list[Any]:
        """Return the compiled functions that calls are made of, where not all of it is recorded."""
        pieces = [] if self._divided is None else [run for run, _ in self._divided.pieces]
        return [*(r for r in pieces if isinstance(r, InPieces)), *self.inner.compiled()]

    def _replayed_inside(self) -> int:
        return sum(part.replays for part in self.parts())

    def presume(self, reason: str, trail: Sequence[Step]) -> None:
        """Let the next call of another kind than those before run as it is written.

        Args:
            reason: Why a call cannot be recorded that a call of this function was a part of.
            trail: Where that ended: this function's module, and modules inside.
        """
        self._presumed = reason
        self.inner.expect(reason, trail)

    def presume_statement(self, reason: str, step: Step, trail: Sequence[Step]) -> None:
        """Let statements run as they are written, or else the next call.

        Args:
            reason: Why a call cannot be recorded that a call of this function was a part of.
            step: What tells the statements.
            trail: Modules inside that are at fault.
        """
        if not self._set_apart(reason, trail, **step.statements()):
            self.presume(reason, trail)

    def _set_apart(self, reason: str, trail: Sequence[Step] = (), **which: Any) -> bool:
        # Let statements run as they are written from the next call on, if that is possible.
        if not any(which.values()):
            return False
        whole = self._piece_of()
        return whole is not None and whole._divide(reason, which, self, trail)

    def _divide(
        self, reason: str, which: dict[str, Any], piece: InPieces, trail: Sequence[Step]
    ) -> bool:
        if not self._divisible:
            return False
        if self._cut is None:
            try:
                self._cut = DividedFunction(plain_function(self.function), self.inner.run)
            except CannotDivide:
                self._divisible = False
                return False
        apart = self._cut.set_apart(self._piece, piece, **which)
        if apart is None:
            return False
        self._divided = self._cut
        self.inner.expect(reason, trail)
        self._kinds.clear()
        if not apart or not reason:
            return True
        runs = "runs as it is written" if len(apart) == 1 else "run as they are written"
        text = f"{', '.join(apart)} {runs}: {reason}"
        if self._told:
            self.reasons.append(text)
        else:
            self._told = True
            self._warn(
                text,
                f"{self._name}: {text}. What lies around it is recorded. "
                "lowtide.compiler.explain tells of all such lines.",
            )
        return True

    def _acts(self, recorder: Recorder, args: Any, kwargs: Any) -> bool:
        # Statements such as print(text) are set apart, without a warning: a replay would leave them
        # out. And if the call keeps a tensor, those that may do it.
        if recorder.reason is not None and not recorder.keeps:
            return False
        if not calls_and_drops(plain_function(self.function).__code__):
            return False
        given = arguments_of(self.function, args, kwargs)
        acts = recorder.program.lines.values(), given, recorder.keeps
        return self._set_apart(recorder.reason or "", acts=acts)

    def _piece(
        self, function: FunctionType, lines: tuple[int, int], results: list[str]
    ) -> InPieces:
        made: Callable[..., InPieces] = type(self)
        piece = made(function, check=self.check)
        piece._piece_of, piece._divisible = weakref.ref(self), True
        piece._is_inner, piece._results = self._is_inner, results
        piece._around = (self.function, plain_function(self.function))
        piece._name = f"{self._name} (lines {lines[0]} to {lines[1]})"
        piece.quiet = self.quiet
        return piece

    def _assigned(self, result: Any, wrong: Tensor) -> str:
        # The variable of a piece that holds a tensor of its result; "" if there is none.
        if not self._results or result[0]:  # the function returns it
            return ""
        named = zip(self._results, result[1], strict=True)
        return next((n for n, v in named if any(x is wrong for x in tree_flatten(v)[0])), "")

    def _in_graphs(self, args: Any, kwargs: Any) -> list[str]:
        # Arguments with tensors in graphs, through which a backward may go.
        if not self._divisible:
            return []
        given = arguments_of(self.function, args, kwargs).items()
        return [n for n, v in given if any(_is_in_graph(x) for x in tree_flatten(v)[0])]

    def _note_arguments(self, args: Any, kwargs: Any) -> None:
        # Statements that read an argument that is another one at each call are not recorded.
        if not self._divisible:
            return
        changing = self._arguments.note(arguments_of(self.function, args, kwargs))
        if changing:
            which = " and ".join(f"`{n}`" for n in changing)
            change = "changes" if len(changing) == 1 else "change"
            if self._set_apart(f"{which} {change} from call to call", reads=changing):
                self._arguments.clear()


def _inner(
    cls: Callable[..., InPieces], check: int, function: Callable[..., Any], module: Any
) -> InPieces:
    inner = cls(function, check=check, module=module)
    inner._is_inner = True
    inner.quiet = True  # a warning about what calls it tells of it
    return inner


def _is_in_graph(x: Any) -> bool:
    return isinstance(x, Tensor) and x._requires_grad and x._node is not None
