"""A function of which some statements run as they are written, and the others are recorded.

Some statements cannot be replayed: they print a loss, append a number to a list, read an argument
that is another one at each call. The function then runs in pieces (``statements.py``). Each piece
between two such statements is a compiled function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import FunctionType
from typing import Any

from .building import CannotDivide
from .statements import Body, Piece


class DividedFunction:
    """A function in pieces.

    Args:
        function: The function, without the object it is bound to.
        as_written: Runs a piece that is not recorded: ``as_written(function, *values)``.

    Attributes:
        apart: The statements that run as they are written.
        pieces: The pieces, each with what runs it.

    Raises:
        CannotDivide: It cannot be cut.
    """

    def __init__(self, function: FunctionType, as_written: Callable[..., Any]) -> None:
        self._body = Body(function)
        self._as_written = as_written
        self._bind = self._body.binder()
        self.apart: set[int] = set()
        self.pieces: list[tuple[Callable[..., Any], Piece]] = []

    def set_apart(
        self,
        recorded: Callable[[FunctionType, tuple[int, int], list[str]], Any],
        within: Any,
        lines: Iterable[int] = (),
        reads: Collection[str] = (),
        names: Iterable[str] = (),
        changes: str = "",
        acts: tuple[Collection[int], dict[str, Any], bool] | None = None,
        returns: bool = False,
    ) -> list[str] | None:
        """Let more statements run as they are written.

        Args:
            recorded: Compiles a piece: ``recorded(function, (first line, last line), results)``.
            within: What runs the piece that they are in; else they may be anywhere.
            lines: Those that these lines belong to,
            reads: or that read one of these variables,
            changes: or that assign to this variable, attribute or key;
            names: if there are none, those that name the first of these variables or attributes
                that any of them names; ``changes`` is the last one.
            acts: (lines that call kernels, arguments, whether assignments count): or that are there
                for what they do (``Body.that_only_act``),
            returns: or in which the function returns.

        Returns:
            The line and the text of each. None if there are none, or no cut can be made there. A
            function that does not read its changing arguments is one piece without them.
        """
        body = self._body
        inside = set(range(body.count))
        for run, piece in self.pieces:
            if run is within:
                inside = set(range(piece.first, piece.last))
        inside -= self.apart
        found = (body.at(lines) | body.that_read(set(reads)) | body.that_change(changes)) & inside
        if returns:
            found |= body.that_return() & inside
        if acts is not None:
            busy, arguments, stores = acts
            found |= body.that_only_act(body.at(busy), arguments, stores) & inside
        if not found:
            named = (body.that_name(n) & inside for n in (*names, changes))
            found = next(filter(None, named), set())
        apart = self.apart | found
        unread = bool(reads) and not self.pieces and not body.that_read(set(reads))
        if len(apart) == body.count or not (found or unread):
            return None
        starts = [k for k in range(body.count) if k == 0 or (k in apart) != (k - 1 in apart)]
        try:
            pieces = body.pieces(starts)
        except CannotDivide:
            return None
        self.apart = apart
        before = {(p.first, p.last, *p.takes, None, *p.results): run for run, p in self.pieces}
        self.pieces = [(self._runner(p, before, recorded), p) for p in pieces]
        return [f"line {body.lines(k, k + 1)[0]} ({body.text(k)})" for k in sorted(found)]

    def _runner(self, piece: Piece, before: dict[Any, Any], recorded: Any) -> Any:
        run = before.get((piece.first, piece.last, *piece.takes, None, *piece.results))
        if run is None and piece.first in self.apart:
            return partial(self._as_written, piece.function)
        if run is None:
            lines = self._body.lines(piece.first, piece.last)
            run = recorded(piece.function, lines, piece.results)
        return run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        values = self._bind(*args, **kwargs)
        del args, kwargs
        for run, piece in self.pieces:
            # What no later piece takes is not held while this one runs.
            ends = piece.ends
            done, result = run(
                *tuple([values.pop(n) if n in ends else values[n] for n in piece.takes])
            )
            if done:
                return result
            for name, value in zip(piece.results, result, strict=True):
                if name not in ends:
                    values[name] = value
            del result
        return None
