"""Dtypes of a sharded module: in which it computes, and in which gradients are averaged.

Source of the interface: PyTorch's ``torch.distributed.fsdp.MixedPrecisionPolicy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....framework.dtypes import dtype
from ....framework.interop.pytree import tree_map_only
from ....framework.tensor import Tensor


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of ``fully_shard``.

    Shards, their gradients and the optimizer's state keep the dtype of the parameter.

    Attributes:
        param_dtype: Of gathered parameters, and so of the computation; that of the shard if None.
        reduce_dtype: In which gradients are added up over the ranks; that of the gathered
            parameter if None.
        output_dtype: Of floating-point tensors that forward returns; as they are if None.
        cast_forward_inputs: Convert floating-point arguments of forward to ``param_dtype``.

    Raises:
        TypeError: One is no floating-point dtype.
    """

    param_dtype: dtype | None = None
    reduce_dtype: dtype | None = None
    output_dtype: dtype | None = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, dtype) and value.is_floating_point):
                raise TypeError(
                    f"MixedPrecisionPolicy: {name} must be a floating-point dtype such as "
                    f"lowtide.bfloat16, or None; got {value!r}."
                )

    def gathered(self, own: dtype) -> dtype:
        """Return the dtype of a gathered parameter, given that of the shard."""
        return self.param_dtype if self.param_dtype and own.is_floating_point else own

    def reduced(self, gradient: dtype) -> dtype:
        """Return the dtype in which a gradient is averaged."""
        return self.reduce_dtype if self.reduce_dtype and gradient.is_floating_point else gradient

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments as forward gets them."""
        if not self.cast_forward_inputs or self.param_dtype is None:
            return args, kwargs
        return converted((args, kwargs), self.param_dtype)

    def output(self, result: Any) -> Any:
        """Return what forward returns, as users get it."""
        return result if self.output_dtype is None else converted(result, self.output_dtype)


FULL_PRECISION = MixedPrecisionPolicy()


def converted(tree: Any, wanted: dtype) -> Any:
    """Return the same structure with its floating-point tensors in a dtype."""

    def convert(t: Tensor) -> Tensor:
        return t.to(wanted) if t.is_floating_point() else t

    return tree_map_only(Tensor, convert, tree)
