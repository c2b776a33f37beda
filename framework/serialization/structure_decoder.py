"""The reader of a JSON structure: its objects, with each array read when it is reached.

What is built is booked in a :class:`Budget` before it is built. A class is looked up only by
:class:`OwnClasses`, which by default refuses all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import BY_NAME, BY_NUMPY, COMPLEX, dtype
from ..memory.ledger import INPUT
from ..random.generator import Generator
from ..spec import Size, Spec
from ..tensor import Tensor, wrap
from . import own_classes
from .atomic_files import Source
from .checksums import check
from .json_structure import COMPLEX_NUMBERS, DEEPEST, NUMBERS, with_class
from .map_location import META, Placement, read_checked, read_tensor
from .multilinear_hash import sum_of
from .safetensors import MOST_DIMS, NUMPY, Entry
from .size_budget import DAMAGE, OBJECT, TENSOR, Budget, named
from .sparse_parts import rebuilt
from .standard_types import BUILDERS, hashable_plainly

LARGEST_META = 1 << 45  # bytes of a tensor on meta


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
        self,
        source: Source,
        entries: dict[str, Entry],
        placement: Placement,
        mapped: bool,
        classes: own_classes.OwnClasses | None = None,
    ) -> None:
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
        """Decode the object that ``node`` describes, in its place: the node is used up.

        Lists and dicts become what they hold, and other nodes go as soon as their object is there,
        so that a structure is in memory once.

        Raises:
            SerializationError: It describes none.
        """
        if depth > DEEPEST:
            raise self.source.error(f"containers are nested more than {DEEPEST} deep")
        if isinstance(node, list):
            for k, n in enumerate(node):
                if type(n) is dict or type(n) is list:
                    node[k] = self.decode(n, depth + 1)
            return node
        if not isinstance(node, dict):
            return node
        if "$" not in node:
            return self._values(node, depth)
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

    def _values(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        for name, n in node.items():
            if type(n) is dict or type(n) is list:
                node[name] = self.decode(n, depth + 1)
        return node

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
            self.source,
            entry.offset,
            found,
            entry.shape,
            where,
            self.mapped,
            what=f"entry {name!r:.99}",
            checksum=entry.checksum,
        )
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
        for name, value in node.get("attributes", {}).items():
            if hasattr(type(t), name):
                raise ValueError(f"it sets the attribute {name!r:.99}, which every tensor has")
            t.__dict__[name] = self.decode(value, depth + 1)
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
            array = array.view(COMPLEX_NUMBERS[node["complex"]]).reshape(array.shape[:-1])
        return array

    def _items(self, node: dict[str, Any], depth: int) -> list[Any]:
        items = node["items"]
        if not isinstance(items, list):
            raise TypeError("items must be a list")
        decoded: list[Any] = self.decode(items, depth)
        return decoded

    def _filled(self, kind: type, node: dict[str, Any], depth: int) -> Any:
        pairs, made = node["items"], kind()
        if not isinstance(pairs, list):
            raise TypeError("items must be a list")
        pairs.reverse()
        while pairs:  # each goes when its key is there
            key, value = self.decode(pairs.pop(), depth + 1)
            if not hashable_plainly(key):
                raise TypeError("a key is no plain value")
            made[self._budget.key(key)] = value
        return made

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
            state = self._values(node["state"], depth)
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
        kinds = COMPLEX_NUMBERS if type(value) is complex else NUMBERS
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
    "dict": lambda self, node, depth: self._filled(dict, node, depth),
    "OrderedDict": lambda self, node, depth: self._filled(OrderedDict, node, depth),
    "Counter": lambda self, node, depth: self._filled(Counter, node, depth),
    "float": Decoder._float,
    "complex": Decoder._complex,
    "number": Decoder._number,
    "dtype": lambda self, node, depth: BY_NAME[node["name"]],
    "device": lambda self, node, depth: device(node["name"]),
    "Generator": Decoder._generator,
}
