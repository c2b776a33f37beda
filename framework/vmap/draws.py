"""Random draws inside vmap: refused, the same for all samples, or different for each.

A draw takes its place in a generator's stream before anything is computed. Inside a ``vmap`` with
``randomness="different"`` that place is longer, as all samples draw from it, and it is a
:class:`LevelRng`: an input that brings the dispatcher here even where no tensor is batched.
"""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from ..modes import local
from ..random import generator as source
from ..random.philox import Rng
from ..spec import SCALARS
from .batched import runs
from .levels import Levels, sizes
from .mapping import mapped


class LevelRng:
    """The start of a draw of which each sample takes a separate part.

    Attributes:
        first: Where the first sample's part starts.
        levels: The levels whose samples draw apart; none where drawing is refused.
        step: Counters that one sample takes.
    """

    __slots__ = ("first", "levels", "step")

    def __init__(self, first: Rng, levels: Levels, step: int) -> None:
        self.first, self.levels, self.step = first, levels, step

    @property
    def seed(self) -> NoReturn:
        """Not supported: it would draw the same for all samples."""
        if not self.levels:
            refuse()
        raise RuntimeError(
            "vmap: this random operation cannot draw differently for each sample "
            "(randomness='different'). Draw with lowtide.rand, randn or randint and compute the "
            "rest, such as rand(n).argsort() for a permutation; or draw outside of vmap."
        )

    offset = seed


class _Runs:
    """The spec of such a draw in a plan's key, which no plan has."""

    category = -1
    name = "rng"

    @property
    def runs(self) -> Any:
        return runs[0]


SCALARS[LevelRng] = _Runs()  # type: ignore[assignment]


def refuse() -> NoReturn:
    """Raise the error of a draw where a level's randomness is "error"."""
    raise RuntimeError(
        "vmap: called random operation while in randomness error mode. Please either use the "
        "'same' or 'different' randomness flags on vmap, or draw outside of vmap."
    )


def is_refused(levels: Levels) -> bool:
    """True if a level's randomness is "error"."""
    return any(level.randomness == "error" for level in levels)


def need_randomness(levels: Levels) -> Levels:
    """Return the levels whose samples draw apart.

    Raises:
        RuntimeError: A level's randomness is "error".
    """
    if is_refused(levels):
        refuse()
    return tuple([level for level in levels if level.randomness == "different"])


def draw_inside(n: int, take: Any) -> Any:
    """Draw inside ``vmap``.

    Args:
        n: Words for one sample.
        take: ``take(n)`` reserves words of a generator.
    """
    levels = local.state.levels
    if is_refused(levels):  # when it is used: dropout of nothing is no random operation
        return LevelRng(Rng(0, 0), (), 0)
    apart = need_randomness(levels)
    if not apart:
        return take(n)
    step = (n + 3) // 4
    return LevelRng(take(4 * step * prod(sizes(apart))), apart, step)


def call_random(call: Any, rng: Any) -> Any:
    """Run an op that draws: once for samples that draw apart, for each of those that share.

    Args:
        call: A ``calls.Call``.
        rng: As it was given.
    """
    apart: Levels = ()
    if isinstance(rng, LevelRng):
        apart = rng.levels
        if not apart:
            if call.attributes.get("p") != 0:
                refuse()
            return call.run([call.front(i) for i in range(len(call.inputs))])
    # A draw that was made, and is repeated in backward, is the same for all.
    same = tuple([x for x in call.levels if x not in apart])
    if same:
        if apart:
            call.inputs = tuple(rng if isinstance(x, Rng) else x for x in call.inputs)
        return mapped(call, same, warn=False)
    if call.op.adopt or call.op.name in _BY_SAMPLE:
        return mapped(call, call.levels, warn=False, step=rng.step)
    return call.run([call.front(i) for i in range(len(call.inputs))])


_BY_SAMPLE = ("_attention", "_channel_dropout", "_rrelu")  # what they draw is of several shapes
source.inside_vmap = draw_inside
