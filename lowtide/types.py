"""Names of types that annotations use, as PyTorch has them."""

import builtins
from collections.abc import Sequence
from typing import Any
from typing import List as List  # noqa: UP035

import lowtide as _lt

_TensorOrTensors = Any
Number = int | float | builtins.bool
Device = Any
Storage = _lt.UntypedStorage
FileLike = Any

_dtype, _device, _layout, _qscheme = _lt.dtype, _lt.device, _lt.layout, type(None)
_int, _float, _bool, _complex = builtins.int, builtins.float, builtins.bool, builtins.complex
_size = _lt.Size | list[builtins.int] | tuple[builtins.int, ...]
_symsize = _size
_dispatchkey = str
IntLikeType = builtins.int
FloatLikeType = builtins.float
BoolLikeType = builtins.bool
py_sym_types = (builtins.int, builtins.float, builtins.bool)
TensorOrNumber = Any
TensorOrTensors = _lt.Tensor | Sequence[_lt.Tensor]
