"""Types of the sizes that layers take, for annotations: one number, or one for each dimension."""

from typing import Any

from lowtide.framework.tensor import Tensor as _Tensor

_size_any_t: Any = int | tuple[int, ...]
_size_1_t: Any = int | tuple[int]
_size_2_t: Any = int | tuple[int, int]
_size_3_t: Any = int | tuple[int, int, int]
_size_4_t: Any = int | tuple[int, int, int, int]
_size_5_t: Any = int | tuple[int, int, int, int, int]
_size_6_t: Any = int | tuple[int, int, int, int, int, int]
_size_any_opt_t: Any = tuple[int | None, ...]
_size_2_opt_t: Any = tuple[int | None, int | None]
_size_3_opt_t: Any = tuple[int | None, int | None, int | None]
_ratio_any_t: Any = float | tuple[float, ...]
_ratio_2_t: Any = float | tuple[float, float]
_ratio_3_t: Any = float | tuple[float, float, float]
_tensor_list_t: Any = _Tensor | list[_Tensor]
_maybe_indices_t: Any = _Tensor | tuple[_Tensor, _Tensor]
