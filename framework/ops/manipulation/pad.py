"""Padding: constant, reflect, replicate and circular."""

from __future__ import annotations

from ...kernels.common.copy import place
from ..autocast_policy import WIDE_ON_CPU, casts
from ..registry import function, op
from .cat import atleast_2d, cat
from .pad_border import _pad_border


def _pad_infer(input, *, before, after, value):
    shape = [n + a + b for n, a, b in zip(input.shape, before, after, strict=True)]
    if any(n < 0 for n in shape):
        raise RuntimeError(
            f"pad: the padding {list(zip(before, after, strict=True))} resulted in a negative "
            f"output size for input {tuple(input.shape)}. Crop less."
        )
    return input.like(shape)


def _pad_samples(make):
    yield (make(2, 3),), {"before": (1, 0), "after": (0, 2), "value": 0.0}
    yield (make(4),), {"before": (-1,), "after": (2,), "value": 1.5}
    yield (make(0, 2),), {"before": (1, 0), "after": (1, 0), "value": -1.0}


def _overlap(shape, before, after):
    """Return where the input lies in the padded result, and which of its elements."""
    target, source = [], []
    for n, a, b in zip(shape, before, after, strict=True):
        first, last = max(-a, 0), n - max(-b, 0)
        last = max(last, first)
        source.append(slice(first, last))
        target.append(slice(first + a, last + a))
    return tuple(target), tuple(source)


@op(infer=_pad_infer, half="exact", samples=_pad_samples)
def _pad(xp, out, input, *, before, after, value):
    """Pad with a constant; negative sizes crop."""
    target, source = _overlap(input.shape, before, after)
    for d in range(out.ndim):  # the frame, one pair of bands a dim
        inner = target[:d]
        out[(*inner, slice(0, target[d].start))] = value
        out[(*inner, slice(target[d].stop, None))] = value
    place(xp, out[target], input[source])


@_pad.vjp("input")
def _(g, before, after):
    return _pad(g, before=tuple([-n for n in before]), after=tuple([-n for n in after]), value=0.0)


@function()
def pad(input, pad, mode="constant", value=None):
    """Pad the last dims.

    Args:
        input: A tensor.
        pad: Counts ``(left, right, top, bottom, ...)``, the last dim first; negative ones crop.
        mode: "constant", "reflect" (without the edge), "replicate" (the edge), or "circular".
        value: The constant; 0 by default.

    Raises:
        RuntimeError: The counts do not fit the tensor.
        NotImplementedError: There is no such mode.
    """
    pad = tuple([int(p) for p in pad])
    if len(pad) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2; got {pad}.")
    if len(pad) // 2 > input.ndim:
        raise RuntimeError(
            f"pad: Padding length should be less than or equal to two times the input dimension "
            f"but got padding length {len(pad)} and input of dimension {input.ndim}. "
            "Two numbers, before and after, for each dim, from the last one on."
        )
    if mode == "constant":
        unpadded = input.ndim - len(pad) // 2
        before = (0,) * unpadded + pad[-2::-2]
        after = (0,) * unpadded + pad[::-2]
        if input.dtype.category < 2 and value is not None:
            value = int(value)
        return _pad(input, before=before, after=after, value=0 if value is None else value)
    if mode not in _ENDS:
        raise NotImplementedError(
            f"pad: Unrecognised padding mode {mode}. Use constant, reflect, replicate or circular."
        )
    if value not in (None, 0, 0.0):
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if mode == "replicate" or (mode == "reflect" and len(pad) < 6):
        return _extended_wide(input, pad, mode)
    return _extended(input, pad, mode)


def _extended(input, pad, mode):
    if input.numel() and not any(p < 0 for p in pad):
        return _around(input, pad, mode)
    ends = _ENDS[mode]
    for k in range(0, len(pad), 2):
        dim = input.ndim - 1 - k // 2
        left, right = pad[k], pad[k + 1]
        n = input.shape[dim]
        if n + left + right < 0 or (mode != "replicate" and (left < -n or right < -n)):
            raise RuntimeError(
                f"pad: the padding ({left}, {right}) of a dim of size {n} leaves less than nothing."
                " Crop less."
            )
        whole = input
        crop_left, crop_right = min(max(-left, 0), n), max(-right, 0)
        if crop_left or crop_right:
            input = input.narrow(dim, crop_left, max(n - crop_left - crop_right, 0))
        # An edge is the whole input's, also of a side that is cropped away.
        left, right = (min(max(p, 0), n + left + right) for p in (left, right))
        if left or right:
            head, tail = ends(whole if mode == "replicate" else input, dim, left, right)
            input = cat([x for x in (head, input, tail) if x is not None], dim)
    return input


_extended_wide = casts(WIDE_ON_CPU)(_extended)


@function()
def constant_pad_nd(input, pad, value=0):
    """Same as :func:`nn.functional.pad` in mode "constant"."""
    return pad_by(input, pad, "constant", value)


def _around(input, pad, mode):
    # No side is cropped: one call.
    before, after = [0] * input.ndim, [0] * input.ndim
    for k in range(0, len(pad), 2):
        dim = input.ndim - 1 - k // 2
        before[dim], after[dim] = pad[k], pad[k + 1]
        _LIMITS[mode](input, dim, pad[k], pad[k + 1])
    if not any(pad):
        return input
    return _pad_border(input, before=tuple(before), after=tuple(after), mode=mode)


def _check_reflected(input, dim, left, right):
    if max(left, right) >= input.shape[dim]:
        raise RuntimeError(
            "Padding size should be less than the corresponding input dimension, but got: "
            f"padding ({left}, {right}) at dimension {dim} of input {list(input.shape)}"
        )


def _check_wrapped(input, dim, left, right):
    if max(left, right) > input.shape[dim]:
        raise RuntimeError(
            "Padding value causes wrapping around more than once: padding "
            f"({left}, {right}) at dimension {dim} of input {list(input.shape)}"
        )


def _reflected(input, dim, left, right):
    n = input.shape[dim]
    _check_reflected(input, dim, left, right)
    return (
        input.narrow(dim, 1, left).flip(dim) if left else None,
        input.narrow(dim, n - 1 - right, right).flip(dim) if right else None,
    )


def _replicated(input, dim, left, right):
    n = input.shape[dim]

    def edge(start, count):
        shape = list(input.shape)
        shape[dim] = count
        return input.narrow(dim, start, 1).expand(shape) if count else None

    return edge(0, left), edge(n - 1, right)


def _wrapped(input, dim, left, right):
    n = input.shape[dim]
    _check_wrapped(input, dim, left, right)
    return (
        input.narrow(dim, n - left, left) if left else None,
        input.narrow(dim, 0, right) if right else None,
    )


pad_by = pad  # where an argument is called pad
_ENDS = {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}
_LIMITS = {
    "reflect": _check_reflected,
    "replicate": lambda *_: None,
    "circular": _check_wrapped,
}


@function()
def block_diag(*tensors):
    """Create a block diagonal matrix."""
    matrices = []
    for k, x in enumerate(tensors):
        if x.ndim > 2:
            raise RuntimeError(
                "block_diag: Input tensors must have 2 or fewer dimensions. Input "
                f"{k} has {x.ndim} dimensions"
            )
        matrices.append(atleast_2d(x))
    columns = sum(x.shape[1] for x in matrices)
    rows = []
    left = 0
    for x in matrices:
        rows.append(pad(x, (left, columns - left - x.shape[1])))
        left += x.shape[1]
    return cat(rows, 0)
