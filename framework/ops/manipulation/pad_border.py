"""Padding by what a tensor has itself: reflect, replicate and circular, and their adjoint.

The result is filled in place: the input, then the bands around it, the last dim first. A band is a
copy of what lies inside, of rows that are padded already; so corners need no case of their own.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ...kernels.common.copy import place
from ...kernels.common.reduce import total
from ...spec import Spec
from ..registry import op

MODES = ("reflect", "replicate", "circular")


def _padded(input, before, after):
    return tuple([n + a + b for n, a, b in zip(input.shape, before, after, strict=True)])


def _samples(make):
    for mode in MODES:
        yield (make(2, 4),), {"before": (0, 2), "after": (0, 3), "mode": mode}
        yield (make(3, 2),), {"before": (2, 0), "after": (1, 1), "mode": mode}
    yield (make(0, 3),), {"before": (0, 1), "after": (0, 1), "mode": "reflect"}


def _grad_samples(make):
    for mode in MODES:
        yield (make(2, 9),), {"before": (0, 2), "after": (0, 3), "mode": mode}
        yield (make(6, 3),), {"before": (2, 0), "after": (1, 1), "mode": mode}
    yield (make(0, 5),), {"before": (0, 1), "after": (0, 1), "mode": "circular"}


def _bands(mode, n, a, b):
    """Return the bands of a dim, and what they repeat: pairs of slices of the padded result.

    Args:
        mode: One of ``MODES``.
        n: Size of the input, which begins at ``a``.
        a: Size of the band before it.
        b: Size of the band behind.
    """
    inner = a + n
    if mode == "replicate":
        sources = slice(a, a + 1), slice(inner - 1, inner)
    elif mode == "circular":
        sources = slice(n, inner), slice(a, a + b)
    else:
        last = inner - 2 - b
        sources = slice(2 * a, a, -1), slice(inner - 2, None if last < 0 else last, -1)
    bands = slice(0, a), slice(inner, inner + b)
    return [(band, s) for band, s, count in zip(bands, sources, (a, b), strict=True) if count]


@op(
    infer=lambda input, *, before, after, mode: input.like(_padded(input, before, after)),
    half="exact",
    samples=_samples,
)
def _pad_border(xp, out, input, *, before, after, mode):
    """Pad by what lies inside: each band is at most as large as the mode allows."""
    inner = [slice(a, a + n) for a, n in zip(before, input.shape, strict=True)]
    place(xp, out[tuple(inner)], input)
    for d in reversed(range(out.ndim)):
        lead = tuple(inner[:d])
        for band, source in _bands(mode, input.shape[d], before[d], after[d]):
            out[(*lead, band)] = out[(*lead, source)]


def _grad_infer(grad, *, before, after, mode):
    shape = tuple([n - a - b for n, a, b in zip(grad.shape, before, after, strict=True)])
    largest = 0  # what a band adds up to, where all of it repeats one line
    if mode == "replicate":
        padded = [d for d, ends in enumerate(zip(before, after, strict=True)) if any(ends)]
        largest = prod(grad.shape) // min([grad.shape[d] for d in padded], default=1)
    return Spec(shape, grad.dtype), Spec((largest,), grad.dtype)


@op(infer=_grad_infer, scratch=("sums",), samples=_grad_samples)
def _pad_border_grad(xp, out, sums, grad, *, before, after, mode):
    """The adjoint of padding: add to each element what was repeated of it.

    The bands are added in one order, whatever the device.
    """
    dims = []
    for n, a, b in zip(out.shape, before, after, strict=True):
        inner = slice(a, a + n)
        dims.append([(inner, inner), *_bands(mode, n, a, b)])
    for k, region in enumerate(product(*dims)):
        given = grad[tuple([band for band, _ in region])]
        if k == 0:
            place(xp, out, given)
            continue
        # From places in the padded result to those in the input.
        there = out[tuple([_moved(s, a) for (_, s), a in zip(region, before, strict=True)])]
        axes = tuple([d for d in range(out.ndim) if there.shape[d] != given.shape[d]])
        if axes:
            summed = sums[: there.size].reshape(there.shape)
            total(xp, given, axes, summed)
            given = summed
        xp.add(there, given, out=there)


def _moved(source, a):
    stop = None if source.stop is None or source.stop < a else source.stop - a
    return slice(source.start - a, stop, source.step)


@_pad_border.vjp("input")
def _(g, before, after, mode):
    return _pad_border_grad(g, before=before, after=after, mode=mode)


@_pad_border_grad.vjp("grad")
def _(g, before, after, mode):
    return _pad_border(g, before=before, after=after, mode=mode)
