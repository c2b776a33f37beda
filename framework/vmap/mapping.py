"""Mapping: an op without a rule runs once per sample, and the results are stacked.

It is right for every op, gradients included, and as slow as a loop; a warning says so once an op.
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

from ..autograd.engine import zeros_of
from ..modes import local
from ..ops.dispatch import dispatch
from ..ops.manipulation.cat import stack
from ..random.philox import Rng
from ..spec import Spec
from ..tensor import Tensor
from .batched import labeled, levels_of, real
from .levels import Levels, sizes

_told: set[str] = set()


def mapped(call: Any, levels: Levels, warn: bool = True, step: int = 0) -> Any:
    """Run a call for each sample of some levels.

    Args:
        call: A ``calls.Call``.
        levels: Which; over other levels it stays vectorized.
        warn: Say once an op that this is slow.
        step: Of a draw, how many counters of the stream are each sample's own.
    """
    op = call.op
    if op.infer is None:
        raise RuntimeError(
            f"vmap: it is not possible to vmap over {op.display_name}: the shape of its result "
            "depends on values (dynamic shape), and would differ between samples. Use "
            "lowtide.where or masks in its place, or call it outside vmap."
        )
    if warn and op.name not in _told and not local.state.phase:
        _told.add(op.name)
        warnings.warn(
            f"There is a performance drop because vmap has no batching rule for {op.display_name}: "
            "it runs once per sample. docs/vmap.md lists such ops.",
            UserWarning,
            stacklevel=4,
        )
    lengths = sizes(levels)
    given = [
        real(x, levels) if isinstance(x, Tensor) and {*levels_of(x)} & {*levels} else x
        for x in call.inputs
    ]
    differ = [g is not x for g, x in zip(given, call.inputs, strict=True)]
    for i, x in enumerate(call.inputs):  # shared, and with a gradient of its own in each sample
        if isinstance(x, Tensor) and not differ[i] and x.requires_grad and local.state.grad:
            given[i], differ[i] = real(x, levels), True
    attributes = tuple(call.attributes.values())
    found: list[Any] = []
    for number, index in enumerate(product(*map(range, lengths))):
        sample = []
        for x, own in zip(given, differ, strict=True):
            for k in index if own else ():
                x = x.select(0, k)
            if step and isinstance(x, Rng):
                x = Rng(x.seed, x.offset + number * step)
            sample.append(x)
        found.append(dispatch(op, tuple(sample), attributes))
    specs = call.plan.results[: len(op.returns)]
    if not found:
        results = tuple(zeros_of(Spec((*lengths, *s.shape), s.dtype, s.device)) for s in specs)
        return _as_seen(results, levels)
    columns = zip(*[f if isinstance(f, tuple) else (f,) for f in found], strict=True)
    results = tuple(stack(list(c)).reshape((*lengths, *c[0].shape)) for c in columns)
    return _as_seen(results, levels)


def _as_seen(results: tuple[Tensor, ...], levels: Levels) -> Any:
    seen = tuple(labeled(r, levels) for r in results)
    return seen if len(seen) > 1 else seen[0]
