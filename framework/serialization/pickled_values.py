"""What a PyTorch file may hold beside tensors: the standard library's plain objects, and NumPy's.

A pickle builds an object by a call of its class or of a function. Each name here stands for a
function of ours, which checks its arguments and builds the same object; the function that the name
means is never called. What a pickle adds to an object later (the attributes of a Namespace, the
bytes of an array) is added by :func:`complete`, for the types in its table alone.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import pathlib
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import memory_format
from ..device import device
from ..memory_format import layout
from ..spec import Size
from ..tensor import Tensor
from .safe_unpickle import Function, plain_key, short_repr
from .size_budget import OBJECT, Budget, UnsafeContentError

LARGEST = 1 << 63  # of sizes, strides and offsets; products of larger ones could take minutes
MOST_ARRAY_DIMS = 64
_SMALL = 100  # bytes of an object that holds a few numbers
LONGEST_PATH = 1 << 16  # letters
LONGEST_TEXT = 1 << 20  # letters of each element of an array of texts
_NUMPY_CODE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US]\d{1,7}")
_LAYOUTS = {
    f"torch.{known.name}": known for known in vars(memory_format).values() if type(known) is layout
}


class PlainCall(NamedTuple):
    """A function that stands for a name: its cost in bytes, and for each item or letter.

    Attributes:
        call: Builds the object.
        base: Bytes of any call.
        each: Bytes more for each item or letter of its arguments.
        new: Whether ``cls.__new__(cls)`` may stand for a call without arguments.
        booked: Whether ``call`` takes the budget first.
    """

    call: Callable[..., Any]
    base: int = OBJECT
    each: int = 16
    new: bool = False
    booked: bool = False


def finished(value: Any, parts: tuple[type, ...]) -> Any:
    """Return a value from a pickle, after a search for parts that are no values.

    Args:
        value: What the pickle built.
        parts: Types that only the building of other objects needs.

    Raises:
        UnsafeContentError: There is one.
    """
    seen: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, parts):
            what = item.name if type(item) is Function else "a storage outside of a tensor"
            raise UnsafeContentError(
                f"it has {what} as a value", "Save the name of a class, or the tensor of a storage"
            )
        kind = type(item)
        if kind not in _HOLDERS or id(item) in seen:
            continue
        seen.add(id(item))
        if issubclass(kind, dict):
            left.extend(item)
            left.extend(item.values())
        elif issubclass(kind, list | tuple | set | frozenset | deque):
            left.extend(item)
        elif kind is slice:
            left.extend((item.start, item.stop, item.step))
        own = getattr(item, "__dict__", None)
        if own:
            left.extend(own.values())
    return value


_HOLDERS = {
    list, tuple, set, frozenset, dict, OrderedDict, defaultdict, Counter, deque, slice,
    argparse.Namespace, types.SimpleNamespace, *Tensor.__subclasses__(), Tensor,
}  # fmt: skip


def integers(values: Any, what: str) -> tuple[int, ...]:
    """Return a tuple of integers from 0 to below 2**63.

    Raises:
        ValueError: It is none; the message begins with ``what``.
    """
    if not isinstance(values, tuple | list) or any(
        type(n) is not int or not 0 <= n < LARGEST for n in values
    ):
        raise ValueError(f"{what} must be integers >= 0, below 2**63; got {listed(values)}")
    return tuple(values)


def listed(values: Any) -> str:
    """Format a value or the first nine of a list, for a message."""
    if not isinstance(values, tuple | list):
        return short_repr(values)
    return f"({', '.join(map(short_repr, values[:9]))}{', ...' if len(values) > 9 else ''})"


# Containers


def _pairs(budget: Budget, items: Any) -> list[Any]:
    pairs = list(items.items()) if isinstance(items, dict) else list(items)
    if any(type(p) not in (tuple, list) or len(p) != 2 for p in pairs):
        raise ValueError("pairs of a plain key and a value were expected")
    return [(plain_key(key, budget), value) for key, value in pairs]


def _ordered(budget: Budget, items: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict(_pairs(budget, items))


def _counter(budget: Budget, items: Any = ()) -> Counter[Any]:
    return Counter(dict(_pairs(budget, items)))


def _keys(budget: Budget, items: Any) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise UnsafeContentError(f"a set of {short_repr(items)}")
    return [plain_key(item, budget) for item in items]


def _set(budget: Budget, items: Any = ()) -> set[Any]:
    return set(_keys(budget, items))


def _frozenset(budget: Budget, items: Any = ()) -> frozenset[Any]:
    return frozenset(_keys(budget, items))


def _deque(items: Any = (), most: Any = None) -> deque[Any]:
    if not isinstance(items, list | tuple) or not (most is None or type(most) is int):
        raise ValueError("a deque is a list and a length")
    return deque(items, most)


def _default(factory: Any = None, items: Any = ()) -> defaultdict[Any, Any]:
    if items:
        raise ValueError("a defaultdict takes its items one by one")
    name = factory.name if type(factory) is Function else None
    made = FACTORIES.get(str(name).replace("__builtin__", "builtins"), factory)
    if made is not None and made not in FACTORIES.values():
        raise UnsafeContentError(f"a defaultdict calls {short_repr(factory)}")
    return defaultdict(made)


FACTORIES: dict[str, type] = {
    **{
        f"builtins.{kind.__name__}": kind
        for kind in (int, float, bool, str, bytes, list, dict, tuple, set, frozenset, complex)
    },
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "collections.deque": deque,
}


# Plain objects


def _complex(real: Any, imag: Any) -> complex:
    if type(real) not in (int, float) or type(imag) not in (int, float):
        raise ValueError("the parts of a complex number must be numbers")
    return complex(float(real), float(imag))


def _range(*bounds: Any) -> range:
    if not 1 <= len(bounds) <= 3 or any(type(n) is not int for n in bounds):
        raise ValueError(f"a range of {listed(bounds)}")
    return range(*bounds)


def _slice(start: Any, stop: Any, step: Any) -> slice:
    return slice(start, stop, step)


def _bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    # how protocol 2 spells bytes
    if type(text) is not str or encoding != "latin1":
        raise UnsafeContentError("it encodes a text")
    return text.encode("latin1")


def _bytearray(*args: Any) -> bytearray:
    if not args:
        return bytearray()
    if len(args) == 1 and type(args[0]) is bytes:
        return bytearray(args[0])
    return bytearray(_bytes(*args))


def _path(kind: str) -> Callable[..., Any]:
    def build(*parts: Any) -> pathlib.PurePath:
        if any(type(part) is not str for part in parts):
            raise ValueError(f"the parts of a path are {listed(parts)}")
        if sum(map(len, parts)) > LONGEST_PATH:
            raise ValueError(f"a path has more than {LONGEST_PATH} letters")
        made: pathlib.PurePath = path_class(kind)(*parts)
        return made

    return build


def path_class(kind: str) -> Any:
    """Return the class of paths for a name; a path of another system becomes a pure path."""
    if kind in ("PosixPath", "WindowsPath"):
        mine = (kind == "WindowsPath") == (os.name == "nt")
        return pathlib.Path if mine else getattr(pathlib, f"Pure{kind}")
    return {"PurePosixPath": pathlib.PurePosixPath, "PureWindowsPath": pathlib.PureWindowsPath}[
        kind
    ]


PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")


def _raw(value: Any, count: int) -> bytes:
    if type(value) is not bytes or len(value) != count:
        raise ValueError(f"a date or time must be {count} bytes; got {short_repr(value)}")
    return value


def _zone(zone: Any) -> Any:
    if zone is not None and type(zone) is not datetime.timezone:
        raise UnsafeContentError(f"a time has the zone {short_repr(zone)}")
    return zone


def _date(state: Any) -> datetime.date:
    raw = _raw(state, 4)
    return datetime.date(raw[0] << 8 | raw[1], raw[2], raw[3])


def _clock(raw: bytes, zone: Any) -> tuple[Any, ...]:
    return (raw[0] & 127, raw[1], raw[2], int.from_bytes(raw[3:], "big"), _zone(zone))


def _time(state: Any, zone: Any = None) -> datetime.time:
    raw = _raw(state, 6)
    return datetime.time(*_clock(raw, zone), fold=raw[0] >> 7)


def _datetime(state: Any, zone: Any = None) -> datetime.datetime:
    raw = _raw(state, 10)
    day = raw[0] << 8 | raw[1], raw[2] & 127, raw[3]
    return datetime.datetime(*day, *_clock(raw[4:], zone), fold=raw[2] >> 7)


def _timedelta(days: Any, seconds: Any, microseconds: Any) -> datetime.timedelta:
    if any(type(n) is not int for n in (days, seconds, microseconds)):
        raise ValueError("a timedelta is three integers")
    return datetime.timedelta(days, seconds, microseconds)


def _timezone(offset: Any, name: Any = None) -> datetime.timezone:
    if type(offset) is not datetime.timedelta or not (name is None or type(name) is str):
        raise ValueError("a timezone is a timedelta and a name")
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _device(kind: Any, index: Any = None) -> Any:
    if type(kind) is not str or not (index is None or type(index) is int):
        raise ValueError("a device is a name and an index")
    try:
        return device(kind, index)
    except RuntimeError as error:
        raise UnsafeContentError(str(error)) from None


def _layout(name: Any) -> layout:
    if type(name) is not str or name not in _LAYOUTS:
        raise UnsafeContentError(f"a layout is {short_repr(name)}")
    return _LAYOUTS[name]


# NumPy


def _numpy_dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    if type(code) is not str or not _NUMPY_CODE.fullmatch(code):
        raise UnsafeContentError(
            f"a NumPy array has the dtype {short_repr(code)}",
            "Only numbers, truths and texts are read: convert it with .tolist() before saving",
        )
    if code[0] in "US" and int(code[1:]) > LONGEST_TEXT:
        raise ValueError(f"a NumPy dtype has texts of more than {LONGEST_TEXT} letters")
    return np.dtype(code, False, True)


def _numbers(raw: Any, kind: Any, shape: tuple[int, ...], order: str) -> Any:
    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise UnsafeContentError(f"a NumPy array has the dtype {short_repr(kind)}")
    if type(raw) not in (bytes, bytearray) or len(raw) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"a NumPy array of shape {shape} and dtype {kind} has other bytes")
    if len(shape) > MOST_ARRAY_DIMS:
        raise ValueError(f"a NumPy array has {len(shape)} dimensions")
    if not kind.itemsize:
        raise ValueError("a NumPy array has elements of no bytes")
    if not raw:
        return np.empty(shape, kind, order=order)  # type: ignore[call-overload]
    flat = np.frombuffer(bytearray(raw), kind)
    if kind.kind == "b":  # one byte, but only 0 and 1 have a meaning
        np.minimum(flat.view(np.uint8), 1, out=flat.view(np.uint8))
    return flat.reshape(shape, order=order)  # type: ignore[call-overload]


def _numpy_scalar(kind: Any, raw: Any = b"") -> Any:
    return _numbers(raw, kind, (1,), "C")[0]


def _numpy_array(kind: Any, shape: Any, code: Any) -> Any:
    if type(kind) is not Function or kind.name != "numpy.ndarray":
        raise UnsafeContentError(f"a NumPy array is a {short_repr(kind)}")
    return np.ndarray((0,), np.int8)  # its shape and bytes follow


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> Any:
    return _numbers(raw, kind, integers(shape, "a shape"), "F" if order == "F" else "C")


# What a pickle adds to an object that is built


def complete(target: Any, state: Any, budget: Budget) -> bool:
    """Set what a pickle says of an object that it has built; return whether it may.

    Args:
        target: The object.
        state: Its attributes, or bytes.
        budget: What they take is booked here.

    Raises:
        ValueError: The state is none of such an object.
    """
    kind = type(target)
    if kind in (argparse.Namespace, types.SimpleNamespace):
        if type(state) is not dict or not all(type(name) is str for name in state):
            raise ValueError(f"the attributes of a {kind.__name__} are {short_repr(state)}")
        budget.spend(150 + 50 * max(0, len(state) - 5))
        target.__dict__.update(state)
    elif kind is np.ndarray and target.dtype == np.int8 and target.shape == (0,):
        _, shape, dtype, fortran, raw = state
        shape = integers(shape, "a shape")
        budget.spend(OBJECT + 2 * len(raw))
        values = _numbers(raw, dtype, shape, "F" if fortran is True else "C")
        if values.nbytes:
            data = values.tobytes("A")
            target.__setstate__((1, shape, values.dtype, fortran is True, data))
        else:
            target.__setstate__((1, shape, values.dtype, False, b""))
    elif isinstance(target, np.dtype) and not target.hasobject:
        restored: Any = target  # its state is no part of NumPy's stubs
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError(f"the state of a NumPy dtype is {listed(state)}")
        if target.kind not in "US":
            restored.__setstate__((3, state[1], None, None, None, -1, -1, 0))
        elif target.kind == "U":
            restored.__setstate__((3, state[1], None, None, None, target.itemsize, 4, 8))
    else:
        return False
    return True


# Names


def _everywhere(name: str, call: PlainCall) -> dict[str, PlainCall]:
    return {f"{module}.{name}": call for module in ("builtins", "__builtin__")}


def _of_numpy(name: str, call: PlainCall) -> dict[str, PlainCall]:
    return {f"numpy.{core}.{name}": call for core in ("_core", "core")}


PLAIN_CALLS: dict[str, PlainCall] = {
    "collections.OrderedDict": PlainCall(_ordered, each=200, booked=True),
    "collections.Counter": PlainCall(_counter, each=200, booked=True),
    "collections.deque": PlainCall(_deque, 700),
    "collections.defaultdict": PlainCall(_default),
    "torch.Size": PlainCall(lambda sizes: Size(integers(sizes, "a torch.Size"))),
    "torch.device": PlainCall(_device),
    "torch.serialization._get_layout": PlainCall(_layout),
    "_codecs.encode": PlainCall(_bytes, 40, 1),
    "argparse.Namespace": PlainCall(argparse.Namespace, _SMALL, new=True),
    "types.SimpleNamespace": PlainCall(types.SimpleNamespace, _SMALL),
    "datetime.date": PlainCall(_date, _SMALL),
    "datetime.time": PlainCall(_time, _SMALL),
    "datetime.datetime": PlainCall(_datetime, _SMALL),
    "datetime.timedelta": PlainCall(_timedelta, _SMALL),
    "datetime.timezone": PlainCall(_timezone, _SMALL),
    "numpy.dtype": PlainCall(_numpy_dtype),
    **_everywhere("set", PlainCall(_set, each=120, booked=True)),
    **_everywhere("frozenset", PlainCall(_frozenset, each=120, booked=True)),
    **_everywhere("complex", PlainCall(_complex, _SMALL)),
    **_everywhere("range", PlainCall(_range, _SMALL)),
    **_everywhere("xrange", PlainCall(_range, _SMALL)),
    **_everywhere("slice", PlainCall(_slice, _SMALL)),
    **_everywhere("bytearray", PlainCall(_bytearray, 60, 2)),
    **_everywhere("bytes", PlainCall(_bytes, 40, 1)),
    **_of_numpy("multiarray.scalar", PlainCall(_numpy_scalar, _SMALL, 4)),
    **_of_numpy("multiarray._reconstruct", PlainCall(_numpy_array)),
    **_of_numpy("numeric._frombuffer", PlainCall(_from_buffer, each=2)),
    **{
        f"{module}.{kind}": PlainCall(_path(kind), each=2)
        for module in ("pathlib", "pathlib._local")
        for kind in PATHS
    },
}
NAMES = ("torch.Tensor", "numpy.ndarray")  # of classes that only calls get
GLOBALS: dict[str, Any] = {
    **{
        f"{m}.{k.__name__}": k
        for m in ("builtins", "__builtin__")
        for k in (int, float, bool, str, list, dict, tuple)
    },
    "__builtin__.long": int,
    "__builtin__.unicode": str,
    **{name: Function(name, None) for name in NAMES},
}
for _known in _LAYOUTS:
    GLOBALS[_known] = _LAYOUTS[_known]
_DEQUANTIZE = "It is a quantized tensor: save t.dequantize() with PyTorch"
HINTS = {
    "torch.complex32": "Save t.to(torch.complex64) with PyTorch",
    "torch._utils._rebuild_qtensor": _DEQUANTIZE,
    "torch._utils._rebuild_nested_tensor": "It is a nested tensor: save t.unbind() with PyTorch",
    "torch._utils._rebuild_wrapper_subclass": "Save the plain tensor in it with PyTorch",
    "torch._utils._rebuild_device_tensor_from_numpy": "Save t.cpu() with PyTorch",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "Save t.cpu() with PyTorch",
    "torch.nn.parameter.UninitializedParameter": "Run the lazy module once, and save it then",
    "torch.nn.parameter.UninitializedBuffer": "Run the lazy module once, and save it then",
    "numpy.random._pickle.__generator_ctor": "Save rng.bit_generator.state with PyTorch",
    "numpy.random._pickle.__randomstate_ctor": "Save rng.get_state() with PyTorch",
}


def hint_for(module: str, name: str) -> str:
    """Return what to save instead of an object of a class that is refused."""
    known = HINTS.get(f"{module}.{name}")
    if known or module.partition(".")[0] in ("torch", "numpy", "builtins", "posix", "os"):
        return known or ""
    return (
        f"Load the file with PyTorch, and save what {name} holds as plain data: vars(x) of an "
        "object, dataclasses.asdict(x), x._asdict() of a named tuple, x.name of an Enum, "
        "x.state_dict() of a module"
    )
