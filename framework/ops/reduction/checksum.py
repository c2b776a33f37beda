"""``hash_tensor``: the exclusive or of all elements' bits."""

from __future__ import annotations

from ...dtypes import COMPLEX, FLOAT, float64, int64, uint64
from ...spec import Spec
from ..registry import function, op
from .sum import normalize_dims, reduced_shape, reductions


def _hash_infer(input, *, dim, keepdim):
    if input.dtype.category == COMPLEX:
        raise NotImplementedError(
            f"hash_tensor is not implemented for {input.dtype}. Pass .view_as_real()."
        )
    wide = float64 if input.dtype.category == FLOAT else int64
    return Spec(reduced_shape(input.shape, dim, keepdim), uint64), input.like(dtype=wide)


@op(infer=_hash_infer, scratch=("wide",), half="exact", samples=reductions)
def _hash_tensor(xp, out, wide, input, *, dim, keepdim):
    """Exclusive or of the bits of elements, as float64 or int64, over ``dim``."""
    xp.copyto(wide, input, casting="unsafe")
    bits = wide.view("u8")
    for d in dim:  # halves onto each other, in the workspace
        n = bits.shape[d]
        lead = (slice(None),) * d
        while n > 1:
            half = n // 2
            first = bits[(*lead, slice(half))]
            xp.bitwise_xor(first, bits[(*lead, slice(n - half, n))], out=first)
            n -= half
        bits = bits[(*lead, slice(1))]
    if bits.size or not out.size:
        xp.copyto(out, bits.reshape(out.shape))
    else:
        out.fill(0)  # nothing was reduced


@_hash_tensor.kernel("cpu")
def _(xp, out, wide, input, *, dim, keepdim):
    xp.copyto(wide, input, casting="unsafe")
    xp.bitwise_xor.reduce(wide.view("u8"), axis=dim, keepdims=keepdim, out=out)


@function(method=True)
def hash_tensor(input, dim=(), *, keepdim=False, mode=0, out=None):
    """Compute a checksum: the exclusive or of the bits of elements, as float64 or int64.

    Args:
        input: Of any shape, no complex numbers.
        dim: One or more dims to reduce; none means all.
        keepdim: Keep them with size 1.
        mode: 0, the exclusive or, is the only one.
        out: Where to put the result.

    Returns:
        uint64 tensor of the shape without ``dim``.

    Raises:
        RuntimeError: There is no such mode, or no element and no ``dim``.
        IndexError: A dim that is reduced has no elements.
        NotImplementedError: The numbers are complex, uint16 to uint64 or 8-bit floats.

    Memory:
        8 bytes of workspace for each element.
    """
    if mode != 0:
        raise RuntimeError(f"hash_tensor: Unknown hash_tensor mode: {mode}. Pass mode=0.")
    if dim in ((), [], None) and not input.numel():
        raise RuntimeError(
            "hash_tensor: Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    dims = normalize_dims("hash_tensor", dim, input.ndim)
    for d in dims:
        if not input.shape[d]:
            raise IndexError(
                f"hash_tensor: Expected reduction dim {d} to have non-zero size; got "
                f"{tuple(input.shape)}. Reduce other dims."
            )
    return _hash_tensor(input.detach(), dim=dims, keepdim=bool(keepdim), out=out)
