"""Tensor methods that programs and libraries ask of PyTorch's: other devices, subclasses, ``new``.

Devices and kinds of storage that lowtide does not have answer False. What a subclass defines as
``__torch_function__`` is not called: a subclass takes part in operations as a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops.creation.legacy_types import legacy_tensor
from ..tensor import Tensor, install_method, instance

ABSENT = {
    "is_ipu": "Graphcore's processors",
    "is_maia": "Microsoft's accelerators",
    "is_mkldnn": "oneDNN's layout",
    "is_mps": "Apple's GPUs",
    "is_mtia": "Meta's accelerators",
    "is_vulkan": "Vulkan",
    "is_xla": "XLA's devices",
    "is_xpu": "Intel's GPUs",
}


def new(self: Tensor, *args: Any, device: Any = None) -> Tensor:
    """Make a tensor of this one's dtype and device: from sizes, from data, or an empty one.

    PyTorch's older way to write ``new_empty``, ``new_tensor``.
    """
    return legacy_tensor(
        Tensor, *args, dtype=self.dtype, device=self.device if device is None else device
    )


def as_subclass(self: Tensor, cls: type) -> Tensor:
    """Return an instance of a subclass of ``Tensor`` over the same memory and history."""
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise TypeError(f"as_subclass takes a subclass of Tensor; got {cls!r}.")
    return instance(cls, self.view_as(self), self.requires_grad, {})


def record_stream(self: Tensor, s: Any) -> None:
    """Do nothing: all work of a GPU is done on one stream, in order."""


def __reversed__(self: Tensor) -> Tensor:
    """Return the tensor with its first dimension in reverse; a 0-d tensor as it is."""
    return self.flip(0) if self.ndim else self


def _make_subclass(
    cls: type, data: Tensor, require_grad: bool = False, *args: Any, **ignored: Any
) -> Tensor:
    """Make an instance of a subclass over a tensor's memory, as a leaf."""
    return instance(cls, data.detach(), require_grad, {})


def __torch_function__(
    cls: type, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Call the function: what a subclass's own ``__torch_function__`` goes on to."""
    return func(*args, **(kwargs or {}))


def _absent(what: str) -> property:
    def answer(self: Tensor) -> bool:
        return False

    answer.__doc__ = f"False: lowtide does not run on {what}."
    if "layout" in what:
        answer.__doc__ = f"False: lowtide does not use {what}."
    return property(answer)


for _method in (new, as_subclass, record_stream, __reversed__):
    install_method(_method.__name__, _method)
install_method("_make_subclass", staticmethod(_make_subclass))
install_method("__torch_function__", classmethod(__torch_function__))
for _name, _what in ABSENT.items():
    install_method(_name, _absent(_what))
