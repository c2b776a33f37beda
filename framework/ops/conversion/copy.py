"""Copies: clone, convert, move between devices, fill, copy_."""

from __future__ import annotations

from typing import Any

from ...autograd.node import Node, attach, edge_to
from ...autograd.view_history import check_writable
from ...device import device
from ...device import device as as_device
from ...devices import backend
from ...dtypes import BY_NUMPY, COMPLEX, as_dtype, complex128, float64
from ...dtypes import dtype as dtype_class
from ...kernels.common import copy as copies
from ...kernels.common.float8 import LARGEST, saturated_copy, saturates
from ...kernels.common.shared_ufuncs import is_numpy
from ...kernels.cuda import float8 as float8_on_gpu
from ...kernels.runtime import thresholds
from ...memory.ledger import SAVED, TEMPORARY
from ...modes import local
from ...spec import ScalarSpec, Spec
from ...tensor import Tensor, wrap
from ..creation.factory import fitted, new, size_of
from ..registry import function, op
from ..signatures import broadcast_shapes, same, singles


def cast_into(xp, out, source) -> None:
    """Copy with dtype conversion, as PyTorch converts, without overflow warnings.

    A complex number becomes its real part. An integer or half out of a float too large for it is
    what the machine makes of it.
    """
    if out.dtype.kind != "c":
        source = source.real  # also of a Python scalar
        if isinstance(source, int | float):
            source = fitted(source, BY_NUMPY[out.dtype])
    kind = getattr(source, "dtype", None)
    if kind is not None and saturates(out.dtype, kind):  # a number was checked by fitted
        if is_numpy(xp):
            saturated_copy(out, source)
            return
        source = xp.clip(source.astype("float32"), -LARGEST, LARGEST)
    xp.copyto(out, source, casting="unsafe")


def worth_moving(*specs, **_) -> bool:
    """True for tensors so large that ``kernels/common/copy.py`` has something better than NumPy."""
    return all(isinstance(s, Spec) for s in specs) and specs[0].numel >= thresholds.COMPILED_MOVE


@op(infer=same, half="exact", samples=singles)
def clone(xp, out, input, *, memory_format=None):
    """Copy the tensor; gradients pass through."""
    xp.copyto(out, input)


@clone.kernel("cpu", when=worth_moving)
def _(xp, out, input, *, memory_format):
    copies.copy(out, input)


@clone.kernel("cuda", when=float8_on_gpu.is_float8)
def _(xp, out, input, *, memory_format):
    float8_on_gpu.convert(xp, out, input)


@clone.vjp("input")
def _(g):
    return g


def _convert_samples(make):
    for dtype in (float64, complex128):
        for shape in ((3, 4), (), (0, 3)):
            yield (make(*shape),), {"dtype": dtype}


@op(
    half="exact",
    samples=_convert_samples,
    infer=lambda input, *, dtype: input.like(dtype=dtype),
)
def _convert(xp, out, input, *, dtype):
    """Convert to another dtype."""
    cast_into(xp, out, input)


@_convert.kernel("cpu", when=worth_moving)
def _(xp, out, input, *, dtype):
    copies.copy(out, input if out.dtype.kind == "c" else input.real)


@_convert.kernel("cuda", when=float8_on_gpu.is_float8)
def _(xp, out, input, *, dtype):
    float8_on_gpu.convert(xp, out, input)


@_convert.vjp("input")
def _(g):
    return g  # the engine converts it back to the input's dtype


def zero_gradient(g, spec):
    """Return a zero gradient, expanded from one element, for an input without effect."""
    return g.new_zeros(()).expand(spec.shape)


def _copy_infer(input, src):
    if broadcast_shapes("copy_", input.shape, src.shape) != tuple(input.shape):
        raise RuntimeError(
            f"copy_ writes src into input, so src must broadcast to its shape; got input "
            f"{tuple(input.shape)} and src {tuple(src.shape)}."
        )
    return input


def _copy_samples(make):
    for target, source in (((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 3), ()), ((0, 3), (1, 3))):
        yield (make(*target), make(*source)), {}
    yield (make(2, 2), 1.5), {}


@op(
    inplace="_copy_",
    infer=_copy_infer,
    half="exact",
    samples=_copy_samples,
    one_write=True,
)
def _copy(xp, out, input, src):
    """Return the values of ``src`` in the shape and dtype of ``input``."""
    cast_into(xp, out, src)


@_copy.kernel("cpu", when=worth_moving)
def _(xp, out, input, src):
    copies.copy(out, src if out.dtype.kind == "c" else src.real)


@_copy.kernel("cuda", when=float8_on_gpu.is_float8)
def _(xp, out, input, src):
    float8_on_gpu.convert(xp, out, src)


@_copy.vjp("input")
def _(g, input_spec):
    return zero_gradient(g, input_spec)  # nothing of the old value is left


@_copy.vjp("src")
def _(g, src_spec):
    return g.real if g.is_complex() and src_spec.dtype.category < COMPLEX else g


@function(method=True, public=False)
def copy_(input: Tensor, other: Any, non_blocking: bool = False) -> Tensor:
    """Copy the values of ``other`` into this tensor, broadcast and converted."""
    if other is input:
        check_writable(input, "copy_")
        return input
    if isinstance(other, Tensor) and other.device is not input.device:
        other = other.to(input.device)
    return input._copy_(other)


def _fill_infer(input, value):
    if value.ndim:
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{value.ndim} dimensions. Use copy_."
        )
    if isinstance(value, ScalarSpec) and value.category == COMPLEX > input.dtype.category:
        raise RuntimeError(
            f"fill_: value cannot be converted to type {input.dtype.name} without overflow: it is "
            "complex. Pass its real part."
        )
    return input


def _fill_samples(make):
    yield (make(3, 4), make()), {}
    yield (make(3, 4), 1.5), {}
    yield (make(), 2), {}
    yield (make(0, 2), make()), {}


@op(
    inplace="fill_",
    infer=_fill_infer,
    half="exact",
    samples=_fill_samples,
    one_write=True,
)
def _fill(xp, out, input, value):
    """Return a tensor of one value in the shape and dtype of ``input``."""
    cast_into(xp, out, value)


@_fill.kernel("cuda", when=float8_on_gpu.is_float8)
def _(xp, out, input, value):
    if isinstance(value, int | float):
        value = fitted(value, BY_NUMPY[out.dtype])
    float8_on_gpu.convert(xp, out, value)


@_fill.vjp("input")
def _(g, input_spec):
    return zero_gradient(g, input_spec)


@_fill.vjp("value")
def _(g):
    return g.sum()


@function()
def fill(input: Tensor, value: Any) -> Tensor:
    """Return a tensor of one value in the shape and dtype of another."""
    return _fill(input, value)


@function(method=True)
def zero_(input: Tensor) -> Tensor:
    """Fill this tensor with zeros."""
    return input.fill_(0)


@function(method=True)
def detach(input: Tensor) -> Tensor:
    """Return the same values outside the graph, sharing memory and version."""
    if input._spec.runs is not None and type(input) is not Tensor:
        return input.detach()  # a class of its own
    out = wrap(input._array, input._spec, input._storage)
    if input._extra is not None and "inference" in input._extra:
        out._extra = {"inference": True}
    return out


@function(method=True)
def detach_(input: Tensor) -> Tensor:
    """Detach this tensor from the graph in place.

    Raises:
        RuntimeError: It is a view.
    """
    if input._viewed is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    input._node, input._index, input._requires_grad = None, 0, False
    return input


@function(method=True, public=False)
def resize_(input: Tensor, *size: Any, memory_format: Any = None, **named: Any) -> Tensor:
    """Resize this tensor, keeping as many of its first elements as fit.

    It keeps its memory if that is large enough, else takes new memory, whose rest is
    uninitialized.

    Raises:
        RuntimeError: It requires grad.
    """
    shape = size_of("resize_", size, named)
    if input.requires_grad:
        raise RuntimeError(
            "cannot resize variables that require grad. Resize .detach(), or make a new tensor."
        )
    check_writable(input, "resize_")
    spec = input._spec.like(shape)
    if spec is input._spec:
        return input
    be = backend(input.device)
    if spec.numel <= input.numel() and input.is_contiguous():
        input._array = input._array.reshape(-1)[: spec.numel].reshape(shape)
    else:
        role = input._storage.role
        fresh = new(spec, TEMPORARY if role == SAVED else role)
        if be.xp is not None:
            kept = min(spec.numel, input.numel())
            flat = input._array.reshape(-1)
            be.copy(fresh._array.reshape(-1)[:kept], flat[:kept])
        input._array, input._storage, input._viewed = fresh._array, fresh._storage, None
    input._spec = spec
    return input


@function(method=True)
def resize_as_(input: Tensor, the_template: Tensor, memory_format: Any = None) -> Tensor:
    """Resize this tensor to the shape of another."""
    return resize_(input, tuple(the_template.shape))


class ToDevice(Node):
    """The node of a copy between devices."""

    __slots__ = ("edge_specs",)

    def __init__(self, input: Tensor) -> None:
        self.edges = [edge_to(input)]
        self.edge_specs = [input._spec]
        self._begin()

    def name(self) -> str:
        """Return PyTorch's name of the node."""
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
        if source.xp is None:
            raise NotImplementedError(
                f"to({str(where)!r}) needs values, and tensors on meta have none: Cannot copy out "
                "of meta tensor; no data! Use lowtide.empty_like(tensor, device=...)."
            )
        storage, array = target.from_host(source.to_host(input._array), spec, 0)
    out = wrap(array, spec, storage)
    if input.requires_grad and local.state.grad:
        attach(out, ToDevice(input))
    elif local.state.inference:
        out._extra = {"inference": True}
    if local.state.recorder is not None:
        local.state.recorder.moved(input, out)
    return out


@function(method=True, public=False)
def to(
    input: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    copy: bool = False,
    non_blocking: bool = False,
    memory_format: Any = None,
    other: Tensor | None = None,
) -> Tensor:
    """Convert to a dtype, a device, or those of another tensor; returns itself if nothing changes.

    Accepts ``to(dtype)``, ``to(device)``, ``to(device, dtype)``, ``to(other)`` and the keywords.
    """
    flags = []
    if other is not None:
        args = (other, *args)
    for a in args:
        if isinstance(a, Tensor):
            dtype, device = a.dtype, a.device
        elif isinstance(a, dtype_class | type):
            dtype = a
        elif isinstance(a, bool):
            flags.append(a)  # non_blocking, then copy
        elif a is not None:
            device = a
    if len(flags) > 1:
        copy = flags[1]
    out = input
    wanted = None if dtype is None else as_dtype(dtype)
    where = input.device if device is None else as_device(device)
    if where is not input.device and wanted is not None and wanted.itemsize > input.dtype.itemsize:
        out = move(out, where)  # the smaller type travels
    if wanted is not None and wanted is not input.dtype:
        out = _convert(out, wanted)
    if where is not out.device:
        out = move(out, where)
    return out.clone() if copy and out is input else out
