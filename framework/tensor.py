"""Tensor: an array view, its storage, and its place in the autograd graph.

This file knows no op and no graph. Arithmetic, reshaping and indexing are declared in
``framework/ops``, and the registry installs them here as methods; ``autograd/methods.py`` installs
``backward`` and what else the graph gives a tensor.
``tensor.pyi``, generated from all of them, is what editors and type checkers see.
"""

from __future__ import annotations

import warnings
from typing import Any

from . import execution
from .device import device
from .devices import backend
from .dtypes import dtype
from .memory.ledger import GRADIENT, INPUT, SAVED, TEMPORARY
from .memory_format import contiguous_format, layout, memory_format, strided
from .modes import is_inference_mode_enabled, local, value_read
from .spec import Size, Spec

_new = object.__new__
legacy_tensor: Any = None  # what Tensor() calls; set by ops/creation/legacy_types.py


class ViewInfo:
    """The base of a view and how it was made, for in-place writes through either.

    Attributes:
        base: The tensor that owns the storage (never itself a view).
        chain: The last view op from ``base`` to here, linked to the one before it: (link before
            or None, function, attributes, number of links). Views of a view share its links, so a
            chain costs one link a view. The number is negative where a link reads the bytes as
            another dtype.
        version: The storage's version for which the view's ``grad_fn`` holds.
        tracked: False for a view made under ``no_grad``: it has no history to rewrite. For an
            output of an ``autograd.Function``, and views of it, what says so
            (``autograd.view_history.OfFunction``): view ops do not make that history again.
    """

    __slots__ = ("base", "chain", "tracked", "version")

    def __init__(self, base: Tensor, chain: tuple[Any, ...], version: int, tracked: Any) -> None:
        self.base = base
        self.chain = chain
        self.version = version
        self.tracked = tracked


class Tensor:
    """An n-dimensional array with automatic differentiation.

    ``Tensor([1., 2.])`` copies data into the default dtype and ``Tensor(2, 3)`` leaves that shape
    uninitialized, as PyTorch's legacy constructor does; use :func:`lowtide.tensor` in new code.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_array",  # the device's array: numpy.ndarray, cupy.ndarray
        "_extra",  # None, or a dict: hooks, retains_grad, name, inference
        "_grad",
        "_index",  # which output of _node
        "_node",  # the node that made it, or None for a leaf
        "_requires_grad",
        "_spec",
        "_storage",
        "_viewed",  # None, or a ViewInfo
    )
    _is_node = False
    __array_priority__ = 1000  # numpy's operators leave a mixed expression to us

    _array: Any
    _spec: Spec
    _storage: Any
    _node: Any
    _index: int
    _requires_grad: bool
    _grad: Tensor | None
    _viewed: ViewInfo | None
    _extra: dict[Any, Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Construct in PyTorch's legacy way: from data, a tensor, or sizes."""
        return legacy_tensor(cls, *args, **kwargs)

    # What it is

    @property
    def shape(self) -> Size:
        """The shape: the size of each dimension."""
        return self._spec.shape

    @property
    def dtype(self) -> dtype:
        """The data type of the elements."""
        return self._spec.dtype

    @property
    def device(self) -> device:
        """The device that holds the tensor."""
        found = self._spec.device
        assert found is not None
        return found

    @property
    def layout(self) -> layout:
        """The layout: ``lowtide.strided``, but of sparse tensors (``ops/sparse``)."""
        return strided

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._spec.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (a view's own, not its base's)."""
        return self._spec.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._spec.dtype.itemsize

    @property
    def array(self) -> Any:
        """The raw array of the device; autograd does not see writes to it."""
        recorder = local.state.recorder
        if recorder is not None:  # a holder of the array may write what no region sees
            recorder.became_writable(self._storage)
        value_read("array")
        return self._array

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        if dim is None:
            return self._spec.shape
        shape = self._spec.shape
        if not -len(shape) <= dim < max(len(shape), 1):
            raise IndexError(
                f"Dimension out of range: size(dim) needs dim in [{-len(shape)}, "
                f"{len(shape) - 1}] for shape {tuple(shape)}; got {dim}."
            )
        return shape[dim]

    def dim(self) -> int:
        """Number of dimensions."""
        return self._spec.ndim

    ndimension = dim

    def numel(self) -> int:
        """Number of elements."""
        return self._spec.numel

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._spec.dtype.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """The strides in elements, or the stride of one dimension."""
        size = self._spec.dtype.itemsize
        strides = tuple(s // size for s in self._array.strides)
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> int:
        """Offset of the first element in the storage, in elements."""
        first = backend(self.device).address(self._array)
        return int((first - self._storage.address) // self.itemsize)

    def data_ptr(self) -> int:
        """Address of the first element; 0 for an empty tensor or on meta."""
        if self._spec.numel == 0 or self.device.type == "meta":
            return 0
        value_read("data_ptr")
        return int(backend(self.device).address(self._array))

    def is_contiguous(self, memory_format: memory_format = contiguous_format) -> bool:
        """True if the elements are contiguous in C order, or in a memory format."""
        if memory_format.order is not None:
            return memory_format.describes(self._spec.shape, self.stride())
        return bool(self._array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """True for the floating dtypes."""
        return self._spec.dtype.is_floating_point

    def is_complex(self) -> bool:
        """True for the complex dtypes."""
        return self._spec.dtype.is_complex

    def is_signed(self) -> bool:
        """True for the dtypes with negative values."""
        return self._spec.dtype.is_signed

    def is_inference(self) -> bool:
        """True if the tensor was created under ``inference_mode``."""
        return bool(self._extra and self._extra.get("inference"))

    def get_device(self) -> int:
        """The index of the CUDA device; -1 on other devices."""
        return -1 if self.device.index is None else self.device.index

    @property
    def is_cuda(self) -> bool:
        """True on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """True on the CPU."""
        return self.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """True on the meta device, where tensors have no values."""
        return self.device.type == "meta"

    @property
    def is_sparse(self) -> bool:
        """True for a tensor of the COO layout."""
        return False

    @property
    def is_sparse_csr(self) -> bool:
        """True for a tensor of the CSR layout."""
        return False

    @property
    def is_quantized(self) -> bool:
        """False: there are no quantized tensors."""
        return False

    @property
    def is_nested(self) -> bool:
        """False: there are no nested tensors."""
        return False

    # Its place in the graph

    @property
    def requires_grad(self) -> bool:
        """True if gradients are computed for this tensor."""
        self._refresh()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        value = bool(value)
        if self._node is not None and not value:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables; this tensor was made "
                f"by {self._node.name()}. Use .detach() to get one that does not require grad."
            )
        if value and not self._spec.dtype.is_differentiable:
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients; got "
                f"{self._spec.dtype}. Convert with .to(lowtide.float32)."
            )
        if value and self.is_inference() and not is_inference_mode_enabled():
            raise RuntimeError(
                "Setting requires_grad=True on an inference tensor outside inference_mode is "
                "not allowed. Clone it first."
            )
        self._requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set ``requires_grad`` and return the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """True if no recorded op made it; backward accumulates into the ``.grad`` of leaves."""
        self._refresh()
        return self._node is None or not self._requires_grad

    @property
    def grad_fn(self) -> Any:
        """The graph node that made it, or None."""
        self._refresh()
        return self._node if self._requires_grad else None

    @property
    def output_nr(self) -> int:
        """The output index of ``grad_fn`` that it is."""
        return self._index

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, or None."""
        if self._grad is None and self._node is not None and not self.retains_grad:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its "
                ".grad attribute won't be populated during autograd.backward(). If you want it, "
                "call .retain_grad() on the non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad must be a Tensor or None; got {type(value).__name__}.")
            sparse = value._spec.runs is not None and value._spec.like() is self._spec
            if value._spec is not self._spec and not sparse:
                raise RuntimeError(
                    f"grad must have its tensor's shape, dtype and device: {self._spec}; got "
                    f"{value._spec}."
                )
            if value._storage.role in (TEMPORARY, SAVED, INPUT):
                value._storage.set_role(GRADIENT)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def retains_grad(self) -> bool:
        """True if it is a non-leaf and ``retain_grad`` was called."""
        return bool(self._extra and self._extra.get("retains_grad"))

    @property
    def data(self) -> Tensor:
        """The same values outside the graph and under a separate version.

        Writes through it are not counted by a graph that kept the values: its gradients are then
        those of the new values, and backward warns of it, once for each line that writes.
        ``detach()`` shares the version, and such writes are errors.
        Inside a checkpointed region, whose replay must know of every write, ``data`` is
        ``detach()``.
        """
        t: Tensor = self.detach()  # type: ignore[attr-defined]
        if local.state.recorder is None and t.__class__ is Tensor:
            t._storage, t._viewed = self._storage.alias(), None
        return t

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"data must be a Tensor; got {type(value).__name__}.")
        if self._requires_grad and not value.dtype.is_differentiable:
            raise RuntimeError(
                "data set to a tensor that requires gradients must be floating point or complex; "
                f"got {value.dtype}."
            )
        if value.layout is not strided:
            raise RuntimeError(
                f"data of a strided tensor cannot be one of layout {value.layout}. Use .to_dense()."
            )
        role = self._storage.role
        if role == SAVED:  # of a graph that holds the old bytes, not of this tensor
            role = TEMPORARY
        self._array, self._spec, self._storage = value._array, value._spec, value._storage.root
        self._storage.set_role(role)
        self._viewed = None

    @property
    def _version(self) -> int:
        """The number of in-place writes to the storage."""
        return int(self._storage.version)

    @property
    def _base(self) -> Tensor | None:
        """The base tensor of this view, or None."""
        return self._viewed.base if self._viewed is not None else None

    def _is_view(self) -> bool:
        return self._viewed is not None

    @property
    def name(self) -> str | None:
        """A name for messages and graphs, or None."""
        return self._extra.get("name") if self._extra else None

    # What Python asks of a value

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        if self._spec.ndim == 0:
            raise TypeError("len() of a 0-d tensor. Use .numel(), which is 1, or .item().")
        return self._spec.shape[0]  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        if self._spec.numel != 1:
            raise RuntimeError(
                "Boolean value of Tensor with "
                + ("no values" if self._spec.numel == 0 else "more than one value")
                + " is ambiguous. Use .any(), .all() or a comparison of one element."
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._only())

    def __int__(self) -> int:
        return int(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def _only(self) -> Any:
        if self._spec.numel != 1:
            raise ValueError(
                "only one element tensors can be converted to Python scalars; got shape "
                f"{tuple(self._spec.shape)}. Use .tolist()."
            )
        return self.item()

    def __index__(self) -> int:
        if self._spec.dtype.category > 1 or self._spec.numel != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        if self._spec.numel != 1:
            raise RuntimeError(
                f"a Tensor with {self._spec.numel} elements cannot be converted to Scalar. "
                "Use .tolist()."
            )
        if not execution.current.computes:
            found = execution.current.read(self, "item")
            if found is not execution.READ:
                return found
        self._need_values("item")
        return backend(self.device).item(self._array)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars; a scalar for a 0-d tensor."""
        if not execution.current.computes:
            found = execution.current.read(self, "tolist")
            if found is not execution.READ:
                return found
        self._need_values("tolist")
        return backend(self.device).to_host(self._array).tolist()

    def _need_values(self, what: str) -> None:
        if self._spec.device.type == "meta" and execution.current.computes:  # type: ignore[union-attr]
            raise NotImplementedError(
                f"{what} needs values, and tensors on meta have none: Cannot copy out of meta "
                "tensor; no data! Run on cpu or cuda."
            )

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())  # type: ignore[attr-defined]

    def __dir__(self) -> list[str]:
        return sorted(set(object.__dir__(self)))


def wrap(array: Any, spec: Spec, storage: Any) -> Tensor:
    """Make a Tensor from an array, spec and storage, outside of any graph."""
    t: Tensor = _new(Tensor)
    t._array = array
    t._spec = spec
    t._storage = storage
    t._node = None
    t._index = 0
    t._requires_grad = False
    t._grad = None
    t._viewed = None
    t._extra = None
    return t


_SLOTS = tuple(s for s in Tensor.__slots__ if not s.startswith("__"))


def instance(cls: type, t: Tensor, requires_grad: bool, attributes: dict[str, Any]) -> Tensor:
    """Make ``t`` an instance of a subclass without calling its constructor."""
    out: Tensor = t
    if cls is not Tensor:
        if t.layout is not strided:
            raise TypeError(
                f"a {cls.__name__} of layout {t.layout} is not supported. Make one of its values, "
                "and the sparse tensor of that, or use .to_dense()."
            )
        out = object.__new__(cls)
        for slot in _SLOTS:
            setattr(out, slot, getattr(t, slot))
    out._requires_grad = requires_grad
    out.__dict__.update(attributes)
    return out


def install_method(name: str, value: Any) -> None:
    """Make a function or a property part of Tensor: how layers above give it what they know.

    Raises:
        TypeError: Tensor has one of that name.
    """
    if name in Tensor.__dict__ and name not in ("__eq__", "__hash__"):
        raise TypeError(f"Tensor.{name} is defined twice.")
    named(value.fget if isinstance(value, property) else value, name, "Tensor.")
    setattr(Tensor, name, value)


def named(function: Any, name: str, owner: str = "") -> None:
    """Give a function that another function made the name by which users know it.

    Python's own errors, ``repr`` and profilers show it.
    """
    if "<" in getattr(function, "__qualname__", ""):
        function.__name__, function.__qualname__ = name, f"{owner}{name}"
