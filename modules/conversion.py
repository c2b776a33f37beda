"""Moving and converting modules: all parameters and buffers, in place.

Parameters keep their identity, so optimizers go on knowing them; each one's old memory goes before
the next is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ..framework.device import device as as_device
from ..framework.dtypes import as_dtype, bfloat16, float16, float32, float64
from ..framework.dtypes import dtype as dtype_class
from ..framework.modes import no_grad
from ..framework.ops.creation.fill import empty_like
from ..framework.tensor import Tensor
from .parameter import Parameter, keep_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .module import Module


class ConversionMixin:
    """Methods of :class:`Module` for devices and dtypes."""

    if TYPE_CHECKING:  # what Module brings
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]

        children: Callable[[], Iterator[Module]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What all of these are made of; modules may override it.
        if recurse:
            for child in self.children():
                child._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is None:
                    continue
                data = fn(p.detach())
                grad = None if p._grad is None else fn(p._grad)
                p._grad = None
                p.data = data
                p.grad = grad
            for name, b in self._buffers.items():
                if b is not None:
                    keep_buffer(self, name, fn(b))
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert parameters and buffers in place; dtypes apply to floating ones only.

        Accepts ``to(device)``, ``to(dtype)``, ``to(device, dtype)``, ``to(tensor)`` and the
        keywords ``device``, ``dtype``, ``non_blocking``, ``memory_format``; the last two change
        nothing.

        Raises:
            TypeError: The dtype is neither floating nor complex.
            NotImplementedError: A tensor is on meta, and shall leave it. Use ``to_empty``.
        """
        where, wanted = _target(*args, **kwargs)

        def change(t: Tensor) -> Tensor:
            if t.is_meta and where is not None and where.type != "meta":
                raise NotImplementedError(
                    "Cannot copy out of meta tensor; no data! Use Module.to_empty() instead of "
                    "Module.to() when moving a module from meta to a different device."
                )
            return t.to(device=where, dtype=wanted if t.dtype.is_differentiable else None)

        return self._apply(change)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Move to a device without copying values; memory is uninitialized."""
        return self._apply(lambda t: empty_like(t, device=device), recurse=recurse)

    def cpu(self) -> Self:
        """Move to the CPU."""
        return self._apply(lambda t: t.to("cpu"))

    def cuda(self, device: Any = None) -> Self:
        """Move to a CUDA device."""
        return self._apply(lambda t: t.to("cuda" if device is None else as_device(device)))

    def half(self) -> Self:
        """Convert floating parameters and buffers to float16."""
        return self._apply(_cast_to(float16))

    def bfloat16(self) -> Self:
        """Convert floating parameters and buffers to bfloat16."""
        return self._apply(_cast_to(bfloat16))

    def double(self) -> Self:
        """Convert floating parameters and buffers to float64."""
        return self._apply(_cast_to(float64))

    # From here on `float` and `type` in this class are no longer Python's.

    def float(self) -> Self:
        """Convert floating parameters and buffers to float32."""
        return self._apply(_cast_to(float32))

    def type(self, dst_type: Any) -> Self:
        """Convert every parameter and buffer to a dtype."""
        return self._apply(lambda t: t.type(dst_type))


def _cast_to(dtype: Any) -> Callable[[Tensor], Tensor]:
    return lambda t: t.to(dtype) if t.is_floating_point() else t


def _target(
    *args: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
    tensor: Tensor | None = None,
) -> tuple[Any, Any]:
    # (device, dtype) that a call of `to` names; each may be None.
    for a in (*args, tensor):
        if isinstance(a, Tensor):
            device, dtype = a.device, a.dtype
        elif isinstance(a, dtype_class | type):
            dtype = a
        elif a is not None and not isinstance(a, bool):
            device = a
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None and not wanted.is_differentiable:
        raise TypeError(
            "nn.Module.to only accepts floating point or complex dtypes, but got desired "
            f"dtype={wanted}. Integer buffers keep theirs."
        )
    return None if device is None else as_device(device), wanted
