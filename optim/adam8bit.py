"""Adam and AdamW with 8-bit state: two bytes per element instead of eight."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..framework.autograd.saved import count_write
from ..framework.dtypes import float32, float64, uint8
from ..framework.kernels.common import dynamic_code
from ..framework.kernels.common.copy import copy
from ..framework.kernels.common.schedule import parallel_rows
from ..framework.kernels.runtime import thresholds
from ..framework.memory.ledger import WORKSPACE
from ..framework.modes import run_kernel
from ..framework.ops.creation.fill import empty
from ..framework.ops.creation.fill import zeros as new_zeros
from ..framework.ops.creation.from_data import tensor
from ..framework.ops.indexing.nonzero import bucketize
from ..framework.ops.views.tiled import limit_of, reserve
from ..framework.updates import HOSTS, flat_arrays, planned_update, require_no_overlap
from .adam import adam_step, count_step
from .elementwise import Elementwise
from .optimizer import check_betas, check_options, own

BLOCK = 256  # elements with one scale
TILES_ALIVE = 5  # temporaries of a tile's size, on devices without the loop


class Adam8bit(Elementwise):
    """Adam with 8-bit moments, quantized in blocks of 256 elements.

    The step is Adam's, in the parameter's precision (float32 for half precision): a block's means
    are decoded, moved on, used, and only then rounded to eight bits again. A code stands for a
    number between -1 (for v: 0) and 1, which times the block's scale, the largest magnitude in it,
    is the mean. The numbers are dense near 1 and reach down to 1e-7
    (``framework/kernels/common/dynamic_code.py``). A large element so takes precision from the
    others of its block, and of no other.

    State: ``step``; ``state1`` (m) and ``state2`` (v), uint8 of the parameter's shape; ``absmax1``
    and ``absmax2``, float32, their scales, one for each 256 elements in the order of a contiguous
    tensor: 2.03 bytes an element, where Adam keeps 8. Parameters of fewer than ``min_8bit_size``
    elements keep ``state1`` and ``state2`` as Adam does, in float32 at least.

    Memory: no mean is ever decoded completely. On the CPU a step is compiled and takes none beside
    the state; for parameters that are strided or of half precision it takes two tiles in float32,
    once for all of them. Small models compute the step in copies, and write it back. On other
    devices it runs in tensor ops on tiles (``framework/ops/views/tiled.py``), as :class:`Adam`'s.

    Names and defaults are bitsandbytes'. Different here: ``weight_decay`` is an L2 penalty, as in
    Adam (theirs shrinks the parameter, as AdamW8bit); a v above 0 is never rounded to 0, so that no
    later step divides by ``eps`` alone; the 256 numbers are not part of the state.

    Args:
        params: What to optimize; an embedding of which few rows have a gradient at a time is
            better off with ``{"params": ..., "min_8bit_size": 1 << 62}``.
        lr: Learning rate.
        betas: Decay of the two means.
        eps: Added to the denominator.
        weight_decay: L2 penalty, added to the gradient.
        amsgrad: Must be False.
        optim_bits: Must be 32.
        args: Must be None.
        min_8bit_size: Elements below which a parameter's state is not rounded.
        is_paged: No effect.
        maximize: Climb instead.

    Raises:
        ValueError: An option is out of range, or asks for what there is not.
        RuntimeError: A parameter is complex.

    Source:
        Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861),
        with blocks of 256 as in their library bitsandbytes, where the paper has 2048.
    """

    rule = adam_step
    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        name = type(self).__name__
        check_options(name, lr, epsilon=eps, weight_decay=weight_decay, min_8bit_size=min_8bit_size)
        betas = check_betas(name, betas)
        if amsgrad:
            raise ValueError(f"{name} does not support amsgrad=True. Use Adam or AdamW.")
        if optim_bits != 32:
            raise ValueError(
                f"{name} only supports optim_bits=32, which is there for compatibility; got "
                f"{optim_bits}. Its state has 8 bits in any case."
            )
        if args is not None:
            raise ValueError(f"{name} takes no args object; got {type(args).__name__}. Pass None.")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "min_8bit_size": min_8bit_size,
            "maximize": maximize,
            "decoupled_weight_decay": self.decoupled,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero."""
        if p.is_complex():
            raise RuntimeError(
                f"{type(self).__name__} does not support complex parameters. Use Adam or AdamW."
            )
        n, device = p.numel(), p.device
        coded = n >= group["min_8bit_size"]
        kind = uint8 if coded else _precision(p)
        names = [("state1", p.shape, kind), ("state2", p.shape, kind)]
        if coded:
            names += [(scales, (-(-n // BLOCK),), float32) for scales in ("absmax1", "absmax2")]
        found = {name: own(new_zeros(s, dtype=k, device=device), p) for name, s, k in names}
        return {"step": 0, **found}

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's shape, or of scales one for each block."""
        if key in ("absmax1", "absmax2"):
            return (-(-p.numel() // BLOCK),)
        return super().state_shape(key, p)

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        numbers = {**count_step(state, group), "amsgrad": False}
        return (state["state1"], state["state2"], None), numbers

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """One step for one parameter."""
        if not state:
            state.update(self.start(p, group))
        if "absmax1" not in state:
            return super().prepare(p, g, state, group)
        step_numbers = {**count_step(state, group), "amsgrad": False}
        variant, numbers = adam_step.of_call(step_numbers)
        held = [state[name] for name in ("state1", "state2", "absmax1", "absmax2")]
        host = p.device.type in HOSTS
        if host and flat_arrays(self.elements, (p, g)) is not None:
            _ready(variant.coded, p.dtype, len(numbers))
            return _run, variant.coded, p, g, held, numbers
        if not host:
            reserve(p, TILES_ALIVE)
            return _by_tensors, p, g, held, step_numbers, _plain(p.device)
        require_no_overlap(p._array, p)
        if self.elements >= thresholds.COMPILED_STEP:
            _ready(variant.coded, _precision(p), len(numbers))
            return _by_parts, variant.coded, p, g, held, numbers, _room_for(p)
        # So few elements that all is computed in copies, and written back.
        copies = [p.detach().contiguous().to(_precision(p), copy=True), *[t.clone() for t in held]]
        _by_tensors(copies[0], g.detach(), copies[1:], step_numbers, _plain(p.device))
        return _copied, [p, *held], copies


class AdamW8bit(Adam8bit):
    """AdamW with 8-bit moments, as :class:`Adam8bit`; decoupled weight decay.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means.
        eps: Added to the denominator.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.
        amsgrad: Must be False.
        optim_bits: Must be 32.
        args: Must be None.
        min_8bit_size: Elements below which a parameter's state is not rounded.
        is_paged: No effect.
        maximize: Climb instead.

    Raises:
        ValueError: An option is out of range, or asks for what there is not.
        RuntimeError: A parameter is complex.
    """

    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            optim_bits,
            args,
            min_8bit_size,
            is_paged,
            maximize=maximize,
        )


def _precision(p: Any) -> Any:
    return float64 if p.dtype is float64 else float32


_compiled_for: set[Any] = set()


def _ready(loop: Any, dtype: Any, count: int) -> None:
    # The loop is compiled at its first call, which may fail: here, with nothing to do.
    if (loop, dtype) in _compiled_for:
        return
    values, codes = np.empty((0, BLOCK), dtype.name), np.empty((0, BLOCK), np.uint8)
    scales = np.empty(0, np.float32)
    kind = values.dtype.type
    run_kernel(loop, values, values, codes, codes, scales, scales, *[kind(1)] * count)
    _compiled_for.add((loop, dtype))


def _run(loop: Any, p: Any, g: Any, held: list[Any], numbers: Sequence[float]) -> None:
    for t in (p, *held):
        count_write(t._storage, "step")
    if not p.is_meta:
        _run_on(loop, [t._array for t in (p, g, *held)], numbers)


def _run_on(loop: Any, arrays: list[Any], numbers: Sequence[float]) -> None:
    n = arrays[0].size
    full = n // BLOCK
    end = full * BLOCK  # what is left is a block of its own
    flat = [a.reshape(-1) for a in arrays[:4]]
    scales = arrays[4:]
    scalars = [flat[0].dtype.type(x) for x in numbers]
    if full:
        blocks = [a[:end].reshape(full, BLOCK) for a in flat]
        first = [s[:full] for s in scales]
        run_kernel(parallel_rows, loop, end, full, *blocks, *first, *scalars)
    if end < n:
        blocks = [a[end:].reshape(1, -1) for a in flat]
        run_kernel(loop, *blocks, *[s[full:] for s in scales], *scalars)


_rooms: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def _room_for(p: Any) -> Any:
    # Two rows of workspace for the parts of a parameter; the parameters of a step share them.
    size, kind = min(p.numel(), limit_of(p)), _precision(p)
    key = threading.get_ident(), kind, p.device
    scratch = _rooms.get(key)
    if scratch is None or scratch.shape[1] < size:
        scratch = empty(2, size, dtype=kind, device=p.device)
        scratch._storage.set_role(WORKSPACE)
        _rooms[key] = scratch
    return scratch


def _by_parts(
    loop: Any, p: Any, g: Any, held: list[Any], numbers: Sequence[float], scratch: Any
) -> None:
    """Run the compiled loop on parts of a strided or half-precision parameter."""
    for t in (p, *held):
        count_write(t._storage, "step")
    if p.is_meta:
        return
    arrays = [t.detach()._array for t in (p, g)]
    codes, scales = [t._array.reshape(-1) for t in held[:2]], [t._array for t in held[2:]]
    for start, end in _ranges(p.numel(), limit_of(p)):
        part = [row[: end - start] for row in scratch._array]
        for to, source in zip(part, arrays, strict=True):
            for piece, at in _spans(source, start, end, 0):
                run_kernel(copy, to[at : at + piece.size].reshape(piece.shape), piece)
        blocks = slice(start // BLOCK, -(-end // BLOCK))
        of_part = [c[start:end] for c in codes] + [s[blocks] for s in scales]
        _run_on(loop, [*part, *of_part], numbers)
        for piece, at in _spans(arrays[0], start, end, 0):
            run_kernel(copy, piece, part[0][at : at + piece.size].reshape(piece.shape))


def _copied(tensors: list[Any], values: list[Any]) -> None:
    for t, value in zip(tensors, values, strict=True):
        count_write(t._storage, "step")
        if not t.is_meta:
            run_kernel(copy, t.detach()._array, value._array)


# The same in tensor ops


def _by_tensors(p: Any, g: Any, held: list[Any], numbers: dict[str, float], step: Any) -> None:
    for start, end in _ranges(p.numel(), limit_of(p)):
        x, d = _gathered(p, start, end), _gathered(g, start, end)
        blocks = slice(start // BLOCK, -(-end // BLOCK))
        codes = [t.view(-1)[start:end] for t in held[:2]]
        step(x, d, [*codes, *[t[blocks] for t in held[2:]]], numbers)
        _scattered(p, start, end, x)
        del x, d  # before the next ones are made


def _plain(device: Any) -> Any:
    tables = [tensor(dynamic_code.numbers(s), dtype=float32, device=device) for s in (True, False)]
    limits = [tensor(dynamic_code.limits(s), dtype=float32, device=device) for s in (True, False)]

    def step(p: Any, g: Any, held: list[Any], numbers: dict[str, float]) -> None:
        width = min(BLOCK, p.numel())
        p, g, *codes = (t.view(-1, width) for t in (p, g, *held[:2]))
        scales = [s.unsqueeze(1) for s in held[2:]]
        m, v = (
            table.index_select(0, c.reshape(-1).long()).view(c.shape).mul_(s).to(p.dtype)
            for table, c, s in zip(tables, codes, scales, strict=True)
        )
        run, *arguments = planned_update(adam_step, (p, g, m, v, None), numbers)
        run(*arguments)
        _encode(m, codes[0], scales[0], limits[0], signed=True)
        _encode(v, codes[1], scales[1], limits[1], signed=False)

    return step


def _encode(mean: Any, codes: Any, scales: Any, limits: Any, signed: bool) -> None:
    mean = mean.to(float32)
    scales.copy_(mean.abs().amax(-1, keepdim=True))
    mean.div_(scales.masked_fill(scales == 0, 1.0))
    if not signed:  # what is above 0 stays so
        codes.copy_(bucketize(mean, limits).maximum((mean > 0).long()))
        return
    side = (mean < 0).long().mul_(-2).add_(1)  # -1 or 1
    rank = bucketize(mean.abs_(), limits)
    codes.copy_(rank.mul_(side).clamp_(min=-dynamic_code.ZERO).add_(dynamic_code.ZERO))


# Parts of a parameter, where it is not computed with as it is


def _ranges(n: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of parts of n elements: whole blocks, and the last partial one."""
    full = n - n % BLOCK
    step = max(BLOCK, limit - limit % BLOCK)
    for start in range(0, full, step):
        yield start, min(start + step, full)
    if full < n:
        yield full, n


def _gathered(t: Any, start: int, end: int) -> Any:
    """Flatten elements of a tensor to a vector; a view if possible."""
    kind = _precision(t)
    if t.is_contiguous():
        return t.view(-1)[start:end].to(kind)
    out = empty(end - start, dtype=kind, device=t.device)
    for part, at in _spans(t, start, end, 0):
        out[at : at + part.numel()].view(part.shape).copy_(part)
    return out


def _scattered(t: Any, start: int, end: int, values: Any) -> None:
    """Write such a vector back, if it is not a view."""
    if values._storage.root is t._storage.root:
        return
    for part, at in _spans(t, start, end, 0):
        part.copy_(values[at : at + part.numel()].view(part.shape))


def _spans(t: Any, start: int, end: int, at: int) -> Iterator[tuple[Any, int]]:
    """Yield views that cover elements ``start`` to ``end``, with their offsets from ``at``.

    Of a tensor or an array.
    """
    if start == 0 and end == math.prod(t.shape):
        yield t, at
        return
    row = math.prod(t.shape[1:])
    first, last = -(-start // row), end // row  # rows that are whole
    if first > last:  # within one row
        yield from _spans(t[last], start - last * row, end - last * row, at)
        return
    if start < first * row:
        yield from _spans(t[first - 1], start - (first - 1) * row, row, at)
    if first < last:
        yield t[first:last], at + first * row - start
    if last * row < end:
        yield from _spans(t[last], 0, end - last * row, at + last * row - start)


__all__ = ["Adam8bit", "AdamW8bit"]
