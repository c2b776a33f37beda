"""PyTorch's older names: ``Tensor(...)``, ``FloatTensor`` and its kin, ``Variable``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes
from ... import tensor as tensor_file
from ...device import device as as_device
from ...spec import Size, Spec
from ...tensor import Tensor, instance
from ..registry import public
from .factory import leave_uninitialized, new, shape_of, written
from .from_data import copied
from .storages import StorageHandle, on_storage


def legacy_tensor(cls: Any, *args: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """``Tensor(...)``: from data, from a tensor (the same memory), or from sizes.

    Args:
        cls: The class called.
        args: None for an empty tensor, data, a tensor or a storage (the same memory), or integers.
        dtype: Of the result, by default the default dtype.
        device: Of the result.
    """
    typed = dtype is not None
    wanted = dtype if typed else dtypes.get_default_dtype()
    where = as_device("cpu") if device is None else as_device(device)
    if len(args) == 1 and isinstance(args[0], Tensor):
        if typed and args[0].dtype is not wanted:
            raise TypeError(
                f"expected a tensor of {wanted} (got {args[0].dtype}). Use .to({wanted})."
            )
        out = args[0].detach()
    elif len(args) == 1 and isinstance(args[0], StorageHandle):
        out = on_storage(args[0], wanted)
    elif len(args) == 1 and not isinstance(args[0], int | np.integer | Size):
        if isinstance(args[0], float | complex) or not hasattr(args[0], "__len__"):
            raise TypeError(
                f"new(): data must be a sequence (got {type(args[0]).__name__}). Use "
                "lowtide.tensor()."
            )
        out = copied(args[0], wanted, where)
    else:
        out = written(new(Spec(shape_of("new", args or (0,)), wanted, where)), leave_uninitialized)
    return instance(cls, out, False, {})


tensor_file.legacy_tensor = legacy_tensor  # type: ignore[attr-defined]


class _ByDtype(type):
    """Makes ``isinstance(x, FloatTensor)`` ask for x's dtype."""

    dtype: Any

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        return legacy_tensor(Tensor, *args, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == "cpu"


# What PyTorch's old classes of tensors and storages are called by.
LEGACY_NAMES: dict[str, dtypes.dtype] = {
    "Float": dtypes.float32,
    "Double": dtypes.float64,
    "Half": dtypes.float16,
    "BFloat16": dtypes.bfloat16,
    "Long": dtypes.int64,
    "Int": dtypes.int32,
    "Short": dtypes.int16,
    "Char": dtypes.int8,
    "Byte": dtypes.uint8,
    "Bool": dtypes.bool_,
    "ComplexFloat": dtypes.complex64,
    "ComplexDouble": dtypes.complex128,
}
LEGACY_TYPES: dict[str, Any] = {}
for _name, _of in LEGACY_NAMES.items():
    LEGACY_TYPES[f"{_name}Tensor"] = _ByDtype(
        f"{_name}Tensor",
        (),
        {
            "dtype": _of,
            "__doc__": f"CPU tensors of {_of.name}: PyTorch's older constructor and type.",
            "__module__": __name__,
        },
    )
for _name in list(LEGACY_TYPES):
    if not _name.startswith("Complex"):
        public(LEGACY_TYPES[_name])
