"""``autograd.Function`` inside ``vmap``: by its own rule, or by running it on batched tensors.

A Function's forward and backward are the user's code, so nothing is known of them. Either the class
says what it makes of a batch (``vmap``), or that its code is made of ops that can be batched
(``generate_vmap_rule``). Then it is applied to the values of all samples, and inside that its
methods see one sample's tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..autograd import given_ops
from ..autograd.function import Function
from ..autograd.transforms import flatten
from ..modes import local
from ..tensor import Tensor
from .batched import batched, labeled, levels_of, real, shared_gradient, value_of
from .levels import Level, Levels, inside, only, ordered


class VmapInfo(NamedTuple):
    """What a Function's static method ``vmap`` gets.

    Attributes:
        batch_size: Number of samples.
        randomness: "error", "different" or "same".
    """

    batch_size: int
    randomness: str


def function_in_vmap(cls: Any, args: tuple[Any, ...], separate: bool) -> Any:
    """Apply a Function inside ``vmap``; ``NotImplemented`` if no argument is batched.

    Args:
        cls: The Function.
        args: Arguments of its forward.
        separate: It has ``setup_context``.

    Raises:
        RuntimeError: It says nothing of batches, or both things.
    """
    levels = ordered(level for x in args for level in levels_of(x))
    if not levels:
        return NotImplemented
    name = cls.__name__
    rule = getattr(cls, "vmap", None)
    if rule is not None and cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an "
            "overridden vmap staticmethod. Keep one of them."
        )
    if rule is not None:
        return _by_its_rule(rule, name, args, levels[-1])
    if not cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it does not have vmap support. Please override "
            "and implement the vmap staticmethod, or set generate_vmap_rule=True."
        )
    if not separate:
        raise RuntimeError(
            f"{name}: generate_vmap_rule=True needs a forward without ctx. Write setup_context."
        )
    return _generated(cls, args, levels)


def _by_its_rule(rule: Any, name: str, args: tuple[Any, ...], level: Level) -> Any:
    dims = tuple([0 if level in levels_of(x) else None for x in args])
    given = [x if d is None else real(x, (level,)) for x, d in zip(args, dims, strict=True)]
    with only(x for x in local.state.levels if x is not level):
        found = rule(VmapInfo(level.size, level.randomness), dims, *given)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise RuntimeError(
            f"Expected the vmap staticmethod of {name} to return a tuple of two, (output, "
            f"out_dims); got {type(found).__name__}."
        )
    output, out_dims = found
    leaves, restore = flatten(output)
    spread = [out_dims] * len(leaves) if isinstance(out_dims, int) else flatten(out_dims)[0]
    if out_dims is None:
        spread = [None] * len(leaves)
    if len(spread) != len(leaves):
        raise RuntimeError(
            f"The vmap staticmethod of {name} returned {len(leaves)} outputs and {len(spread)} "
            "out_dims. Return one per output."
        )
    return restore(
        [
            x if d is None else labeled(x.movedim(d, 0) if d else x, (level,))
            for x, d in zip(leaves, spread, strict=True)
        ]
    )


class _SampleContext:
    """The ``ctx`` that setup_context and backward see: what is saved are samples' tensors."""

    def __init__(self, ctx: Any, owned: list[Levels], levels: Levels) -> None:
        self.__dict__.update(_ctx=ctx, _levels=levels)
        self.__dict__["needs_input_grad"] = ctx.needs_input_grad
        if not hasattr(ctx, "_saved_levels"):
            ctx._saved_levels = []

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors of a sample."""
        self._ctx._saved_levels = [levels_of(t) for t in tensors]
        self._ctx.save_for_backward(*map(value_of, tensors))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to ``save_for_backward``."""
        saved = zip(self._ctx.saved_tensors, self._ctx._saved_levels, strict=True)
        return tuple(t if t is None else batched(t, levels) for t, levels in saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)


def _generated(cls: Any, args: tuple[Any, ...], levels: Levels) -> Any:
    owned = [levels_of(x) for x in args]
    shapes: list[Any] = []

    def of_samples(values: Any) -> list[Any]:
        return [
            batched(v, o) if isinstance(v, Tensor) else v
            for v, o in zip(values, owned, strict=True)
        ]

    def forward(*values: Any) -> Any:
        with inside(levels):
            output = cls.forward(*of_samples(values))
            leaves, restore = flatten(output)
            shapes.append(restore)
            return tuple(real(x, levels) if isinstance(x, Tensor) else x for x in leaves)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        shown = shapes[0]([batched(x, levels) if isinstance(x, Tensor) else x for x in output])
        with inside(levels):
            cls.setup_context(_SampleContext(ctx, owned, levels), tuple(of_samples(inputs)), shown)

    def backward(ctx: Any, *grads: Any) -> Any:
        running = local.state.levels
        with inside(levels):
            given = [None if g is None else labeled(g, levels) for g in grads]
            found = cls.backward(_SampleContext(ctx, owned, levels), *given)
            found = found if isinstance(found, tuple | list) else (found,)
            results = [None if g is None else real(g, levels) for g in found]
        return tuple(
            None if g is None else _of_argument(g, o, levels, running)
            for g, o in zip(results, owned, strict=False)
        )

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "recompute": cls.recompute,
    }
    made: Any = type(cls.__name__, (Function,), members)
    values = made.apply(*map(value_of, args))
    return shapes[0]([batched(v, levels) if isinstance(v, Tensor) else v for v in values])


def _of_argument(g: Tensor, owned: Levels, levels: Levels, running: Levels) -> Tensor:
    # The gradient of all samples; to that of an argument that depends on some of the levels.
    missing = tuple([x for x in levels if x not in owned])
    if not missing:
        return g
    g = shared_gradient(g, levels, missing)
    for k in reversed(range(len(levels))):
        if levels[k] in missing:
            g = g.squeeze(k)
    return g


given_ops.function_in_vmap = function_in_vmap
