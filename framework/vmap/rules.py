"""Which rule an op has, from what its declaration says.

In this order: a separate rule (``own_rules.py``); pointwise, if the declaration says that places
are independent; positions of dims among the attributes; a family whose last dims are one problem,
or whose first dim counts independent rows; the composition that the op declares. What is left is
mapped (``mapping.py``). ``docs/vmap.md`` has the list, made by ``rule_name``.

A rule takes a ``calls.Call`` and returns what one sample sees, or ``NotImplemented`` where it does
not cover the call, which then goes to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..modes import local
from ..ops.registry import Op
from ..ops.signatures import broadcast, broadcast_bool
from ..tensor import Tensor
from .mapping import mapped

Rule = Callable[[Any], Any]

OWN: dict[str, Rule] = {}  # by the op's name: own_rules.py


def own(*names: str) -> Callable[[Rule], Rule]:
    """Declare the rule of ops that need a separate one; a decorator."""

    def declare(rule: Rule) -> Rule:
        for name in names:
            OWN[name] = rule
        return rule

    return declare


# Pointwise

_POINTWISE_FAMILY = ".ops.elementwise."
_POINTWISE = {  # beside those that are declared elementwise
    "_absolute_error",
    "_bernoulli",
    "_blend",
    "_complex",
    "_convert",
    "_copy",
    "_hardtanh",
    "_threshold",
    "clone",
    "frexp",
    "softsign",
}


def is_pointwise(op: Op) -> bool:
    """True if each place of an op's result depends on that place of its inputs alone."""
    if op.elementwise == "bitmask":  # bits of neighbours share a byte
        return False
    return (
        op.elementwise is True
        or op.name in _POINTWISE
        or (_POINTWISE_FAMILY in op.plain.__module__ and len(op.returns) == 1)
    )


def pointwise(call: Any) -> Any:
    """Samples' dims are aligned at their end, as broadcasting does; levels come before them."""
    ndim = max(s.ndim for s in call.specs if s is not None)
    infer = call.op.infer
    infer = infer.func if isinstance(infer, partial) else infer
    spare = infer in (broadcast, broadcast_bool)  # dims of size 1 will do
    return call.run([call.front(i, ndim, not spare) for i in range(len(call.inputs))])


# Positions of dims among the attributes

_POSITIONS = ("dim", "dims", "dim1", "dim2")
_SHAPES = ("shape",)
_NOT_BY_DIMS = {"_plane_gather", "_unique", "_unique_consecutive"}
_SHAPED = {"_view", "_reshape_copy"}  # no positions, but the whole shape of the result


def is_by_dims(op: Op) -> bool:
    """True if attributes say which dims an op works along."""
    if op.name in _NOT_BY_DIMS:
        return False
    return op.name in _SHAPED or any(n in op.attributes for n in _POSITIONS)


def by_dims(call: Any) -> Any:
    """The levels come before all dims, so positions move by their number."""
    count = len(call.levels)
    changed: dict[str, Any] = {}
    for name, value in call.attributes.items():
        if name in _POSITIONS:
            if value is None:
                return NotImplemented
            moved = [d + count if d >= 0 else d for d in _as_tuple(value)]
            changed[name] = moved[0] if isinstance(value, int) else tuple(moved)
        elif name in _SHAPES and value is not None:
            changed[name] = (*call.sizes, *value)
    target = call.attributes.get("shape")
    if target == () or any(s is not None and not s.ndim for s in call.specs):  # dim 0 of a number
        named = [_as_tuple(v) for n, v in call.attributes.items() if n in _POSITIONS]
        if any(named):
            if target == ():
                changed["shape"] = (*call.sizes, 1)
            return call.run([call.front(i, 1) for i in range(len(call.inputs))], changed)
    return call.run([call.front(i) for i in range(len(call.inputs))], changed)


def _as_tuple(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


# The last dims are one problem; what comes before is free

_LAST_DIMS = {
    "_cholesky", "_cofactors", "_cofactors_slope", "_det", "_eig", "_eigh", "_eigvalsh",
    "_euclidean", "_inv", "_ldl_factor", "_ldl_solve", "_lstsq", "_lu_factor", "_matrix_exp",
    "_permutation", "_qr", "_slogdet", "_solve", "_solve_triangular", "_svd", "_svdvals",
    "_view_dtype", "geqrf", "tril", "triu", "view_as_complex", "view_as_real",
}  # fmt: skip


def last_dims(call: Any) -> Any:
    """The levels are further free dims before the others."""
    ndim = max(s.ndim for s in call.specs if s is not None)
    # Row exchanges are vectors beside matrices: a dim less.
    less = [name == "pivots" for name in call.names]
    return call.run([call.front(i, ndim - less[i]) for i in range(len(call.inputs))])


# The first dim counts rows that are independent

_ROWS: dict[str, tuple[str, ...]] = {  # the inputs that have rows; others must not be batched
    "_adaptive_avg_pool": ("input",), "_adaptive_avg_pool_grad": ("grad",),
    "_adaptive_max_pool": ("input",), "_affine_grid": ("theta",), "_avg_pool": ("input",),
    "_avg_pool_grad": ("grad",), "_cdist": ("x1", "x2"),
    "_cdist_backward": ("grad", "x1", "x2", "lengths"), "_channel_dropout": ("input",),
    "_columns": ("input",), "_cross_entropy": ("input", "target"),
    "_cross_entropy_grad": ("grad", "input", "target", "top", "total"),
    "_fractional_max_pool": ("input", "draws"), "_grid_sample": ("input", "grid"),
    "_grid_sample_grid_grad": ("grad", "input", "grid"),
    "_grid_sample_image_grad": ("grad", "grid"), "_image": ("input",), "_max_pool": ("input",),
    "_max_pool_flat_index": ("index",), "_max_pool_grad": ("grad", "index"),
    "_max_pool_pick": ("input", "index"), "_multilabel_margin": ("input", "target"),
    "_multilabel_margin_grad": ("grad", "input", "target"), "_nll": ("input", "target"),
    "_plane_gather": ("input", "index"), "_plane_scatter": ("grad", "index"),
    "_taps": ("input", "weight", "index"), "_taps_agreement": ("input", "grad", "index"),
    "_taps_spread": ("grad", "weight", "index"), "_trilinear": ("a", "b"),
}  # fmt: skip


def rows(call: Any) -> Any:
    """Rows of all samples are rows of one call."""
    with_rows = _ROWS[call.op.name]
    operands = []
    for i, (name, spec) in enumerate(zip(call.names, call.specs, strict=True)):
        if name in with_rows and spec is not None:
            if spec.ndim < 2 and not (
                spec.ndim == 1 and name in ("target", "grad", "top", "total")
            ):
                return NotImplemented
            operands.append(call.rows(i))
        elif spec is not None and not call.unbatched(i):
            return NotImplemented
        else:
            operands.append(call.inputs[i])
    return call.run(operands)


# The whole list

_KINDS: list[tuple[str, Callable[[Op], bool], Rule]] = [
    ("own", lambda op: op.name in OWN, lambda call: OWN[call.op.name](call)),
    ("pointwise", is_pointwise, pointwise),
    ("by dims", is_by_dims, by_dims),
    ("last dims", lambda op: op.name in _LAST_DIMS, last_dims),
    ("rows", lambda op: op.name in _ROWS, rows),
    ("composition", lambda op: op.composition is not None, lambda call: composition(call)),
]


def composition(call: Any) -> Any:
    """Run the plain ops that the op declares itself to be made of."""
    op = call.op
    if any(n == "rng" and x is not None for n, x in zip(call.names, call.inputs, strict=True)):
        return NotImplemented
    found = op.composition(*call.inputs, **call.attributes)
    if isinstance(found, Tensor):
        return found
    return found[0] if len(op.returns) == 1 else tuple(found[: len(op.returns)])


def rules_of(op: Op) -> list[tuple[str, Rule]]:
    """Return the rules of an op, (name, rule), in the order in which they are tried."""
    return [(name, rule) for name, covers, rule in _KINDS if covers(op)]


def rule_name(op: Op) -> str:
    """Return the name of an op's first rule; "random", "mapped" or "refused" if it has none."""
    if op.infer is None:
        return "refused"
    found = rules_of(op)
    if found:
        return found[0][0]
    return "random" if "rng" in op.inputs else "mapped"


_found: dict[str, list[Rule]] = {}


def apply(call: Any) -> Any:
    """Return what one sample sees of a call."""
    op = call.op
    tried = _found.get(op.name)
    if tried is None:
        tried = _found[op.name] = [rule for _, rule in rules_of(op)]
    for rule in tried:
        result = rule(call)
        if result is not NotImplemented:
            return result
    return mapped(call, call.levels, warn=local.state.phase is None)
