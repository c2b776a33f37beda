"""Sparse tensors: where some elements are, and their values; all others are zero.

A :class:`SparseTensor` is a Tensor without an array. It holds ordinary tensors: its indices (one
tensor in the COO layout, two in a compressed one) and its values. These alone have memory and a
place in the graph, so the ledger, the graph, regions and estimates see ordinary ops of ordinary
tensors; the gradient of a sparse tensor is that of its values, in the same places.

Its spec is one that no plan of the dispatcher has as a key. So the dispatcher finds no plan, and
only then learns that this is no ordinary call (``calls.py``): dense calls pay nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from ...dtypes import dtype as dtype_class
from ...dtypes import int64
from ...memory.ledger import TEMPORARY
from ...memory_format import layout as layout_class
from ...memory_format import sparse_coo
from ...modes import no_grad
from ...spec import Size, Spec
from ...tensor import Tensor, wrap
from ..creation.fill import zeros

_interned: WeakValueDictionary[Any, SparseSpec] = WeakValueDictionary()


class SparseSpec(Spec):
    """The spec of a sparse tensor: the shape with its zeros. It allocates nothing.

    ``like()`` gives the ordinary spec of the same shape.

    Attributes:
        layout: Which sparse layout.
    """

    __slots__ = ("layout",)
    layout: layout_class

    def __new__(
        cls, shape: Iterable[int], dtype: dtype_class, device: Any, layout: layout_class
    ) -> SparseSpec:
        """Return the unique spec of these values."""
        key = (tuple(shape), dtype, device, layout)
        self = _interned.get(key)
        if self is None:
            self = object.__new__(cls)
            self.shape = Size(key[0])
            self.dtype, self.device, self.layout = dtype, device, layout
            self.ndim = len(key[0])
            self.numel = prod(key[0])
            self.nbytes = self.numel * dtype.itemsize
            self.np_dtype = dtype.np
            self = _interned.setdefault(key, self)
        return self

    @property
    def flat(self) -> Any:  # type: ignore[override]
        """Not supported: memory is of indices and values."""
        refuse_memory("allocating memory in this shape")

    block = flat

    def __repr__(self) -> str:
        return f"{Spec.__repr__(self)[:-1]}, {self.layout.name})"

    def __reduce__(self) -> Any:
        return SparseSpec, (tuple(self.shape), self.dtype, self.device, self.layout)


class SparseTensor(Tensor):
    """A tensor of which only some elements are stored.

    Attributes:
        _indexing: The index tensors: (indices,), or (compressed, plain).
        _value: The values, (nnz, *dense sizes).
        _coalesced: COO: the indices are sorted, and none comes twice. Compressed: True.
    """

    __slots__ = ("_coalesced", "_indexing", "_value")

    _indexing: tuple[Tensor, ...]
    _value: Tensor
    _coalesced: bool

    # The place in the graph is that of the values.
    _array = property(lambda self: NoArray())
    _storage = property(lambda self: Parts(self))
    _node = property(lambda self: None)
    _index = property(lambda self: 0)
    _requires_grad = property(lambda self: self._value._requires_grad)
    _grad = property(lambda self: self._gradient(), lambda self, g: self._set_gradient(g))
    _viewed = property(lambda self: None)
    _extra = property(lambda self: self._value._extra)

    def _with(self, values: Tensor, coalesced: bool | None = None) -> SparseTensor:
        # The same places with other values.
        return assembled(
            self._spec.shape,
            self._indexing,
            values,
            self.layout,
            self._coalesced if coalesced is None else coalesced,
        )

    @property
    def layout(self) -> layout_class:
        """The layout: ``lowtide.sparse_coo``, ``sparse_csr`` or ``sparse_csc``."""
        return self._spec.layout  # type: ignore[attr-defined]

    @property
    def is_sparse(self) -> bool:
        """True in the COO layout, as in PyTorch; see ``layout``."""
        return self.layout is sparse_coo

    @property
    def is_sparse_csr(self) -> bool:
        """True in the CSR layout."""
        return self.layout.name == "sparse_csr"

    @property
    def nbytes(self) -> int:
        """Bytes of the indices and values."""
        return sum(part.nbytes for part in (*self._indexing, self._value))

    # The graph

    @property
    def requires_grad(self) -> bool:
        """True if gradients are computed for its values."""
        return self._value.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._value.requires_grad = value

    @property
    def is_leaf(self) -> bool:
        """True if no recorded op made its values."""
        return self._value.is_leaf

    @property
    def grad_fn(self) -> Any:
        """The graph node that made its values, or None."""
        return self._value.grad_fn

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, sparse, in the places of this tensor; or None."""
        return self._gradient()

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._set_gradient(value)

    @grad.deleter
    def grad(self) -> None:
        self._value.grad = None

    def _gradient(self) -> Any:
        g = self._value.grad
        return None if g is None else self._with(g)

    def _set_gradient(self, value: Any) -> None:
        if value is None:
            self._value.grad = None
        elif isinstance(value, SparseTensor) and value._spec is self._spec:
            self._value.grad = value._value
        else:
            raise RuntimeError(
                f"grad must have its tensor's shape, dtype, device and layout: {self._spec}; got "
                f"{getattr(value, '_spec', type(value).__name__)}."
            )

    @property
    def data(self) -> Tensor:
        """The same values outside the graph."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, SparseTensor) or value.layout is not self.layout:
            raise RuntimeError(
                f"data of a {self.layout.name} tensor needs one of its layout; got "
                f"{getattr(value, 'layout', type(value).__name__)}."
            )
        self._spec, self._indexing = value._spec, value._indexing
        self._coalesced = value._coalesced
        self._value.data = value._value

    @property
    def _version(self) -> int:
        return self._value._version

    @property
    def _base(self) -> Tensor | None:
        return None

    def _is_view(self) -> bool:
        return False

    def _refresh(self) -> None:
        self._value._refresh()

    def detach(self) -> SparseTensor:
        """Return the same indices and values outside the graph."""
        return self._with(self._value.detach())

    def detach_(self) -> SparseTensor:
        """Detach the values from the graph in place."""
        self._value = self._value.detach()
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of the values of this non-leaf tensor in ``.grad``."""
        self._value.retain_grad()

    def register_hook(self, hook: Any) -> Any:
        """Register ``hook(grad)``, called with the sparse gradient; it may return another."""

        def on_values(g: Tensor) -> Any:
            found = hook(self._with(g))
            return found._value if isinstance(found, SparseTensor) else found

        return self._value.register_hook(on_values)

    def clone(self, memory_format: Any = None, *, out: Any = None) -> SparseTensor:
        """Copy indices and values."""
        return assembled(
            self._spec.shape,
            tuple(part.clone() for part in self._indexing),
            self._value.clone(),
            self.layout,
            self._coalesced,
        )

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """Convert the values to a dtype, and all parts to a device; itself if nothing changes."""
        args = tuple(a._value if isinstance(a, SparseTensor) else a for a in args)
        values = self._value.to(*args, **kwargs)
        if values is self._value:
            return self
        indexing = tuple(part.to(values.device) for part in self._indexing)
        return assembled(self._spec.shape, indexing, values, self.layout, self._coalesced)

    def emptied(self, dtype: Any, device: Any, requires_grad: bool) -> SparseTensor:
        """Return a tensor of this shape and layout in which nothing is stored."""
        where = device or self.device
        held = self._value
        values = zeros(
            (0, *held.shape[1:]),
            dtype=dtype or held.dtype,
            device=where,
            requires_grad=requires_grad,
        )
        first = self._indexing[0]
        if self.layout is sparse_coo:
            indexing = (zeros((first.shape[0], 0), dtype=int64, device=where),)
        else:
            kind = first.dtype
            lines = zeros(first.shape, dtype=kind, device=where)
            indexing = (lines, zeros((0,), dtype=kind, device=where))  # type: ignore[assignment]
        return assembled(self._spec.shape, indexing, values, self.layout)

    def taken_over(self, alone: bool) -> SparseTensor:
        """Return the same outside the graph, in memory that no one else sees.

        Args:
            alone: No one else holds this tensor: parts that no one else sees are not copied.
        """
        found = [
            plain(part.detach()) if alone and seen == _alone() else part.detach().clone()
            for part, seen in zip(
                (*self._indexing, self._value),
                [_holders(self, k) for k in range(len(self._indexing) + 1)],
                strict=True,
            )
        ]
        *indexing, values = found
        return assembled(self._spec.shape, tuple(indexing), values, self.layout, self._coalesced)

    def saved(self, save: Any) -> SavedSparse:
        """Return a handle that keeps the parts for backward, each as ``save`` keeps it."""
        return SavedSparse(self, save)

    # What has no array cannot be asked

    @property
    def array(self) -> Any:
        """Not supported: there is no array with the zeros."""
        refuse_memory(".array")

    def stride(self, dim: int | None = None) -> Any:
        """Zeros, as in PyTorch: the elements do not lie at strides."""
        return (0,) * self.ndim if dim is None else 0

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """False."""
        return False

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar. Use "
                ".to_dense().tolist()."
            )
        return self.to_dense().item()

    def tolist(self) -> Any:
        """Not supported."""
        refuse_memory(".tolist()")

    def numpy(self, *, force: bool = False) -> Any:
        """Not supported: NumPy has no sparse arrays.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"can't convert {self.layout.name} layout tensor to numpy. Use .to_dense() first, or "
            "SciPy with .indices() and .values()."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        self.numpy()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        refuse_memory("DLPack")

    def data_ptr(self) -> int:
        """Not supported."""
        refuse_memory(".data_ptr()")

    def storage_offset(self) -> int:
        """Not supported."""
        refuse_memory(".storage_offset()")

    def untyped_storage(self) -> Any:
        """Not supported: there is one for each part.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"Cannot access storage of a {self.layout.name} tensor. Take that of .indices() or "
            ".values()."
        )

    storage = untyped_storage

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        refuse_memory(".set_()")

    def __copy__(self) -> SparseTensor:
        return self.detach().requires_grad_(self.requires_grad)  # type: ignore[return-value]

    def __deepcopy__(self, memo: Any) -> SparseTensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment. Use .detach() first."
            )
        out = self.detach().clone()
        if self.requires_grad:
            out.requires_grad_()
        memo[id(self)] = out
        out.__dict__.update(deepcopy(self.__dict__, memo))
        if self._grad is not None:
            out._grad = deepcopy(self._grad, memo)
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (
            tuple(self._spec.shape),
            tuple(part.detach() for part in self._indexing),
            self._value.detach(),
            self.layout,
            self._coalesced,
            self.requires_grad,
        )

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        names = {"sparse_coo": ("indices",), "sparse_csr": ("crow_indices", "col_indices")}
        shown = [
            (name, part)
            for name, part in zip(
                names.get(self.layout.name, ("ccol_indices", "row_indices")),
                self._indexing,
                strict=True,
            )
        ]
        lines = [_part(name, part) for name, part in (*shown, ("values", self._value.detach()))]
        about = f"size={tuple(self.shape)}, nnz={self._value.shape[0]}"
        end = f"layout={self.layout}"
        if self.device.type != "cpu":
            about += f", device='{self.device}'"
        if self.dtype.name not in ("float32", "int64", "bool", "complex64"):
            about += f", dtype={self.dtype}"
        if self.grad_fn is not None:
            end += f",\n       grad_fn=<{self.grad_fn.name()}>"
        elif self.requires_grad:
            end += ", requires_grad=True"
        if self.layout is sparse_coo:
            lines.append(f"{about}, {end}")
        else:
            lines[-1] += f", {about}"
            lines.append(end)
        return "tensor(" + ",\n       ".join(lines) + ")"

    __str__ = __repr__


def _part(name: str, part: Tensor) -> str:
    if not part.numel():
        return f"{name}=tensor([], size={tuple(part.shape)})"
    text = repr(part)
    for more in (f", dtype={part.dtype}", f", device='{part.device}'"):
        text = text.replace(more, "")
    return f"{name}={text}".replace("\n", "\n" + " " * (8 + len(name)))


class SavedSparse:
    """A handle of a sparse tensor that a ``Function`` saved: handles of its parts."""

    def __init__(self, of: SparseTensor, save: Any) -> None:
        self._parts = [save(part, None, 0) for part in (*of._indexing, of._value)]
        self.spec = of._spec
        self._coalesced = of._coalesced

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self._parts)

    @property
    def held_bytes(self) -> int:
        """Bytes of storage that the parts keep alive."""
        return sum(part.held_bytes for part in self._parts)

    def unpack(self, node: Any, label: str) -> Tensor:
        """Return the tensor; raises if a part was modified in place since."""
        *indexing, values = [part.unpack(node, label) for part in self._parts]
        layout = self.spec.layout  # type: ignore[attr-defined]
        return assembled(self.spec.shape, tuple(indexing), values, layout, self._coalesced)


class NoArray:
    """What stands for the array that a sparse tensor has not: each use of it is refused."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse_memory(f"an op that reads memory by itself (.{name} of its array)")

    def __getitem__(self, index: Any) -> NoReturn:
        refuse_memory("an op that reads memory by itself")


class Parts:
    """The storages of a sparse tensor, as one: version and role are those of its values."""

    __slots__ = ("of",)
    pins = 1  # no one takes the bytes over, or writes them past the op

    def __init__(self, of: SparseTensor) -> None:
        self.of = of

    @property
    def version(self) -> int:
        """The number of in-place writes to the values."""
        return self.of._version

    @version.setter
    def version(self, value: int) -> None:
        refuse_memory("a write past the op, or the exchange of memory,")

    @property
    def role(self) -> int:
        """The role of the values."""
        return int(self.of._value._storage.role)

    @property
    def root(self) -> Any:
        """The storage behind the values, which an alias of them shares."""
        return self.of._value._storage.root

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.of.nbytes

    def set_role(self, role: int) -> None:
        """Set the role of all parts; indices that are a temporary's no more keep theirs."""
        values, *indices = self.of._value, *self.of._indexing
        values._storage.set_role(role)
        for part in indices:
            if part._storage.role == TEMPORARY:
                part._storage.set_role(role)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse_memory(f"an op that asks for the storage (.{name})")


def refuse_memory(what: str) -> NoReturn:
    """Raise the error of what a sparse tensor has no memory for."""
    raise RuntimeError(
        f"{what} is not possible for a sparse tensor, whose memory is that of its indices and "
        "values. Use .to_dense(), or .indices() and .values()."
    )


def assembled(
    shape: Sequence[int],
    indexing: tuple[Tensor, ...],
    values: Tensor,
    layout: layout_class = sparse_coo,
    coalesced: bool = True,
) -> SparseTensor:
    """Make a sparse tensor of parts that are known to fit together.

    Args:
        shape: With the zeros.
        indexing: (indices,) of (sparse dims, nnz), or (compressed, plain).
        values: (nnz, *dense sizes).
        layout: Which.
        coalesced: COO: the indices are sorted and distinct.
    """
    self: SparseTensor = object.__new__(SparseTensor)
    self._indexing, self._value, self._coalesced = indexing, values, coalesced
    self._spec = SparseSpec(shape, values.dtype, values.device, layout)
    return self


def _rebuilt(
    shape: Any, indexing: Any, values: Any, layout: Any, coalesced: bool, requires_grad: bool
) -> SparseTensor:
    return assembled(shape, indexing, values.requires_grad_(requires_grad), layout, coalesced)


def _holders(s: SparseTensor, k: int) -> Any:
    # Who refers to a part's bytes: its tensor, its array and its storage; None if it is but a piece
    # of memory, or of someone else's.
    part = s._indexing[k] if k < len(s._indexing) else s._value
    storage = part._storage
    if (
        part._viewed is not None
        or part._requires_grad
        or storage.pins
        or storage.ledger is None
        or storage.nbytes != part._spec.nbytes
        or not part._array.flags.c_contiguous
    ):
        return None
    return sys.getrefcount(part), sys.getrefcount(part._array), sys.getrefcount(storage)


_counts: list[Any] = []


def _alone() -> Any:
    # The same of parts that only a sparse tensor refers to. Interpreters count differently, so it
    # is asked of a sample; when first needed, for a sample takes memory.
    if not _counts:
        with no_grad():
            pair = assembled((2,), (zeros((1, 2), dtype=int64),), zeros(2))
        _counts.append(_holders(pair, 0))
    return _counts[0]


def plain(t: Tensor) -> Tensor:
    """Return ``t`` without its history as a view, so that it keeps no base alive."""
    return t if t._requires_grad or t._viewed is None else wrap(t._array, t._spec, t._storage)


def layout_name(t: Tensor) -> str:
    """Return the name of a layout as PyTorch's messages have it."""
    if not isinstance(t, SparseTensor):
        return "Strided"
    return {"sparse_coo": "Sparse", "sparse_csr": "SparseCsr", "sparse_csc": "SparseCsc"}[
        t.layout.name
    ]
