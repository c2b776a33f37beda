"""Compiled functions of which some statements run as they are written (``division/``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from ..interop.pytree import tree_flatten
from ..tensor import Tensor
from .call import key_of_others
from .division.arguments import ChangingArguments, arguments_of, plain_function
from .division.building import CannotDivide
from .division.callees import calls_and_drops
from .division.divided import DividedFunction
from .recorder import Recorder


class InPieces:
    """What a compiled function does to run in pieces, each of which is a compiled function."""

    function: Callable[..., Any]
    check: int
    quiet: bool
    replays: int
    reasons: list[str]
    _name: str
    _divisible: bool
    _kinds: dict[Any, Any]
    _warn: Callable[[str, str], None]

    def __init__(self) -> None:
        self._cut: DividedFunction | None = None
        self._divided: DividedFunction | None = None  # that, if it is in pieces
        self._piece_of = weakref.ref(self)  # or what this is a piece of
        self._told = False  # a warning has said that statements are set apart
        self._around: tuple[Any, ...] = ()  # the function that this is a piece of
        self._arguments = ChangingArguments(key_of_others)

    def _call_pieces(self, divided: DividedFunction, args: Any, kwargs: Any) -> Any:
        compiled: list[Any] = [r for r, _ in divided.pieces if isinstance(r, InPieces)]
        before = sum(c.replays for c in compiled)
        if isinstance(self.function, MethodType):
            args = (self.function.__self__, *args)
        result = divided(*args, **kwargs)
        self.replays += sum(c.replays for c in compiled) > before
        return result

    def _set_apart(self, reason: str, **which: Any) -> bool:
        # Let statements run as they are written from the next call on, if that is possible.
        if not any(which.values()):
            return False
        whole = self._piece_of()
        return whole is not None and whole._divide(reason, which, self)

    def _divide(self, reason: str, which: dict[str, Any], piece: InPieces) -> bool:
        if not self._divisible:
            return False
        if self._cut is None:
            try:
                self._cut = DividedFunction(plain_function(self.function))
            except CannotDivide:
                self._divisible = False
                return False
        apart = self._cut.set_apart(self._piece, piece, **which)
        if apart is None:
            return False
        self._divided = self._cut
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

    def _piece(self, function: FunctionType, lines: tuple[int, int]) -> InPieces:
        piece = type(self)(function, check=self.check)  # type: ignore[call-arg]
        piece._piece_of, piece._divisible = weakref.ref(self), True
        piece._around = (self.function, plain_function(self.function))
        piece._name = f"{self._name} (lines {lines[0]} to {lines[1]})"
        piece.quiet = self.quiet
        return piece

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


def _is_in_graph(x: Any) -> bool:
    return isinstance(x, Tensor) and x._requires_grad and x._node is not None
