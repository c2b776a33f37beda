"""Objects as a JSON structure plus named arrays; a class is named only where the reader allows it.

What JSON has is written as it is: None, bool, int, float, str, list, and a dict whose keys are
strings that do not begin with ``$``. Everything else is an object with a ``$`` that says what it
is::

    {"$": "tensor", "entry": "model.0.weight"}
    {"$": "dict", "items": [[1, "one"]]}                also OrderedDict, Counter
    {"$": "tuple", "items": [3, 4]}                     also Size, and those of standard_types.py
    {"$": "enum", "class": "models:Color", "names": ["RED"]}        see own_classes.py
    {"$": "float", "value": "nan"}                      inf, -inf, nan

A tensor's entry is named after the way to it. Tensors of the same elements in the same memory
(tied weights) share an entry, and share memory again when loaded; the same tensor object met twice
is one object again. A view is written with its own elements only.

Not optimal: lists and dicts that appear twice are written twice, and views that overlap without
being equal no longer share memory.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import BY_NAME, BY_NUMPY, COMPLEX, dtype
from ..errors import SerializationError
from ..memory.ledger import INPUT
from ..ops.sparse.sparse_tensor import SparseTensor
from ..random.generator import Generator
from ..spec import Size, Spec
from ..tensor import Tensor, wrap
from . import own_classes, standard_types
from .atomic_files import Source
from .checksums import check
from .map_location import META, Placement, read_checked, read_tensor
from .multilinear_hash import sum_of
from .safetensors import METADATA, MOST_DIMS, NAMES, NUMPY, Entry
from .size_budget import DAMAGE, OBJECT, TENSOR, Budget, named
from .sparse_parts import described, rebuilt
from .standard_types import BUILDERS, STANDARD, hashable_plainly

DEEPEST = 200  # nested containers
LARGEST_META = 1 << 45  # bytes of a tensor on meta
# Names from files are looked up here: numpy.dtype() would evaluate some of them.
_NUMBERS = {d.name: np.dtype(d.name) for d in map(np.dtype, "?bBhHiIlLqQefd")}
_COMPLEX = {name: np.dtype(name) for name in ("complex64", "complex128")}
_CLASSES: dict[str, Callable[[Tensor, bool], Tensor]] = {}


def restores(name: str, make: Callable[[Tensor, bool], Tensor]) -> None:
    """Register ``make(values, requires_grad)`` to restore tensors of class ``name``."""
    _CLASSES[name] = make


def with_class(name: str, t: Tensor, requires_grad: bool) -> Tensor:
    """Convert a tensor to a registered class, and set ``requires_grad``."""
    make = _CLASSES.get(name)
    if make is not None:
        return make(t, requires_grad)
    return t.requires_grad_() if requires_grad else t


class Values:
    """The values of a tensor, array or bytes to write; complex ones as pairs."""

    __slots__ = ("_read", "dtype", "nbytes", "shape")

    def __init__(self, d: Any, shape: tuple[int, ...], read: Callable[[], Any]) -> None:
        self._read = read
        self.dtype, self.shape = d, shape
        if d.kind == "c":
            self.dtype, self.shape = np.dtype(f"f{d.itemsize // 2}"), (*shape, 2)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def values(self) -> Any:
        """Return the array on the host."""
        array = self._read()
        if array.dtype.kind == "c":
            array = np.ascontiguousarray(array).reshape(-1).view(self.dtype).reshape(self.shape)
        return array


# Objects to JSON


class Encoder:
    """Encodes an object as JSON and collects its arrays.

    Args:
        classes: Whether objects of a program's own classes may be written; reading them back needs
            the reader's consent.

    Attributes:
        arrays: What is to be written, by entry name.
    """

    def __init__(self, classes: bool = True) -> None:
        self._classes = classes
        self.arrays: dict[str, Values] = {}
        self._entries: dict[Any, str] = {}  # place and shape of elements -> entry
        self._nodes: dict[int, dict[str, Any]] = {}  # tensor object -> its node
        self._alive: list[Any] = []  # so that no id is used again while encoding
        self._inside: set[int] = set()

    def encode(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Encode ``value`` as JSON.

        Raises:
            SerializationError: Something in it has no place in a file; the message names it.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$": "float", "value": str(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if kind in (list, tuple, Size, dict, OrderedDict, Counter):
            return self._container(value, kind, path)
        if kind in STANDARD:
            return self._standard(value, STANDARD[kind], path)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind in (bytes, bytearray):
            raw = np.frombuffer(value, np.uint8)
            return {
                "$": kind.__name__,
                "entry": self._add(path, Values(raw.dtype, raw.shape, lambda: raw)),
            }
        if kind is complex:
            return {"$": "complex", "parts": [self.encode(value.real), self.encode(value.imag)]}
        if kind is dtype:
            return {"$": "dtype", "name": value.name}
        if kind is device:
            return {"$": "device", "name": str(value)}
        if kind is Generator:
            return {"$": "Generator", "device": str(value.device), "seed": value.initial_seed(),
                    "offset": value.get_offset()}  # fmt: skip
        if isinstance(value, np.generic) and value.dtype.name in (*_NUMBERS, *_COMPLEX):
            return {"$": "number", "dtype": value.dtype.name, "value": self.encode(value.item())}
        own = own_classes.kind_of(value)
        if own is not None and self._classes:
            return self._own_class(value, own, path)
        if own is not None:
            raise self._refused(path, value, f"Save {own_classes.INSTEAD[own]}")
        if isinstance(value, bool | int | float | str):
            raise self._refused(path, value, "Convert it to int, float or str")
        name = own_classes.function_name(value)
        if name is not None:
            return {"$": "function", "name": name}
        raise self._refused(path, value, own_classes.instead_of(value))

    def _standard(self, value: Any, row: standard_types.Standard, path: tuple[str, ...]) -> Any:
        reason = standard_types.why_not(value)
        if reason:
            raise self._refused(path, value, reason)
        self._enter(value, path)
        try:
            return {"$": row.name, "items": [self.encode(v, path) for v in row.parts(value)]}
        finally:
            self._inside.discard(id(value))

    def _own_class(self, value: Any, kind: str, path: tuple[str, ...]) -> Any:
        seen = self._nodes.get(id(value))
        if seen is not None:
            seen.setdefault("id", len(self._nodes))
            return dict(seen)
        reason = own_classes.why_not(value, kind)
        if reason:
            raise own_classes.refused(".".join(path) or "the object itself", value, reason)
        node = {"$": kind, "class": own_classes.name_of(type(value))}

        self._enter(value, path)
        try:
            node |= self._parts(own_classes.described(value, kind), path)
        finally:
            self._inside.discard(id(value))
        if kind in ("module", "dataclass"):
            self._nodes[id(value)] = node
            self._alive.append(value)
        return node

    def _parts(self, parts: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        if "state" in parts:
            parts["state"] = {
                name: self.encode(v, path if name in own_classes.REGISTRIES else (*path, name))
                for name, v in parts["state"].items()
            }
        elif "items" in parts:
            named = zip(parts["fields"], parts["items"], strict=True)
            parts["items"] = [self.encode(v, (*path, f)) for f, v in named]
        return parts

    def _enter(self, value: Any, path: tuple[str, ...]) -> None:
        if id(value) in self._inside:
            raise SerializationError(
                f"save: {'.'.join(path) or 'the object itself'} contains itself. Break the cycle."
            )
        if len(path) >= DEEPEST or len(self._inside) >= DEEPEST:
            raise SerializationError(f"save: containers are nested more than {DEEPEST} deep.")
        self._inside.add(id(value))

    def _refused(self, path: tuple[str, ...], value: Any, hint: str) -> SerializationError:
        where = ".".join(path) or "the object itself"
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return SerializationError(
            f"save: {where} is a {kind}, and a file holds tensors, arrays, numbers, strings, "
            "bytes, dtypes, devices, generators, plain objects of the standard library, and list, "
            f"tuple, set, dict of these. {hint}."
        )

    def _container(self, value: Any, kind: type, path: tuple[str, ...]) -> Any:
        self._enter(value, path)
        try:
            if issubclass(kind, dict):
                return self._mapping(value, kind, path)
            items = [self.encode(v, (*path, str(k))) for k, v in enumerate(value)]
            return items if kind is list else {"$": kind.__name__, "items": items}
        finally:
            self._inside.discard(id(value))

    def _mapping(self, value: Any, kind: type, path: tuple[str, ...]) -> Any:
        if kind is dict and all(type(k) is str and not k.startswith("$") for k in value):
            return {k: self.encode(v, (*path, k)) for k, v in value.items()}
        items = []
        for k, v in value.items():
            if not hashable_plainly(k):
                raise self._refused(
                    (*path, repr(k)), k, "As a key: str, bytes, numbers, or tuples of these"
                )
            items.append([self.encode(k), self.encode(v, (*path, str(k)))])
        return {"$": kind.__name__, "items": items}

    def _array(self, value: Any, path: tuple[str, ...]) -> Any:
        known = value.dtype in NAMES or (value.dtype.kind == "c" and value.dtype.isnative)
        if not known or value.dtype.itemsize > 16:
            raise self._refused(
                path, value, f"Its dtype is {value.dtype}; convert it, or save {_plainly(value)}"
            )
        node = {
            "$": "ndarray",
            "entry": self._add(path, Values(value.dtype, value.shape, lambda: value)),
        }
        if value.dtype.kind == "c":
            node["complex"] = value.dtype.name
        return node

    def _tensor(self, t: Tensor, path: tuple[str, ...]) -> Any:
        seen = self._nodes.get(id(t))
        if seen is not None:  # the same object again: one object when loaded, too
            seen.setdefault("id", len(self._nodes))
            return dict(seen)
        if isinstance(t, SparseTensor):
            return self._sparse(t, path)
        node: dict[str, Any] = {"$": "tensor"}
        kind = type(t).__name__
        if type(t) is not Tensor:
            if kind not in _CLASSES:
                raise self._refused(path, t, "Save its .data")
            node["class"] = kind
        if t.requires_grad:
            node["requires_grad"] = True
        if t.device.type == "meta":
            node["meta"] = {"shape": list(t.shape), "dtype": t.dtype.name}
        else:
            if t.device.type != "cpu":
                node["device"] = str(t.device)
            if t.dtype.category == COMPLEX:
                node["complex"] = t.dtype.name
            node["entry"] = self._entry_of(t, path)
        self._nodes[id(t)] = node
        self._alive.append(t)
        return node

    def _sparse(self, t: SparseTensor, path: tuple[str, ...]) -> Any:
        layout, size, parts, coalesced = described(t)
        items = [self._tensor(part, (*path, str(k))) for k, part in enumerate(parts)]
        node: dict[str, Any] = {"$": "sparse", "layout": layout, "size": size, "items": items}
        node |= {"coalesced": coalesced, "requires_grad": t.requires_grad}
        self._nodes[id(t)] = node
        self._alive.append(t)
        return node

    def _entry_of(self, t: Tensor, path: tuple[str, ...]) -> str:
        be, array = backend(t.device), t._array
        place = (t.device, be.address(array), t._spec, array.strides) if t.numel() else object()
        if place not in self._entries:
            values = Values(t.dtype.np, tuple(t.shape), lambda: be.to_host(array))
            self._entries[place] = self._add(path, values)
        return self._entries[place]

    def _add(self, path: tuple[str, ...], values: Values) -> str:
        wanted = ".".join(path) or "tensor"
        name, tries = wanted, 1
        while name in self.arrays or name == METADATA:
            tries += 1
            name = f"{wanted}#{tries}"
        self.arrays[name] = values
        return name


def _plainly(array: Any) -> str:
    # numbers in the other byte order need no list
    return "x.astype(x.dtype.newbyteorder('='))" if array.dtype.kind in "iufc" else "x.tolist()"


# JSON to objects


class Decoder:
    """Decodes objects from JSON, reading each array when it is reached.

    Args:
        source: The file.
        entries: What its header lists.
        placement: Where tensors go.
        mapped: Whether tensors may lie over the file's mapping.
        classes: The classes of which it may build objects; none by default.
    """

    def __init__(
        self, source: Source, entries: dict[str, Entry], placement: Placement, mapped: bool,
        classes: own_classes.OwnClasses | None = None,
    ) -> None:  # fmt: skip
        self._classes = classes or own_classes.OwnClasses()
        self.source, self.entries = source, entries
        self.placement, self.mapped = placement, mapped
        # (entry, device) -> its first tensor: "cpu:0" and "cpu:1" are one device
        self._memory: dict[tuple[str, device], Tensor] = {}
        header = min((e.offset for e in entries.values()), default=source.size)
        self._budget = Budget(source.size, lambda: header)
        self._objects: dict[int, Any] = {}
        self._raw: dict[str, Any] = {}

    def decode(self, node: Any, depth: int = 0) -> Any:
        """Decode the object that ``node`` describes.

        Raises:
            SerializationError: It describes none.
        """
        if depth > DEEPEST:
            raise self.source.error(f"containers are nested more than {DEEPEST} deep")
        if isinstance(node, list):
            return [self.decode(n, depth + 1) for n in node]
        if not isinstance(node, dict):
            return node
        if "$" not in node:
            return {k: self.decode(v, depth + 1) for k, v in node.items()}
        kind = node["$"]
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise self.source.error(
                f"the structure has a {kind!r:.99}, which this version cannot read"
            )
        try:
            return read(self, node, depth)
        except DAMAGE as error:
            problem = f"the structure's {kind} is damaged"
            raise named(self.source, error, problem, calls=self.placement) from None

    def tensor_of(self, name: str, location: str = "cpu") -> Tensor:
        """Return the tensor of an entry, sharing memory with earlier ones of that entry."""
        entry = self._entry(name)
        if type(location) is not str:
            raise TypeError(f"the device of entry {name!r:.99} is no string")
        where = self.placement.of(location)
        self._budget.spend(TENSOR)
        first = self._memory.get((name, where))
        if first is not None:
            return wrap(first._array, first._spec, first._storage)
        found = BY_NUMPY.get(NUMPY[entry.dtype]) if entry.dtype in NUMPY else None
        if found is None:
            raise self.source.error(
                f"entry {name!r:.99} has dtype {entry.dtype}, which no tensor here can have",
                "Convert it with the library that wrote it",
            )
        if where.type != "meta":
            self._budget.spend(entry.nbytes)
        t = read_tensor(
            self.source, entry.offset, found, entry.shape, where, self.mapped,
            what=f"entry {name!r:.99}", checksum=entry.checksum,
        )  # fmt: skip
        self._memory[name, where] = t
        return t

    def _entry(self, name: Any) -> Entry:
        entry = self.entries.get(name) if isinstance(name, str) else None
        if entry is None:
            raise self.source.error(
                f"the structure asks for entry {name!r:.99}, which is not there"
            )
        return entry

    def _array_of(self, name: str) -> Any:
        self._budget.spend(OBJECT)
        if name not in self._raw:
            entry = self._entry(name)
            self._budget.spend(entry.nbytes)
            if entry.dtype not in NUMPY:
                raise self.source.error(
                    f"entry {name!r:.99} has dtype {entry.dtype}, NumPy has not"
                )
            array = np.empty(entry.shape, NUMPY[entry.dtype])
            if entry.nbytes:
                what = f"entry {name!r:.99}"
                read_checked(self.source, entry.offset, _bytes_of(array), entry.checksum, what)
                if array.dtype.kind == "b":
                    np.minimum(array.view(np.uint8), 1, out=array.view(np.uint8))
            self._raw[name] = array
        return self._raw[name]

    def _tensor(self, node: dict[str, Any], depth: int) -> Any:
        number = node.get("id")
        if number in self._objects:
            return self._objects[number]
        location = node.get("device", "cpu")
        if "meta" in node:
            t = self._meta(node["meta"])
        else:
            t = self.tensor_of(node["entry"], location)
            if "complex" in node:
                t = _paired(t, BY_NAME[node["complex"]])
            t = self.placement.finish(t, location)
        requires_grad = node.get("requires_grad") is True
        if requires_grad and not t.dtype.is_differentiable:
            raise ValueError(f"{t.dtype} cannot require a gradient")
        t = with_class(str(node.get("class")), t, requires_grad)
        if type(number) is int:
            self._objects[number] = t
        return t

    def _sparse(self, node: dict[str, Any], depth: int) -> Any:
        number = node.get("id")
        if number in self._objects:
            return self._objects[number]
        parts = self._items(node, depth)
        flags = node["coalesced"] is True, node["requires_grad"] is True
        t = rebuilt(node["layout"], node["size"], parts, *flags)
        if type(number) is int:
            self._objects[number] = t
        return t

    def _meta(self, described: dict[str, Any]) -> Tensor:
        self._budget.spend(TENSOR)
        shape = tuple(described["shape"])
        if len(shape) > MOST_DIMS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"shape {shape}")
        if prod(n for n in shape if n) > LARGEST_META:
            raise ValueError(f"shape {shape}")
        spec = Spec(shape, BY_NAME[described["dtype"]], META)
        if spec.nbytes > LARGEST_META:
            raise ValueError(f"shape {shape}")
        storage, array = backend(META).empty(spec, INPUT)
        return wrap(array, spec, storage)

    def _ndarray(self, node: dict[str, Any], depth: int) -> Any:
        array = self._array_of(node["entry"])
        if "complex" in node:
            array = array.view(_COMPLEX[node["complex"]]).reshape(array.shape[:-1])
        return array

    def _items(self, node: dict[str, Any], depth: int) -> list[Any]:
        if not isinstance(node["items"], list):
            raise TypeError("items must be a list")
        return [self.decode(n, depth + 1) for n in node["items"]]

    def _pairs(self, node: dict[str, Any], depth: int) -> list[Any]:
        pairs = self._items(node, depth)
        if any(not hashable_plainly(k) for k, _ in pairs):
            raise TypeError("a key is no plain value")
        for key, _ in pairs:
            self._budget.key(key)
        return pairs

    def _bytes(self, node: dict[str, Any], depth: int) -> bytes:
        entry = self._entry(node["entry"])
        self._budget.spend(entry.nbytes + OBJECT)  # each of them is a copy
        raw = self.source.read(entry.offset, entry.nbytes)
        if entry.checksum is not None:
            found = sum_of(memoryview(raw), self.source.size)
            check(self.source, f"entry {node['entry']!r:.99}", found, entry.checksum)
        return raw

    def _standard(self, node: dict[str, Any], depth: int) -> Any:
        row = BUILDERS[node["$"]]
        self._budget.spend(row.cost)
        return row.build(self._items(node, depth), self._budget)

    def _own_class(self, node: dict[str, Any], depth: int) -> Any:
        number = node.get("id")
        if number in self._objects:
            return self._objects[number]
        kind = node["$"]
        cls = self._classes.find(self.source, node["class"], kind)
        self._budget.spend(2 * OBJECT)
        made: Any
        if kind == "enum":
            made = own_classes.member(cls, node["names"])
        elif kind == "namedtuple":
            made = own_classes.named_tuple(cls, node["fields"], self._items(node, depth))
        else:
            state = {k: self.decode(v, depth + 1) for k, v in node["state"].items()}
            made = own_classes.with_state(cls, state)
        if type(number) is int:
            self._objects[number] = made
        return made

    def _complex(self, node: dict[str, Any], depth: int) -> complex:
        real, imag = (self.decode(p, depth + 1) for p in node["parts"])
        return complex(float(real), float(imag))

    def _generator(self, node: dict[str, Any], depth: int) -> Generator:
        self._budget.spend(OBJECT)
        made = Generator(node["device"]).manual_seed(int(node["seed"]))
        made.set_offset(int(node["offset"]))
        return made

    def _float(self, node: dict[str, Any], depth: int) -> float:
        if node["value"] not in ("nan", "inf", "-inf"):
            raise ValueError(node["value"])
        return float(node["value"])

    def _number(self, node: dict[str, Any], depth: int) -> Any:
        value = self.decode(node["value"], depth + 1)
        kinds = _COMPLEX if type(value) is complex else _NUMBERS
        if type(value) not in (bool, int, float, complex):
            raise TypeError(f"a number is a {type(value).__name__}")
        with np.errstate(all="ignore"):
            return kinds[node["dtype"]].type(value)


def _bytes_of(array: Any) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _paired(t: Tensor, d: dtype) -> Tensor:
    # (..., 2) of reals, read from the file, as (...) of complex numbers in the same memory
    if d.category != COMPLEX or t.dtype is not d.to_real() or not t.ndim or t.shape[-1] != 2:
        raise ValueError(f"{t.dtype} {tuple(t.shape)} as {d}")
    if t.device.type != "cpu":
        return t.contiguous().view(d).squeeze(-1)
    spec = Spec(t.shape[:-1], d, t.device)
    return wrap(t._array.view(d.np).reshape(t._array.shape[:-1]), spec, t._storage)


_READERS: dict[str, Callable[[Decoder, dict[str, Any], int], Any]] = {
    "tensor": Decoder._tensor,
    "sparse": Decoder._sparse,
    "ndarray": Decoder._ndarray,
    "bytes": Decoder._bytes,
    "bytearray": lambda self, node, depth: bytearray(self._bytes(node, depth)),
    "tuple": lambda self, node, depth: tuple(self._items(node, depth)),
    "Size": lambda self, node, depth: Size(map(int, self._items(node, depth))),
    **dict.fromkeys(BUILDERS, Decoder._standard),
    **dict.fromkeys(own_classes.INSTEAD, Decoder._own_class),
    "function": lambda self, node, depth: own_classes.function_of(node["name"]),
    "dict": lambda self, node, depth: dict(self._pairs(node, depth)),
    "OrderedDict": lambda self, node, depth: OrderedDict(self._pairs(node, depth)),
    "Counter": lambda self, node, depth: Counter(dict(self._pairs(node, depth))),
    "float": Decoder._float,
    "complex": Decoder._complex,
    "number": Decoder._number,
    "dtype": lambda self, node, depth: BY_NAME[node["name"]],
    "device": lambda self, node, depth: device(node["name"]),
    "Generator": Decoder._generator,
}
