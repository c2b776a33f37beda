"""Batched tensors: what a function sees of its argument inside ``vmap``.

A :class:`Batched` is a Tensor of one sample's shape. Its values are an ordinary tensor with one
more leading dim for each level of ``vmap`` that it depends on, the outermost first. That tensor
alone has memory and a place in the graph; every op on a Batched is an op on it (``calls.py``), so
the ledger, the graph, regions and estimates see ordinary ops of ordinary tensors.

Its spec is one that no plan of the dispatcher has as a key. So the dispatcher finds no plan, and
only then learns that this is no ordinary call: calls outside of ``vmap`` pay nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import prod
from typing import Any, NoReturn

from .. import execution
from ..autograd.node import Node, attach, edge_to
from ..device import device as device_class
from ..dtypes import dtype as dtype_class
from ..modes import local
from ..spec import Size, Spec
from ..tensor import Tensor, wrap
from .levels import Levels, ordered, sizes

runs: list[Any] = []  # what runs calls of batched tensors; calls.py sets it


class BatchedSpec(Spec):
    """The spec of a batched tensor: one sample's shape. It is not interned, and allocates nothing.

    ``like()`` gives the ordinary spec of the same values.
    """

    __slots__ = ("runs",)

    def __new__(
        cls, shape: Iterable[int], dtype: dtype_class, device: device_class | None = None
    ) -> BatchedSpec:
        """Return a new spec."""
        self = object.__new__(cls)
        self.shape = Size(shape)
        self.dtype = dtype
        self.device = device
        self.ndim = len(self.shape)
        self.numel = prod(self.shape)
        self.nbytes = self.numel * dtype.itemsize
        self.np_dtype = dtype.np
        self.runs = runs[0]
        return self

    @property
    def flat(self) -> Any:  # type: ignore[override]
        """Not supported: memory is of all samples."""
        _no_memory("allocating memory in the shape of one sample")

    block = flat


class Batched(Tensor):
    """A tensor of one sample inside ``vmap``.

    Attributes:
        _value: The values of all samples: the sizes of the levels, then this tensor's shape.
        _levels: The levels that it depends on, the outermost first.
    """

    __slots__ = ("_levels", "_value")

    _value: Tensor
    _levels: Levels

    # The place in the graph is that of the values.
    _array = property(lambda self: Layout(self))
    _storage = property(lambda self: _STORAGE)
    _node = property(lambda self: None)  # edges lead to nodes of values, never to a sample's
    _index = property(lambda self: 0)
    _requires_grad = property(lambda self: self._value._requires_grad)
    _grad = property(lambda self: None)
    _viewed = property(lambda self: None)
    _extra = property(lambda self: self._value._extra)

    @property
    def requires_grad(self) -> bool:
        """True if gradients are computed for this tensor."""
        return self._value.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Not supported inside ``vmap``, as in PyTorch: it would make a leaf of all samples."""
        if local.state.levels and local.state.phase == "backward":  # a rule's own composition
            self._value.requires_grad_(requires_grad)
            return self
        raise RuntimeError(
            "You are attempting to call Tensor.requires_grad_() (or perhaps using "
            "lowtide.autograd.functional APIs) on a tensor inside vmap. Use lowtide.func.grad, "
            "vjp, jacrev or hessian in the function, or call requires_grad_() before vmap."
        )

    @property
    def is_leaf(self) -> bool:
        """True if no recorded op made it."""
        return self._value.is_leaf

    @property
    def grad_fn(self) -> Any:
        """The graph node that made the values of all samples, or None."""
        return self._value.grad_fn

    @property  # type: ignore[misc]
    def grad(self) -> None:
        """None: gradients inside ``vmap`` are results of ``lowtide.func.grad``."""
        return None

    def _refresh(self) -> None:
        self._value._refresh()

    def detach(self) -> Tensor:
        """Return the same values outside the graph."""
        return batched(self._value.detach(), self._levels)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Convert to a dtype, a device, or those of another tensor."""
        value = self._value
        found = value.to(*map(value_of, args), **kwargs)
        return self if found is value else batched(found, self._levels)

    @property  # type: ignore[misc]
    def data(self) -> Tensor:
        """The same values outside the graph."""
        return self.detach()

    @property
    def _version(self) -> int:
        return self._value._version

    @property
    def _base(self) -> Tensor | None:
        return None

    def _is_view(self) -> bool:
        return self._value._viewed is not None

    # Layout: of one sample, inside that of all

    def stride(self, dim: int | None = None) -> Any:
        """The strides of one sample in elements, or the stride of one dimension."""
        strides = self._value.stride()[len(self._levels) :]
        return strides if dim is None else strides[dim]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True if the elements of each sample lie in C order, or in a memory format."""
        if memory_format is not None and memory_format.order is not None:
            return bool(memory_format.describes(self._spec.shape, self.stride()))
        return bool(self._array.flags.c_contiguous)

    # What one sample cannot be asked

    @property
    def array(self) -> Any:
        """Not supported: the array is of all samples."""
        _no_memory(".array")

    def item(self) -> Any:
        """Not supported, like all that makes Python numbers or decisions of values."""
        _no_value(".item()")

    def tolist(self) -> Any:
        """Not supported."""
        _no_value(".tolist()")

    def __bool__(self) -> bool:
        if _asked_by_an_op():
            return _agreed(self._value)
        return _no_value("data-dependent control flow (bool() of a tensor)")

    def __float__(self) -> float:
        _no_value("float()")

    def __int__(self) -> int:
        _no_value("int()")

    def __complex__(self) -> complex:
        _no_value("complex()")

    def __index__(self) -> int:
        _no_value("the use of a tensor as an index of Python's")

    def numpy(self, *, force: bool = False) -> Any:
        """Not supported."""
        _no_memory(".numpy()")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        _no_memory("NumPy")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        _no_memory("DLPack")

    def data_ptr(self) -> int:
        """Not supported."""
        _no_memory(".data_ptr()")

    def storage_offset(self) -> int:
        """Return where the first sample begins in memory, in elements."""
        return self._value.storage_offset()

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Not supported: it would add the gradients of all samples up."""
        raise RuntimeError(
            "backward() inside vmap would accumulate one gradient of all samples into .grad. Use "
            "lowtide.func.grad in the function, or call backward() on what vmap returns."
        )

    def detach_(self) -> Tensor:
        """Not supported: the samples' values may be a view."""
        _no_memory(".detach_()")

    def retain_grad(self) -> None:
        """Not supported: a sample has no ``.grad``."""
        _no_memory(".retain_grad()")

    def register_hook(self, hook: Any) -> Any:
        """Register ``hook(grad)``, called with the gradient of a sample."""
        levels = self._levels

        def on_all(g: Tensor) -> Any:
            found = hook(labeled(g, levels))
            return None if found is None else real(found, levels)

        return self._value.register_hook(on_all)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        _no_memory("pickle")

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __repr__(self) -> str:
        where = ", ".join(f"level {level.depth} of {level.size}" for level in self._levels)
        return f"BatchedTensor(shape={tuple(self.shape)}, {where}, value=\n{self._value!r}\n)"

    __str__ = __repr__


class Layout:
    """What is known of a batched tensor's array: how each sample lies, and no address."""

    __slots__ = ("owner",)

    def __init__(self, owner: Batched) -> None:
        self.owner = owner

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape."""
        return tuple(self.owner._spec.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """One sample's strides in bytes."""
        value = self.owner._value
        return tuple(value._array.strides[len(self.owner._levels) :])

    @property
    def flags(self) -> Any:
        """With ``c_contiguous``: of one sample."""
        value = self.owner._value
        return value._array[(0,) * len(self.owner._levels)].flags if value.numel() else _Flags

    def fill(self, number: Any) -> None:
        """Write a number for all samples: how factories fill."""
        self.owner._value._array.fill(number)

    def min(self) -> Any:
        """The least value of all samples, for checks."""
        return self.owner._value._array.min()

    def max(self) -> Any:
        """The largest value of all samples, for checks."""
        return self.owner._value._array.max()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _no_memory(f"an op that reads memory by itself (.{name} of its array)")


class _Flags:
    c_contiguous = True  # of no elements


class _NoStorage:
    pins = 1  # no one takes the bytes over, or writes them past the op
    version = 1  # nor was it just made

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _no_memory(f"the storage (.{name})")


_STORAGE: Any = _NoStorage()


_OPS = __name__.rpartition(".vmap.")[0] + ".ops."


def _asked_by_an_op() -> bool:
    # A check of arguments, such as that probabilities lie in [0, 1].
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(_OPS)


def _agreed(value: Any) -> bool:
    found = bool(value.any()) if value.numel() else False
    if execution.current.computes and found != bool(value.all()) and value.numel():
        raise RuntimeError(
            "vmap: an op checks its arguments, and what it asks holds for some samples and not for "
            "others: the values of some are invalid, or the op takes another way for them. Call it "
            "on these samples outside vmap to see what it says."
        )
    return found


def _no_value(what: str) -> NoReturn:
    raise RuntimeError(
        f"vmap: It looks like you're calling .item() on a Tensor, or something like it: {what} "
        "needs one value, and inside vmap a tensor has one for each sample. Use lowtide.where in "
        "place of branches, and tensor ops in place of Python's numbers; or do it outside vmap."
    )


def _no_memory(what: str) -> NoReturn:
    raise RuntimeError(
        f"{what} is not possible inside vmap: the memory is of all samples. Return the tensor from "
        "the function, and use it outside vmap."
    )


# Making them


def batched(value: Tensor, levels: Levels) -> Tensor:
    """Make a tensor of one sample; ``value`` itself if there are no levels.

    Args:
        value: Its leading dims are the sizes of ``levels``.
        levels: The outermost first.
    """
    if not levels:
        return value
    self: Batched = object.__new__(Batched)
    spec = value._spec
    self._value, self._levels = value, levels
    self._spec = BatchedSpec(spec.shape[len(levels) :], spec.dtype, spec.device)
    return self


def value_of(t: Any) -> Any:
    """Return the values of all samples; ``t`` itself if it is not batched."""
    return t._value if isinstance(t, Batched) else t


def levels_of(t: Any) -> Levels:
    """Return the levels that a tensor depends on."""
    return t._levels if isinstance(t, Batched) else ()


def labeled(t: Tensor, levels: Levels) -> Tensor:
    """Turn the leading dims of ``t`` into levels; it may be batched at others already."""
    if not levels:
        return t
    own = levels_of(t)
    value = value_of(t)
    if not own:
        return batched(value, levels)
    every = ordered((*own, *levels))
    now = (*own, *levels)
    if now != every:
        rest = range(len(now), value.ndim)
        value = value.permute(*[now.index(level) for level in every], *rest)
    return batched(value, every)


def real(t: Tensor, levels: Levels, expand: bool = True) -> Tensor:
    """Turn levels of ``t`` into leading dims, in their order; other levels stay.

    Args:
        t: A tensor, batched or not.
        levels: Which; the outermost first.
        expand: Repeat a tensor along levels it does not depend on, by stride 0. False gives dims
            of size 1.
    """
    if not levels:
        return t
    own = levels_of(t)
    value = value_of(t)
    kept = tuple([level for level in own if level not in levels])
    moved = [level for level in levels if level in own]
    if kept and moved:
        order = [own.index(level) for level in (*kept, *moved)]
        if order != sorted(order):
            value = value.permute(*order, *range(len(own), value.ndim))
    if len(moved) == len(levels):
        return batched(value, kept)
    lead = len(kept)
    shape = value._spec.shape
    sample = shape[len(own) :]
    ones = [level.size if level in own else 1 for level in levels]
    value = value.view((*shape[:lead], *ones, *sample))
    if expand:
        value = expanded(value, levels, tuple([n for n in levels if n not in own]), lead)
    return batched(value, kept)


class ExpandLevels(Node):
    """The node of a tensor that is repeated along levels it does not depend on.

    Inside the ``vmap`` of a level, the gradients of the samples stay separate: that is what
    ``func.grad`` of an argument that all samples share asks for. Outside they are added up.
    """

    __slots__ = ("edge_specs", "lead", "levels", "missing")

    def __init__(self, value: Tensor, levels: Levels, missing: Levels, lead: int) -> None:
        self.edges = [edge_to(value)]
        self.edge_specs = [value._spec]
        self.levels, self.missing, self.lead = levels, missing, lead
        self._begin()

    def name(self) -> str:
        """Return the name of the node."""
        return "ExpandBackward0"

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Sum over the samples, or keep them apart as a level."""
        (g,) = grads
        return [None if g is None else shared_gradient(g, self.levels, self.missing, self.lead)]


def shared_gradient(g: Tensor, levels: Levels, missing: Levels, lead: int = 0) -> Tensor:
    """Return the gradient of a tensor that does not depend on some levels, with dims of size 1.

    Args:
        g: From dim ``lead`` on its dims are those of all ``levels``.
        levels: The outermost first.
        missing: Those that the tensor does not depend on.
        lead: Dims before them.
    """
    running = local.state.levels
    apart = []
    for k, level in enumerate(levels):
        if level not in missing:
            continue
        d = lead + k
        if level in running:
            apart.append(level)
            g = labeled(g.movedim(d, 0), (level,)).unsqueeze(d)
        else:
            g = g.sum(d, True)
    return g


def expanded(value: Tensor, levels: Levels, missing: Levels, lead: int = 0) -> Tensor:
    """Repeat a tensor along dims of size 1 that stand for levels, without memory."""
    shape = value._spec.shape
    wanted = (*shape[:lead], *sizes(levels), *shape[lead + len(levels) :])
    if not (value.requires_grad and local.state.grad):
        return value.expand(wanted)
    out: Tensor = value.detach().expand(wanted)
    fresh = wrap(out._array, out._spec, out._storage)
    recorder = local.state.recorder
    if recorder is not None:  # a region knows views by their bytes
        fresh._viewed = out._viewed
    attach(fresh, ExpandLevels(value, levels, missing, lead))
    return fresh


def fresh_leaf(t: Tensor) -> Tensor:
    """Return the same values as a new leaf that requires grad."""
    leaf = value_of(t).detach().requires_grad_()
    return batched(leaf, levels_of(t))
