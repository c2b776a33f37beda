"""Conversions by name (``.float()``, ``.cuda()``, ``.type()``) and dtype predicates."""

from __future__ import annotations

from typing import Any

from ... import dtypes
from ...dtypes import dtype as dtype_class
from ...spec import SCALARS
from ...tensor import Tensor
from ..creation.legacy_types import LEGACY_TYPES
from ..registry import function
from ..signatures import common_dtype

_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool_",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def _by_name(name: str, wanted: dtype_class) -> Any:
    def convert(self: Tensor, memory_format: Any = None) -> Tensor:
        return self.to(wanted)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"Convert to {wanted.name}; itself if it has that dtype."
    return convert


for _name, _dtype in _NAMES.items():
    function(method=True, public=False)(_by_name(_name, getattr(dtypes, _dtype)))


@function(method=True, public=False)
def cpu(input: Tensor, memory_format: Any = None) -> Tensor:
    """Copy to the CPU; returns itself if it is there."""
    return input.to("cpu")


@function(method=True, public=False)
def cuda(
    input: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> Tensor:
    """Copy to a CUDA device; returns itself if it is there."""
    return input.to("cuda" if device is None else device)


@function(method=True, public=False)
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """Return the tensor itself; copies to devices use pinned memory automatically."""
    return input


@function(method=True, public=False)
def is_pinned(input: Tensor, device: Any = None) -> bool:
    """Return False: host memory is pinned only during copies."""
    return False


_TYPE_OF = {cls.dtype: name for name, cls in LEGACY_TYPES.items()}


@function(method="type", public=False)
def type_(input: Tensor, dtype: Any = None, non_blocking: bool = False, **ignored: Any) -> Any:
    """Return PyTorch's type name (``'lowtide.FloatTensor'``), or convert to a type.

    Args:
        input: The tensor.
        dtype: A dtype, such a name, a class such as ``lowtide.FloatTensor``, or None to ask.
        non_blocking: Accepted.
        ignored: Accepted.

    Raises:
        ValueError: The name is none.
    """
    if dtype is None:
        home = input.dtype.home
        where = f"{home}." if input.device.type != "cuda" else f"{home}.cuda."
        if input.dtype.limited:  # no class: uint16 is UInt16Tensor
            name = input.dtype.name.replace("uint", "UInt").replace("float", "Float")
            return f"{where}{name}Tensor"
        return where + _TYPE_OF[input.dtype]
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2]
        prefix = dtype[: -len(name)].rstrip(".")
        if name not in LEGACY_TYPES or prefix.partition(".")[0] not in ("lowtide", "torch"):
            raise ValueError(f"invalid type: '{dtype}'. Pass a dtype such as lowtide.float32.")
        out = input.to(LEGACY_TYPES[name].dtype)
        return out.to("cuda") if prefix.endswith(".cuda") else out
    if dtype in LEGACY_TYPES.values():
        dtype = dtype.dtype
    return input.to(dtypes.as_dtype(dtype))


@function(method=True, public=False)
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """Convert to the dtype and device of another tensor."""
    return input.to(other)


# Questions


@function(
    names={
        "tensor": "tensor1",
        "scalar1": "tensor1",
        "other": "tensor2",
        "scalar": "tensor2",
        "scalar2": "tensor2",
    }
)
def result_type(tensor1: Any, tensor2: Any) -> dtype_class:
    """Return the dtype of arithmetic between two tensors or numbers.

    Example:
        >>> import lowtide as lt
        >>> lt.result_type(lt.tensor([1, 2]), 1.5)
        lowtide.float32
    """
    for x in (tensor1, tensor2):
        if not isinstance(x, Tensor) and (x is None or type(x) not in SCALARS):
            raise TypeError(f"result_type takes Tensors and numbers; got {type(x).__name__}.")
    return common_dtype(tensor1, tensor2)


@function()
def is_tensor(obj: Any) -> bool:
    """True for a Tensor."""
    return isinstance(obj, Tensor)


@function()
def is_floating_point(input: Tensor) -> bool:
    """True for a tensor of a floating dtype."""
    return input.dtype.is_floating_point


@function()
def is_complex(input: Tensor) -> bool:
    """True for a tensor of a complex dtype."""
    return input.dtype.is_complex


@function()
def is_signed(input: Tensor) -> bool:
    """True for a tensor whose dtype has negative values."""
    return input.dtype.is_signed


@function()
def is_inference(input: Tensor) -> bool:
    """True for a tensor made under ``inference_mode``."""
    return input.is_inference()


@function()
def get_device(input: Tensor) -> int:
    """Return the index of the CUDA device; -1 on other devices."""
    return input.get_device()


@function()
def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


@function(method=True)
def is_nonzero(input: Tensor) -> bool:
    """True if the only element is not zero.

    Raises:
        RuntimeError: There is not exactly one element.
    """
    return bool(input)


@function(method=True)
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """True if two tensors have the same shape."""
    return input.shape == other.shape
