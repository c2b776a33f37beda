"""``torch.onnx``: names that declare exports; nothing is exported, so they have no effect."""

from __future__ import annotations

import enum
from typing import Any

import lowtide as _lt


def parse_args(*kinds: Any) -> Any:
    """Return a decorator that leaves a function as it is."""
    return lambda fn: fn


def shape_as_tensor(x: Any) -> Any:
    """Return the shape as a tensor of int64."""
    return _lt.tensor(list(x.shape), dtype=_lt.int64)


def reshape_from_tensor_shape(x: Any, shape: Any) -> Any:
    """Reshape to sizes that a tensor holds."""
    return x.reshape([int(n) for n in shape])


class TensorProtoDataType(enum.IntEnum):
    """ONNX' numbers of dtypes."""

    UNDEFINED, FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL = range(10)
    FLOAT16, DOUBLE, UINT32, UINT64, COMPLEX64, COMPLEX128, BFLOAT16 = range(10, 17)


class ExportOptions:
    """Options of an export, for code that passes them on."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


class ONNXProgram:
    """What an export makes in PyTorch; here there are none."""
