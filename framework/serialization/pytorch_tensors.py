"""What the pickle in a PyTorch file says of tensors: storages, views, and all that belongs to them.

Every argument of a call that rebuilds a tensor is applied or refused, never passed over: conj and
neg bits, ``requires_grad``, backward hooks, attributes of parameters, layouts. PyTorch keeps
``x.conj()`` as the memory of ``x`` and a bit; here memory holds the values themselves, so the
storage is conjugated once and the tensors with that bit are views of the result.

Not optimal: ``x`` and ``x.conj()`` of one file share no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import BOOL, BY_NAME, COMPLEX, dtype, uint8
from ..memory.ledger import INPUT
from ..memory_format import layout, strided
from ..spec import Spec
from ..tensor import Tensor, wrap
from .atomic_files import Source
from .json_structure import with_class
from .map_location import CPU, META, Placement, read_tensor
from .pickled_values import GLOBALS, LARGEST, PLAIN_CALLS, hint_for, integers, listed
from .safe_unpickle import Function, short_repr
from .size_budget import TENSOR, Budget, UnsafeContentError
from .sparse_parts import rebuilt

MOST_DIMS = 64
LONGEST_NAME = 1000  # letters of a storage's key or location
LARGEST_TENSOR = 1 << 45  # bytes, and sizes
_REBUILDS = (  # calls that a call for a tensor's attributes may wrap
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_parameter",
    "_rebuild_sparse_tensor",
    "_rebuild_meta_tensor_no_storage",
)
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",  # bytes of newer types, which the tensor names
}
DTYPES = {t.name for t in BY_NAME.values()}


class Extent(NamedTuple):
    """The byte range of a storage in the file, and its checksum if there is one."""

    offset: int
    nbytes: int
    crc: int | None


class StorageRef(NamedTuple):
    """A reference from a pickle to a storage."""

    key: str
    dtype: dtype
    location: str
    elements: int


class Bits(NamedTuple):
    """What a tensor's values are of its storage's: conjugated, negated."""

    conj: bool = False
    neg: bool = False


class StorageScanner:
    """Collects the storages that an object refers to, without building anything.

    Attributes:
        refs: By key.
    """

    def __init__(self) -> None:
        self.refs: dict[str, StorageRef] = {}

    def storage(self, persistent_id: Any) -> StorageRef:
        """Parse a persistent id: ('storage', type, key, location, elements[, view])."""
        if type(persistent_id) is not tuple or len(persistent_id) not in (5, 6):
            raise ValueError(
                f"a persistent id must be a tuple of 5 or 6; got {short_repr(persistent_id)}"
            )
        word, kind, key, location, elements, *view = persistent_id
        if word != "storage" or type(key) is not str or type(location) is not str:
            raise ValueError("a persistent id names no storage")
        if len(key) > LONGEST_NAME or len(location) > LONGEST_NAME:
            raise ValueError(f"a storage's name has more than {LONGEST_NAME} letters")
        if view and view[0] is not None:
            raise UnsafeContentError("it has a storage that is a view of another")
        if type(kind) is not Function or kind.name.rpartition(".")[2] not in STORAGES:
            raise UnsafeContentError(f"a storage is a {short_repr(kind)}")
        if type(elements) is not int or not 0 <= elements < LARGEST:
            raise ValueError(f"storage {key} has {short_repr(elements)} elements")
        d = BY_NAME[STORAGES[kind.name.rpartition(".")[2]]]
        ref = StorageRef(key, d, location, elements)
        if self.refs.setdefault(key, ref) != ref:
            raise ValueError(f"storage {key} is described in two ways")
        return ref

    def find(self, module: str, name: str) -> Any:
        """Return the replacement of a global name.

        Raises:
            UnsafeContentError: It is none of the names that data needs.
        """
        full = f"{module}.{name}"
        if module in ("torch", "torch.cuda", "torch.storage") and name in STORAGES:
            return Function(full, None)
        if module == "torch" and name in DTYPES:
            return BY_NAME[name]
        if full in GLOBALS:
            return GLOBALS[full]
        tensors = self.calls().get(full)
        if tensors is not None:
            return Function(full, tensors, TENSOR, 16)
        plain = PLAIN_CALLS.get(full)
        if plain is not None:
            return Function(full, *plain)
        raise UnsafeContentError(f"it names {full}", hint_for(module, name))

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that build tensors."""
        return {
            "torch._utils._rebuild_tensor": self.old_tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.untyped_tensor,
            "torch._utils._rebuild_parameter": self.parameter,
            "torch._utils._rebuild_parameter_with_state": self.parameter,
            "torch._utils._rebuild_sparse_tensor": self.sparse,
            "torch._utils._rebuild_meta_tensor_no_storage": self.meta_tensor,
            "torch._tensor._rebuild_from_type_v2": self.typed,
        }

    def failed(self) -> BaseException | None:
        """Return the exception that a function of the caller raised."""
        return None

    def old_tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor of PyTorch before 0.4."""
        return None

    def tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor."""
        return None

    def untyped_tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor that names its own dtype."""
        return None

    def parameter(self, *args: Any) -> Any:
        """Return a placeholder for a parameter."""
        return None

    def sparse(self, *args: Any) -> Any:
        """Return a placeholder for a sparse tensor."""
        return None

    def meta_tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor without values."""
        return None

    def typed(self, *args: Any) -> Any:
        """Return a placeholder for a tensor with attributes."""
        return None


class TensorBuilder(StorageScanner):
    """Builds the tensors of a file.

    Args:
        source: The file.
        placement: Where tensors go.
        mapped: Whether they may lie over the file's mapping.
        extents: Where each storage lies in the file.
    """

    def __init__(
        self, source: Source, placement: Placement, mapped: bool, extents: dict[str, Extent]
    ) -> None:
        super().__init__()
        self.source, self.placement, self.mapped = source, placement, mapped
        self.extents = extents
        self._flat: dict[tuple[str, device], Tensor] = {}
        self._applied: dict[tuple[str, device, dtype, Bits], Tensor] = {}
        self._moved: dict[Any, Tensor] = {}
        self._copies = Budget(2 * source.size, lambda: 0)  # to other devices, view by view
        self._left = source.size  # storages that overlap in the file must not multiply

    def old_tensor(self, storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
        """Build a view of a storage as PyTorch before 0.4 wrote it."""
        return self.tensor(storage, offset, size, stride)

    def tensor(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any = False,
        hooks: Any = None,
        metadata: Any = None,
    ) -> Tensor:
        """Build a view of a storage, after its bounds are checked."""
        if type(storage) is not StorageRef:
            raise ValueError("a tensor of no storage")
        _no_hooks(hooks)
        bits = _bits(metadata, storage.dtype)
        grad = _flag(requires_grad, "requires_grad")
        return self._view(storage, storage.dtype, offset, size, stride, grad, bits)

    def untyped_tensor(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        kind: Any,
        metadata: Any = None,
    ) -> Tensor:
        """Build a view of a storage of bytes, as elements of a dtype."""
        if type(storage) is not StorageRef or storage.dtype is not uint8:
            raise ValueError("a tensor with a dtype, but without an untyped storage")
        if type(kind) is not dtype:
            raise ValueError(f"a tensor's dtype is {short_repr(kind)}")
        _no_hooks(hooks)
        grad = _flag(requires_grad, "requires_grad")
        return self._view(storage, kind, offset, size, stride, grad, _bits(metadata, kind))

    def _view(
        self,
        storage: StorageRef,
        kind: dtype,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: bool,
        bits: Bits,
    ) -> Tensor:
        shape, strides = integers(size, "a size"), integers(stride, "a stride")
        if type(offset) is not int or not 0 <= offset < LARGEST:
            raise ValueError(f"a tensor begins at element {short_repr(offset)}")
        if len(shape) != len(strides) or len(shape) > MOST_DIMS:
            raise ValueError(f"a tensor of size {shape} has strides {strides}")
        elements = storage.elements * storage.dtype.itemsize // kind.itemsize
        empty = 0 in shape
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if not empty and last >= elements:
            raise ValueError(
                f"a tensor of size {shape} and strides {strides} from element {offset} reaches "
                f"element {last} of storage {storage.key}, which has {elements}"
            )
        where = self.placement.of(storage.location)
        spec = Spec(shape, kind, META if where.type == "meta" else CPU)
        _sane(spec)
        # overlapping elements (an expanded tensor) are kept as they are: a view, as in PyTorch
        flat = self._flat_of(storage, META if spec.device is META else CPU)
        if any(bits):
            flat = self._with_bits(flat, storage, kind, bits)
        item = kind.itemsize
        steps = (0,) * len(shape) if empty else tuple(s * item for s in strides)
        base = flat._array
        array = np.ndarray(shape, kind.np, base, 0 if empty else offset * item, steps)
        t = wrap(array, spec, flat._storage)
        if where.type not in ("cpu", "meta"):
            t = self._on(where, t, (storage.key, kind, offset, shape, strides, bits))
        t = self.placement.finish(t, storage.location)
        return t.requires_grad_() if requires_grad else t

    def _with_bits(self, flat: Tensor, storage: StorageRef, kind: dtype, bits: Bits) -> Tensor:
        # the whole storage, so that views of it keep their strides and share memory
        where = flat.device
        found = self._applied.get((storage.key, where, kind, bits))
        if found is None:
            whole = flat.numel() * flat.itemsize // kind.itemsize
            spec = Spec((whole,), kind, where)
            self._copies.spend(spec.nbytes)
            made, array = backend(where).empty(spec, INPUT)
            if where is CPU:
                values = np.ndarray((whole,), kind.np, flat._array)
                if bits.conj:
                    values = np.conjugate(values, out=array)
                if bits.neg:
                    np.negative(values, out=array)
            found = self._applied[storage.key, where, kind, bits] = wrap(array, spec, made)
        return found

    def failed(self) -> BaseException | None:
        """Return the exception that a ``map_location`` function raised."""
        return self.placement.failed

    def _on(self, where: device, t: Tensor, view: Any) -> Tensor:
        # expanded views become as large as they seem, and tied ones stay tied
        first = self._moved.get((where, view))
        if first is None:
            self._copies.spend(t.nbytes)
            first = self._moved[where, view] = t.to(where)
        return wrap(first._array, first._spec, first._storage)

    def parameter(
        self, data: Any, requires_grad: Any = True, hooks: Any = None, state: Any = None
    ) -> Tensor:
        """Build a parameter that shares a tensor's memory, with its attributes."""
        if not isinstance(data, Tensor):
            raise ValueError("a parameter of no tensor")
        _no_hooks(hooks)
        grad = _flag(requires_grad, "requires_grad")
        return _with_state(with_class("Parameter", data.detach(), grad), state)

    def typed(self, rebuild: Any, kind: Any, args: Any, state: Any) -> Tensor:
        """Build a tensor with attributes; a buffer of PyTorch is a tensor with two of them."""
        name = rebuild.name.rpartition(".")[2] if type(rebuild) is Function else ""
        if name not in _REBUILDS or type(args) is not tuple:
            raise UnsafeContentError(f"it builds a tensor with attributes by {short_repr(rebuild)}")
        if type(kind) is not Function or kind.name != "torch.Tensor":
            raise UnsafeContentError(f"a tensor's class is {short_repr(kind)}")
        t = rebuild.call(*args)
        own = dict(state) if type(state) is dict else state
        if type(own) is dict and own.pop("_is_buffer", False) is True:
            grad = t.requires_grad
            t = with_class("Buffer", t.detach(), grad)
            t.__dict__["persistent"] = _flag(own.pop("persistent", True), "persistent")
        return _with_state(t, own)

    def meta_tensor(self, kind: Any, size: Any, stride: Any, requires_grad: Any) -> Tensor:
        """Build a tensor of the meta device: sizes and strides, no values."""
        shape, strides = integers(size, "a size"), integers(stride, "a stride")
        if type(kind) is not dtype:
            raise ValueError(f"a tensor's dtype is {short_repr(kind)}")
        if len(shape) != len(strides) or len(shape) > MOST_DIMS:
            raise ValueError(f"a tensor of size {shape} has strides {strides}")
        spec = Spec(shape, kind, META)
        _sane(spec)
        elements = (
            0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        )
        whole = Spec((elements,), kind, META)
        _sane(whole)
        made, base = backend(META).empty(whole, INPUT)
        steps = tuple(0 if 0 in shape else s * kind.itemsize for s in strides)
        t = wrap(np.ndarray(shape, kind.np, base, 0, steps), spec, made)
        return t.requires_grad_() if _flag(requires_grad, "requires_grad") else t

    def sparse(self, layout_: Any, data: Any) -> Tensor:
        """Build a sparse tensor of its parts, after its indices are checked."""
        if type(layout_) is not layout or layout_ is strided:
            raise ValueError(f"the layout of a sparse tensor is {short_repr(layout_)}")
        if type(data) is not tuple or not 3 <= len(data) <= 4:
            raise ValueError(f"the parts of a sparse tensor are {listed(data)}")
        if layout_.name in ("sparse_bsr", "sparse_bsc"):
            raise UnsafeContentError(
                f"it has a tensor of layout torch.{layout_.name}, which no tensor here can have",
                "Save t.to_dense() or t.to_dense().to_sparse_csr() with PyTorch",
            )
        coalesced = None
        if layout_.name == "sparse_coo":
            *data, coalesced = (*data, None)[:4]
        *parts, size = data
        joined = coalesced is not None and _flag(coalesced, "is_coalesced")
        return rebuilt(layout_.name, integers(size, "a size"), parts, joined)

    def _flat_of(self, ref: StorageRef, where: device) -> Tensor:
        found = self._flat.get((ref.key, where))
        if found is not None:
            return found
        place = self.extents.get(ref.key)
        nbytes = ref.elements * ref.dtype.itemsize
        if place is None or place.nbytes != nbytes:
            raise ValueError(
                f"storage {ref.key} should have {nbytes} bytes, and the file has "
                f"{'none' if place is None else place.nbytes}"
            )
        self._left -= nbytes
        if self._left < 0:
            raise ValueError("its storages overlap in the file")
        t = read_tensor(
            self.source,
            place.offset,
            ref.dtype,
            (ref.elements,),
            where,
            self.mapped,
            place.crc,
            f"storage {ref.key}",
        )
        self._flat[ref.key, where] = t
        return t


def _sane(spec: Spec) -> None:
    if spec.nbytes > LARGEST_TENSOR or any(n > LARGEST_TENSOR for n in spec.shape):
        raise ValueError(f"a tensor of size {spec.shape} is more than any memory")


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{what} must be True or False; got {short_repr(value)}")
    return value


def _no_hooks(hooks: Any) -> None:
    if hooks is not None and not isinstance(hooks, dict):
        raise ValueError(f"the hooks of a tensor are {short_repr(hooks)}")
    if hooks:
        raise UnsafeContentError(
            f"a tensor has {len(hooks)} backward hooks, which are functions",
            "Save it with PyTorch as t.detach(), and register the hooks again after loading",
        )


def _bits(metadata: Any, kind: dtype) -> Bits:
    if metadata is None:
        return Bits()
    if type(metadata) is not dict:
        raise ValueError(f"the metadata of a tensor is {short_repr(metadata)}")
    unknown = [key for key in metadata if key not in Bits._fields]
    if unknown:
        raise UnsafeContentError(
            f"a tensor's metadata has {listed(unknown)}, and only conj and neg are known",
            "Save it with PyTorch as t.clone().detach()",
        )
    bits = Bits(**{key: _flag(value, f"the {key} bit") for key, value in metadata.items()})
    if (bits.conj and kind.category != COMPLEX) or (bits.neg and kind.category == BOOL):
        raise ValueError(f"a tensor of {kind} has the bits {metadata}")
    return bits


def _with_state(t: Tensor, state: Any) -> Tensor:
    """Set the attributes that a program gave a tensor."""
    if state is None:
        return t
    if type(state) is tuple and len(state) == 2:  # of the instance, and of slots
        return _with_state(_with_state(t, state[0]), state[1])
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise ValueError(f"the attributes of a tensor are {short_repr(state)}")
    for name, value in state.items():
        if hasattr(type(t), name):
            raise UnsafeContentError(
                f"it sets the attribute {name!r:.99} of a tensor, which every tensor has",
                "Delete the attribute with PyTorch, and save again",
            )
        t.__dict__[name] = value
    return t
