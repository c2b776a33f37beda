"""Creation of filled, uninitialized and complex tensors.

The other factories are in ``arrays`` (from data), ``counting`` (ramps), ``random`` and ``legacy``;
what all of them share is in ``factory``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...device import device as as_device
from ...devices import backend
from ...dtypes import FLOAT, get_default_dtype
from ...memory_format import strided
from ...spec import Spec
from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CPU
from ..inplace import into
from ..registry import FUNCTIONS, function, op
from ..signatures import broadcast_shapes
from .factory import (
    NUMBERS,
    dtype_of,
    leave_uninitialized,
    like,
    made,
    natural_dtype,
    need_strided,
    new,
    place_of,
    put,
    scalar,
    shape_of,
    size_of,
    target,
    written,
)
from .from_data import copied


@function()
def empty(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
    **named: Any,
) -> Tensor:
    """Create an uninitialized tensor."""
    if layout is not None:
        need_strided("empty", layout)
    shape = size_of("empty", size, named)
    t = written(
        target("empty", shape, dtype, get_default_dtype(), device, out), leave_uninitialized
    )
    return t.requires_grad_() if requires_grad else t


@function()
def zeros(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Create a tensor of zeros."""
    if layout is not None:
        need_strided("zeros", layout)
    shape = size_of("zeros", size, named)
    t = put(target("zeros", shape, dtype, get_default_dtype(), device, out), 0)
    return t.requires_grad_() if requires_grad else t


@function()
def ones(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Create a tensor of ones."""
    if layout is not None:
        need_strided("ones", layout)
    shape = size_of("ones", size, named)
    t = put(target("ones", shape, dtype, get_default_dtype(), device, out), 1)
    return t.requires_grad_() if requires_grad else t


@function()
def full(
    size: Any,
    fill_value: Any,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of one value, whose type determines the dtype unless given."""
    if layout is not None:
        need_strided("full", layout)
    if not isinstance(size, list | tuple):
        raise TypeError(
            f"full(): argument 'size' must be tuple of ints, not {type(size).__name__}."
        )
    natural = fill_value.dtype if isinstance(fill_value, Tensor) else None
    value = scalar(fill_value)
    if not isinstance(value, NUMBERS):
        raise TypeError(
            "full(): argument 'fill_value' (position 2) must be Number, not "
            f"{type(value).__name__}."
        )
    t = target(
        "full", shape_of("full", (size,)), dtype, natural or natural_dtype(value), device, out
    )
    put(t, value)
    return t.requires_grad_() if requires_grad else t


@function()
def scalar_tensor(
    s: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a 0-d tensor of the default dtype."""
    if layout is not None:
        need_strided("scalar_tensor", layout)
    return full(
        (), s, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad
    )


@function()
def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create an uninitialized tensor with given strides, counted in elements."""
    if layout is not None:
        need_strided("empty_strided", layout)
    shape, steps = shape_of("empty_strided", (size,)), shape_of("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise RuntimeError(
            f"empty_strided: mismatch in length of strides and shape; got {steps} and {shape}."
        )
    wanted = get_default_dtype() if dtype is None else dtype_of("empty_strided", dtype)
    where = place_of(device)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) if 0 not in shape else 0
    be = backend(where)
    flat = written(new(Spec((span,), wanted, where)), leave_uninitialized)
    strides = tuple(s * wanted.itemsize for s in steps)
    array = (be.xp or np).lib.stride_tricks.as_strided(flat._array, shape, strides)
    t = made(array, Spec(shape, wanted, where), flat._storage)
    return t.requires_grad_() if requires_grad else t


@function()
def empty_permuted(
    size: Any,
    physical_layout: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create an uninitialized dense tensor with a given physical order of dims.

    Args:
        size: The shape.
        physical_layout: The dims from the outermost to the innermost.
        dtype: Of the result.
        layout: Accepted.
        device: Of the result.
        requires_grad: Whether the result requires a gradient.
        pin_memory: Accepted.
    """
    if layout is not None:
        need_strided("empty_permuted", layout)
    shape, order = shape_of("empty_permuted", (size,)), tuple(physical_layout)
    if len(order) != len(shape):
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout; i.e. "
            f"len(size) = {len(shape)} is not equal to len(physical_layout) = {len(order)}."
        )
    if any(not 0 <= d < len(shape) for d in order):
        raise RuntimeError(f"empty_permuted: Dimension out of range in {order}.")
    if len(set(order)) != len(order):
        raise RuntimeError(f"empty_permuted: Duplicate dim not allowed; got {order}.")
    t = empty(tuple([shape[d] for d in order]), dtype=dtype, device=device)
    t = made(t._array.transpose(np.argsort(order)), t._spec.like(shape), t._storage)
    return t.requires_grad_() if requires_grad else t


# Like others


@function()
def empty_like(
    input: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Create an uninitialized tensor of another's shape, dtype and device."""
    if isinstance(input, Tensor) and input.layout is not strided is not layout:
        made: Any = input
        return made.emptied(dtype, device, requires_grad)
    return written(
        like("empty_like", input, dtype, device, requires_grad, layout), leave_uninitialized
    )


@function()
def zeros_like(
    input: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Create zeros of another tensor's shape, dtype and device."""
    if isinstance(input, Tensor) and input.layout is not strided is not layout:
        made: Any = input
        return made.emptied(dtype, device, requires_grad)
    return put(like("zeros_like", input, dtype, device, requires_grad, layout), 0)


@function()
def ones_like(
    input: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Create ones of another tensor's shape, dtype and device."""
    return put(like("ones_like", input, dtype, device, requires_grad, layout), 1)


@function()
def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Create a tensor of one value in another's shape, dtype and device."""
    return put(like("full_like", input, dtype, device, requires_grad, layout), scalar(fill_value))


@function(method=True, public=False)
def new_tensor(
    input: Tensor,
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:
    """Copy data into a new tensor of this one's dtype and device."""
    if layout is not None:
        need_strided("new_tensor", layout)
    wanted = input.dtype if dtype is None else dtype_of("new_tensor", dtype)
    out = copied(data, wanted, input.device if device is None else as_device(device))
    return out.requires_grad_() if requires_grad else out


def _new_like(
    name: str,
    input: Tensor,
    size: Any,
    dtype: Any,
    device: Any,
    named: dict[str, Any] | None = None,
) -> Tensor:
    wanted = input.dtype if dtype is None else dtype_of(name, dtype)
    where = input.device if device is None else as_device(device)
    shape = shape_of(name, size) if named is None else size_of(name, size, named)
    return new(Spec(shape, wanted, where))


@function(method=True, public=False)
def new_empty(
    input: Tensor,
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Create an uninitialized tensor of this one's dtype and device."""
    if layout is not None:
        need_strided("new_empty", layout)
    t = written(
        _new_like("new_empty", input, size, dtype, device, named),
        leave_uninitialized,
    )
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_empty_strided(
    input: Tensor,
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create an uninitialized tensor of this one's dtype and device with given strides."""
    if layout is not None:
        need_strided("new_empty_strided", layout)
    return empty_strided(
        size,
        stride,
        dtype=input.dtype if dtype is None else dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
    )


@function(method=True, public=False)
def new_zeros(
    input: Tensor,
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Create zeros of this tensor's dtype and device."""
    if layout is not None:
        need_strided("new_zeros", layout)
    t = put(_new_like("new_zeros", input, size, dtype, device, named), 0)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_ones(
    input: Tensor,
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Create ones of this tensor's dtype and device."""
    if layout is not None:
        need_strided("new_ones", layout)
    t = put(_new_like("new_ones", input, size, dtype, device, named), 1)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_full(
    input: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of one value in this one's dtype and device."""
    if layout is not None:
        need_strided("new_full", layout)
    t = put(_new_like("new_full", input, (size,), dtype, device), scalar(fill_value))
    return t.requires_grad_() if requires_grad else t


# Complex from its parts


def _need_parts(name, first, second):
    # Both floating tensors of one dtype.
    for word, x in (first, second):
        if not isinstance(x, Tensor | Spec):
            raise TypeError(f"{name}(): argument '{word}' must be Tensor, not {type(x).__name__}.")
    a, b = first[1].dtype, second[1].dtype
    if a.category != FLOAT or b.category != FLOAT:
        raise RuntimeError(
            f"{name}: Expected both inputs to be Half, Float or Double tensors but got {a} and {b}."
            " Convert them with .to(lowtide.float32)."
        )
    if a is not b:
        raise RuntimeError(
            f"{name}: Expected object of scalar type {a} but got scalar type {b} for second "
            "argument. Convert one with .to()."
        )


def _complex_infer(real, imag):
    _need_parts("complex", ("real", real), ("imag", imag))
    return Spec(broadcast_shapes("complex", real.shape, imag.shape), real.dtype.to_complex())


def _complex_samples(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2,)), ((0, 2), (1, 2))):
        yield (make(*a), make(*b)), {}


@op(
    infer=_complex_infer,
    half="exact",
    samples=_complex_samples,
    tensors=("real", "imag"),
)
def _complex(xp, out, real, imag):
    """Complex numbers of real and imaginary parts."""
    xp.copyto(out.real, real, casting="unsafe")  # "unsafe" for NumPy's sake: bfloat16 to float32
    xp.copyto(out.imag, imag, casting="unsafe")


@_complex.vjp("real")
def _(g):
    return FUNCTIONS["real"](g)


@_complex.vjp("imag")
def _(g):
    return FUNCTIONS["imag"](g)


@function()
def complex(real: Tensor, imag: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Create complex numbers from real and imaginary parts."""
    result = _complex(real, imag)
    return result if out is None else _complex_into("complex", out, result)


def _complex_into(name, out, result):
    if out.dtype is not result.dtype:
        raise RuntimeError(
            f"{name}: Expected object of scalar type {result.dtype} but got scalar type "
            f"{out.dtype} for argument 'out'."
        )
    return into(out, result)


@function(autocast=WIDE_ON_CPU)
def polar(abs: Tensor, angle: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Create complex numbers from absolute values and angles.

    Args:
        abs: Absolute values, float32 or float64.
        angle: Angles in radians, in the dtype of ``abs``.
        out: Where to leave the result.
    """
    _need_parts("polar", ("abs", abs), ("angle", angle))
    if abs.dtype.is_half:
        raise NotImplementedError(f'"polar" not implemented for {abs.dtype}. Use .float().')
    result = _complex(abs * angle.cos(), abs * angle.sin())
    return result if out is None else _complex_into("polar", out, result)
