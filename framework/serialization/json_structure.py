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
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..distributed.shards import refuse_shards
from ..dtypes import COMPLEX, dtype
from ..errors import SerializationError
from ..ops.sparse.sparse_tensor import SparseTensor
from ..random.generator import Generator
from ..spec import Size
from ..tensor import Tensor
from . import own_classes, standard_types
from .safetensors import METADATA, NAMES
from .sparse_parts import described
from .standard_types import STANDARD, hashable_plainly

DEEPEST = 200  # nested containers
# Names from files are looked up here: numpy.dtype() would evaluate some of them.
NUMBERS = {d.name: np.dtype(d.name) for d in map(np.dtype, "?bBhHiIlLqQefd")}
COMPLEX_NUMBERS = {name: np.dtype(name) for name in ("complex64", "complex128")}
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
        self._modules = 0  # whole modules that are being written

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
            refuse_shards([value], "save", "Save full_state_dict(module), or full_tensor().")
            return self._tensor(value, path)
        if kind in (list, tuple, Size, dict, OrderedDict, Counter):
            return self._container(value, kind, path)
        if kind in STANDARD:
            return self._standard(value, STANDARD[kind], path)
        if kind is np.ndarray:
            return self._array(value, path)
        return self._small(value, kind, path) or self._other(value, path)

    def _small(self, value: Any, kind: type, path: tuple[str, ...]) -> dict[str, Any] | None:
        # A node without others inside; None for what has no such node.
        if kind in (bytes, bytearray):
            raw = np.frombuffer(value, np.uint8)
            entry = self._add(path, Values(raw.dtype, raw.shape, lambda: raw))
            return {"$": kind.__name__, "entry": entry}
        if kind is complex:
            return {"$": "complex", "parts": [self.encode(value.real), self.encode(value.imag)]}
        if kind is dtype:
            return {"$": "dtype", "name": value.name}
        if kind is device:
            return {"$": "device", "name": str(value)}
        if kind is Generator:
            return {
                "$": "Generator",
                "device": str(value.device),
                "seed": value.initial_seed(),
                "offset": value.get_offset(),
            }
        if isinstance(value, np.generic) and value.dtype.name in (*NUMBERS, *COMPLEX_NUMBERS):
            return {"$": "number", "dtype": value.dtype.name, "value": self.encode(value.item())}
        return None

    def _other(self, value: Any, path: tuple[str, ...]) -> Any:
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
        self._modules += kind == "module"
        try:
            node |= self._parts(own_classes.described(value, kind), path)
        finally:
            self._inside.discard(id(value))
            self._modules -= kind == "module"
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
        if self._modules and t.__dict__:  # what a program noted of a parameter is part of its model
            node["attributes"] = {k: self.encode(v, (*path, k)) for k, v in t.__dict__.items()}
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
