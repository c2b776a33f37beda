"""Copies: clone, convert, move to another device, fill, and write one tensor into another."""

from __future__ import annotations

from typing import Any

from ..autograd.modes import local
from ..autograd.node import Node, _sequence, attach, edge_to
from ..devices import backend
from ..devices.device import device
from ..dtypes import as_dtype, dtype
from ..spec import Spec
from ..tensor import Tensor, wrap
from .registry import broadcast_shapes, function, op, same, singles


@op(infer=same, samples=singles)
def clone(xp, out, input):
    """Copy into memory of its own; the gradient passes through."""
    xp.copyto(out, input)


@clone.vjp("input")
def _(g):
    return g


@op(name="_convert", method=False, public=False, infer=lambda input, *, dtype: input.like(dtype=dtype))
def convert(xp, out, input, *, dtype):
    """Copy with another element type."""
    xp.copyto(out, input, casting="unsafe")


@convert.vjp("input")
def _(g):
    return g  # the engine converts it back to the input's dtype


def _copy_infer(input, src):
    if broadcast_shapes("copy_", input.shape, src.shape) != tuple(input.shape):
        raise RuntimeError(
            f"copy_ writes src into input, so src must broadcast to its shape; got input "
            f"{tuple(input.shape)} and src {tuple(src.shape)}."
        )
    return input


@op(name="_copy", method=False, public=False, inplace="_copy_", infer=_copy_infer)
def copy(xp, out, input, src):
    """The values of ``src`` in the shape and dtype of ``input``."""
    xp.copyto(out, src, casting="unsafe")


@copy.vjp("input")
def _(g):
    return None  # nothing of the old value is left


@copy.vjp("src")
def _(g):
    return g


@function(method=True, public=False)
def copy_(input: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write the values of ``src``, broadcast and converted, into this tensor."""
    if isinstance(src, Tensor) and src.device is not input.device:
        src = src.to(input.device)
    return input._copy_(src)


@op(
    name="_fill", method=False, public=False, inplace="fill_",
    infer=lambda input, value: input,
)  # fmt: skip
def fill(xp, out, input, value):
    """One value everywhere, in the shape and dtype of ``input``."""
    xp.copyto(out, value, casting="unsafe")


@fill.vjp("input")
def _(g):
    return None


@fill.vjp("value")
def _(g):
    return g.sum()


@function(method=True, public=False)
def zero_(input: Tensor) -> Tensor:
    """Write zeros into this tensor."""
    return input.fill_(0)


@function(method=True)
def detach(input: Tensor) -> Tensor:
    """Return the same values outside the graph, sharing memory and version."""
    out = wrap(input._array, input._spec, input._storage)
    if input._extra is not None and "inference" in input._extra:
        out._extra = {"inference": True}
    return out


class ToDevice(Node):
    """A copy between devices; its gradient travels back."""

    __slots__ = ("edge_specs",)

    def __init__(self, input: Tensor) -> None:
        self.edges = [edge_to(input)]
        self.edge_specs = [input._spec]
        self.seq = next(_sequence)
        self.extra = None

    def name(self) -> str:
        """PyTorch's name for it."""
        return "ToCopyBackward0"

    def apply(self, grads, wanted, retain, create):
        """Move the gradient to the input's device."""
        return [grads[0].to(self.edge_specs[0].device)]


def move(input: Tensor, where: device) -> Tensor:
    """Copy a tensor to another device, keeping its dtype."""
    source, target = backend(input.device), backend(where)
    spec = Spec(input.shape, input.dtype, where)
    if target.xp is None:
        storage, array = target.empty(spec)
    else:
        input._need_values("to")
        storage, array = target.from_host(source.to_host(input._array), spec, 0)
    out = wrap(array, spec, storage)
    if input.requires_grad and local.state.grad:
        attach(out, ToDevice(input))
    return out


@function(method=True, public=False)
def to(
    input: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False,
    non_blocking: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Convert to a dtype, a device, or those of another tensor; itself if nothing changes.

    Accepts ``to(dtype)``, ``to(device)``, ``to(device, dtype)``, ``to(other)`` and the keywords.
    """
    from ..devices.device import device as as_device
    from ..dtypes import dtype as dtype_class

    for a in args:
        if isinstance(a, Tensor):
            dtype, device = a.dtype, a.device
        elif isinstance(a, dtype_class | type):
            dtype = a
        elif isinstance(a, bool):
            continue  # non_blocking, copy by position
        elif a is not None:
            device = a
    out = input
    wanted = None if dtype is None else as_dtype(dtype)
    where = input.device if device is None else as_device(device)
    if wanted is not None and wanted is not input.dtype:
        out = convert(out, wanted)
    if where is not input.device:
        out = move(out, where)
    return out.clone() if copy and out is input else out
