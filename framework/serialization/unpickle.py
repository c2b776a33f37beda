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
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import OutOfMemoryError, SerializationError
from .budgets import DAMAGE, OBJECT, Budget, OverBudgetError, Refused

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
_PAIR = 80  # bytes of an item in a dict or set
_COSTS = {  # bytes of what an instruction builds, and of its place on the stack and in a container
    "EMPTY_DICT": 80, "DICT": 80, "EMPTY_LIST": 72, "LIST": 72, "EMPTY_SET": 240, "TUPLE": 64,
    "TUPLE1": 64, "TUPLE2": 72, "TUPLE3": 80, "BININT": 44, "LONG1": 48, "LONG4": 48, "LONG": 48,
    "INT": 48, "BINFLOAT": 40, "FLOAT": 40, "BINPERSID": OBJECT, "MARK": 16,
    "GLOBAL": 160, "STACK_GLOBAL": 160,
}  # fmt: skip


class Function:
    """A global name that may be called; opaque to the pickle.

    Args:
        name: For messages.
        call: What a call does.
        base: Bytes that a call takes.
        each: Bytes more for each item or letter of its arguments.
    """

    __slots__ = ("base", "call", "each", "name")

    def __init__(
        self, name: str, call: Callable[..., Any] | None, base: int = OBJECT, each: int = 16
    ) -> None:
        self.name = name
        self.call = call
        self.base, self.each = base, each

    def __repr__(self) -> str:
        return f"<{self.name}>"


def unpickle(
    stream: Any, find: Callable[[str, str], Any], persistent: Callable[[Any], Any],
    failed: Callable[[], BaseException | None] = lambda: None,
) -> Any:  # fmt: skip
    """Run one pickle from a binary stream and leave the stream behind it.

    Args:
        stream: Has ``read``, ``readline`` and ``tell``; reads no more than there is.
        find: The value for a global (module, name); raises ``Refused``.
        persistent: The value for a persistent id.
        failed: An error of the caller's own, which is none of the file.

    Raises:
        Refused: It asks for anything that is not data.
        ValueError: It is damaged.
    """
    begin = stream.tell()
    budget = Budget(0, lambda: stream.tell() - begin)
    stack: list[Any] = []
    memo = Memo(budget)
    at: int | None = 0
    try:
        for opcode, arg, place in pickletools.genops(stream):
            at = place
            name = opcode.name
            budget.spend(_COSTS.get(name, 8))
            if type(arg) in (str, bytes) or (type(arg) is int and arg > 1 << 60):
                budget.spend(sys.getsizeof(arg))
            if name == "STOP":
                return _value(stack.pop())
            _step(name, arg, stack, memo, find, persistent, budget)
    except Refused as error:
        raise Refused(f"{error} (at byte {at} of the pickle)") from None
    except (SerializationError, OutOfMemoryError):
        raise
    except OverBudgetError as error:
        raise OverBudgetError(f"{error} (at byte {at} of the pickle)") from None
    except DAMAGE as error:
        if error is failed():
            raise
        raise ValueError(f"the pickle is damaged at byte {at}: {error!r:.300}") from None
    raise ValueError("the pickle has no end")


def _step(
    name: str, arg: Any, stack: list[Any], memo: Memo,
    find: Callable[[str, str], Any], persistent: Callable[[Any], Any], budget: Budget,
) -> None:  # fmt: skip
    if name in _VALUES:
        stack.append(arg)
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo.get(arg))
    elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo.put(arg, _value(stack[-1]))
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
        budget.spend(_PAIR)
        _top(stack, dict)[budget.key(_key(key))] = item
    elif name in ("SETITEMS", "DICT"):
        pairs = _from_mark(stack)
        if name == "DICT":
            stack.append({})
        target = _top(stack, dict)
        budget.spend(_PAIR * (len(pairs) // 2))
        for key, item in zip(pairs[0::2], pairs[1::2], strict=True):
            target[budget.key(_key(key))] = item
    elif name == "ADDITEMS":
        keys = _from_mark(stack)
        target = _top(stack, set)
        for key in keys:
            budget.spend(_PAIR)
            target.add(budget.key(_key(key)))
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
            what = shown(function)
            raise Refused(f"it calls {what}, which is no function for building data")
        sizes = (len(a) for a in args if isinstance(a, str | list | tuple | dict))
        budget.spend(function.base + function.each * sum(sizes))
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


class Memo:
    """What a pickle remembers: in a list, since nearly all count from 0, and a dict for the rest.

    Args:
        budget: Where entries are booked.
    """

    __slots__ = ("_budget", "_others", "_row")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._row: list[Any] = []
        self._others: dict[int, Any] = {}

    def put(self, number: int | None, value: Any) -> None:
        """Remember ``value`` under a number, or under the next."""
        if number is None:
            number = len(self._row) + len(self._others)
        if number == len(self._row):
            self._row.append(value)
        elif number < len(self._row):
            self._row[number] = value
        else:
            self._budget.spend(2 * _PAIR)
            self._others[number] = value

    def get(self, number: int) -> Any:
        """What was remembered."""
        return self._row[number] if number < len(self._row) else self._others[number]


def shown(value: Any) -> str:
    """A value for a message: a nest that shares its parts would have no end as text."""
    if type(value) in (int, float, bool, str, bytes, type(None), Function):
        try:
            return f"{value!r:.99}"
        except ValueError:  # an integer of very many digits
            return "a huge int"
    return f"a {type(value).__name__}"


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
