"""Making tensors: filled, like others, of complex parts.

The other factories are in ``arrays`` (from data), ``counting`` (ramps), ``random`` and ``legacy``;
what all of them share is in ``factory``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..devices import backend
from ..devices.device import device as as_device
from ..dtypes import FLOAT, get_default_dtype
from ..spec import Spec
from ..tensor import Tensor
from .arrays import as_tensor as as_tensor
from .arrays import copied
from .arrays import from_numpy as from_numpy
from .arrays import tensor as tensor
from .counting import arange as arange
from .factory import (
    dtype_of,
    like,
    made,
    natural_dtype,
    place_of,
    put,
    scalar,
    shape_of,
    size_of,
    target,
)
from .factory import new as new
from .registry import FUNCTIONS, broadcast_shapes, function, op


@function()
def empty(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: Any = None, **named: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor with whatever values its memory had."""
    shape = size_of("empty", size, named)
    t = target("empty", shape, dtype, get_default_dtype(), device, out)
    return t.requires_grad_() if requires_grad else t


@function()
def zeros(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of zeros."""
    shape = size_of("zeros", size, named)
    t = put(target("zeros", shape, dtype, get_default_dtype(), device, out), 0)
    return t.requires_grad_() if requires_grad else t


@function()
def ones(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of ones."""
    shape = size_of("ones", size, named)
    t = put(target("ones", shape, dtype, get_default_dtype(), device, out), 1)
    return t.requires_grad_() if requires_grad else t


@function()
def full(
    size: Any, fill_value: Any, *, out: Tensor | None = None, dtype: Any = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value; its dtype follows the value's type unless given."""
    if not isinstance(size, list | tuple):
        raise TypeError(
            f"full(): argument 'size' must be tuple of ints, not {type(size).__name__}."
        )
    natural = fill_value.dtype if isinstance(fill_value, Tensor) else None
    value = scalar(fill_value)
    t = target(
        "full", shape_of("full", (size,)), dtype, natural or natural_dtype(value), device, out
    )
    put(t, value)
    return t.requires_grad_() if requires_grad else t


@function()
def scalar_tensor(
    s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a 0-d tensor of the default dtype."""
    return full(
        (), s, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad
    )


@function()
def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor with given strides, counted in elements."""
    shape, steps = shape_of("empty_strided", (size,)), shape_of("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise RuntimeError(
            f"empty_strided: mismatch in length of strides and shape; got {steps} and {shape}."
        )
    wanted = get_default_dtype() if dtype is None else dtype_of("empty_strided", dtype)
    where = place_of(device)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) if 0 not in shape else 0
    be = backend(where)
    storage, flat = be.empty(Spec((span,), wanted, where))
    strides = tuple(s * wanted.itemsize for s in steps)
    array = (be.xp or np).lib.stride_tricks.as_strided(flat, shape, strides)
    t = made(array, Spec(shape, wanted, where), storage)
    return t.requires_grad_() if requires_grad else t


# Like others


@function()
def empty_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor of another's shape, dtype and device."""
    return like("empty_like", input, dtype, device, requires_grad)


@function()
def zeros_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make zeros of another tensor's shape, dtype and device."""
    return put(like("zeros_like", input, dtype, device, requires_grad), 0)


@function()
def ones_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make ones of another tensor's shape, dtype and device."""
    return put(like("ones_like", input, dtype, device, requires_grad), 1)


@function()
def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value in another's shape, dtype and device."""
    return put(like("full_like", input, dtype, device, requires_grad), scalar(fill_value))


@function(method=True, public=False)
def new_tensor(
    input: Tensor, data: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Copy data into a new tensor of this one's dtype and device."""
    wanted = input.dtype if dtype is None else dtype_of("new_tensor", dtype)
    out = copied(data, wanted, input.device if device is None else as_device(device))
    return out.requires_grad_() if requires_grad else out


def _new_like(name: str, input: Tensor, size: Any, dtype: Any, device: Any) -> Tensor:
    wanted = input.dtype if dtype is None else dtype_of(name, dtype)
    where = input.device if device is None else as_device(device)
    return new(Spec(shape_of(name, size), wanted, where))


@function(method=True, public=False)
def new_empty(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor of this one's dtype and device."""
    t = _new_like("new_empty", input, size, dtype, device)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_zeros(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make zeros of this tensor's dtype and device."""
    t = put(_new_like("new_zeros", input, size, dtype, device), 0)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_ones(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make ones of this tensor's dtype and device."""
    t = put(_new_like("new_ones", input, size, dtype, device), 1)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_full(
    input: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value in this one's dtype and device."""
    t = put(_new_like("new_full", input, (size,), dtype, device), scalar(fill_value))
    return t.requires_grad_() if requires_grad else t


# Complex from its parts


def _complex_infer(real, imag):
    if real.dtype.category != FLOAT or imag.dtype.category != FLOAT:
        raise RuntimeError(
            "complex: Expected both inputs to be Half, Float or Double tensors but got "
            f"{real.dtype} and {imag.dtype}. Convert them with .to(lowtide.float32)."
        )
    if real.dtype is not imag.dtype:
        raise RuntimeError(
            f"complex: Expected object of scalar type {real.dtype} but got scalar type "
            f"{imag.dtype} for second argument. Convert one with .to()."
        )
    return Spec(broadcast_shapes("complex", real.shape, imag.shape), real.dtype.to_complex())


def _complex_samples(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2,)), ((0, 2), (1, 2))):
        yield (make(*a), make(*b)), {}


@op(name="complex", method=False, infer=_complex_infer, samples=_complex_samples)
def make_complex(xp, out, real, imag):
    """Make complex numbers of real and imaginary parts."""
    xp.copyto(out.real, real, casting="unsafe")  # "unsafe" for NumPy's sake: bfloat16 to float32
    xp.copyto(out.imag, imag, casting="unsafe")


@make_complex.vjp("real")
def _(g):
    return FUNCTIONS["real"](g)


@make_complex.vjp("imag")
def _(g):
    return FUNCTIONS["imag"](g)


@function()
def polar(abs: Tensor, angle: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Make complex numbers of absolute values and angles."""
    result = make_complex(abs * angle.cos(), abs * angle.sin())
    return result if out is None else out.copy_(result)
