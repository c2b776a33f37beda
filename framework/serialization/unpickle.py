"""A pickle reader that cannot run code, and cannot be made to take absurd memory.

A pickle is a program for a small stack machine. This one knows the instructions that data needs,
and resolves a global name only through the table it is given. There is no attribute access, no
class to instantiate, no call but of a function in the table. Python's own unpickler with a
restricted ``find_class`` would still let a file allocate gigabytes for its memo.

Dictionary keys are plain values or flat tuples of them: hashing a nest of tuples that share their
parts would take for ever.

Source:
    The instructions' documentation in Python's ``pickletools``, which also takes them apart here.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_MARK = object()
_PLAIN = (str, int, float, bool, bytes, type(None))
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING",
    "INT", "LONG", "FLOAT",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Refused(ValueError):
    """The pickle asks for something that is not data."""


class Function:
    """A global name that may be called; opaque to the pickle.

    Args:
        name: For messages.
        call: What a call does.
    """

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any] | None) -> None:
        self.name = name
        self.call = call

    def __repr__(self) -> str:
        return f"<{self.name}>"


def unpickle(stream: Any, find: Callable[[str, str], Any], persistent: Callable[[Any], Any]) -> Any:
    """Run one pickle from a binary stream and leave the stream behind it.

    Args:
        stream: Has ``read``, ``readline`` and ``tell``; reads no more than there is.
        find: The value for a global (module, name); raises ``Refused``.
        persistent: The value for a persistent id.

    Raises:
        Refused: It asks for anything that is not data.
        ValueError: It is damaged.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    at: int | None = 0
    try:
        for opcode, arg, place in pickletools.genops(stream):
            at = place
            name = opcode.name
            if name == "STOP":
                return stack.pop()
            _step(name, arg, stack, memo, find, persistent)
    except Refused as error:
        raise Refused(f"{error} (at byte {at} of the pickle)") from None
    except (
        IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise ValueError(f"the pickle is damaged at byte {at}: {error!r}") from None
    raise ValueError("the pickle has no end")


def _step(
    name: str, arg: Any, stack: list[Any], memo: dict[int, Any],
    find: Callable[[str, str], Any], persistent: Callable[[Any], Any],
) -> None:  # fmt: skip
    if name in _VALUES:
        stack.append(arg)
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[arg])
    elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if arg is None else arg] = _value(stack[-1])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        count = _TUPLES[name]
        items = tuple(map(_value, stack[-count:]))
        if len(items) < count:
            raise IndexError("a tuple of more than there is")
        stack[-count:] = [items]
    elif name == "TUPLE":
        stack.append(tuple(_from_mark(stack)))
    elif name == "LIST":
        stack.append(_from_mark(stack))
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "APPEND":
        item = _value(stack.pop())
        _top(stack, list).append(item)
    elif name == "APPENDS":
        more = _from_mark(stack)
        _top(stack, list).extend(more)
    elif name == "SETITEM":
        item, key = _value(stack.pop()), stack.pop()
        _top(stack, dict)[_key(key)] = item
    elif name in ("SETITEMS", "DICT"):
        pairs = _from_mark(stack)
        if name == "DICT":
            stack.append({})
        target = _top(stack, dict)
        for key, item in zip(pairs[0::2], pairs[1::2], strict=True):
            target[_key(key)] = item
    elif name == "ADDITEMS":
        keys = _from_mark(stack)
        _top(stack, set).update(map(_key, keys))
    elif name == "GLOBAL":
        module, _, what = arg.partition(" ")
        stack.append(find(module, what))
    elif name == "STACK_GLOBAL":
        what, module = stack.pop(), stack.pop()
        if type(what) is not str or type(module) is not str:
            raise TypeError("the name of a global is no string")
        stack.append(find(module, what))
    elif name == "REDUCE":
        args, function = stack.pop(), stack.pop()
        if type(function) is not Function or function.call is None or type(args) is not tuple:
            raise Refused(f"it calls {function!r}, which is no function for building data")
        stack.append(function.call(*args))
    elif name == "BUILD":
        _build(stack[-2], stack[-1])
        stack.pop()
    elif name == "BINPERSID":
        stack.append(persistent(stack.pop()))
    elif name == "POP":
        stack.pop()
    elif name == "POP_MARK":
        _from_mark(stack)
    elif name not in ("PROTO", "FRAME"):
        raise Refused(f"it uses the instruction {name}, which data does not need")


def _value(item: Any) -> Any:
    if item is _MARK:
        raise ValueError("a mark where a value should be")
    return item


def _from_mark(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    items.reverse()
    return items


def _top(stack: list[Any], kind: type) -> Any:
    if not isinstance(stack[-1], kind):
        raise TypeError(f"{type(stack[-1]).__name__} where a {kind.__name__} should be")
    return stack[-1]


def _key(key: Any) -> Any:
    if type(key) in _PLAIN or (type(key) is tuple and all(type(k) in _PLAIN for k in key)):
        return key
    raise Refused(f"a key is a {type(key).__name__}, and only plain values and flat tuples may be")


def _build(target: Any, state: Any) -> None:
    # The one attribute that PyTorch's state dicts carry: versions of the modules in it.
    if type(target) is not OrderedDict or type(state) is not dict or set(state) != {"_metadata"}:
        raise Refused(f"it sets attributes of a {type(target).__name__}")
    target._metadata = state["_metadata"]  # type: ignore[attr-defined]
