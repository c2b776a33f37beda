"""A safe unpickler that cannot run code and bounds memory and time.

A pickle is a program for a small stack machine. This one knows the instructions that data needs,
and resolves a global name only through the table it is given. There is no attribute access, no
class to instantiate, no call but of a function in the table. Python's own unpickler with a
restricted ``find_class`` would still let a file allocate gigabytes for its memo.

Dictionary keys are plain values or flat tuples of them: hashing a nest of tuples that share their
parts would take for ever. Memory and instructions are booked in a :class:`Budget`.

Source:
    The instructions' documentation in Python's ``pickletools``.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import OutOfMemoryError, SerializationError
from .size_budget import BASE, DAMAGE, OBJECT, Budget, OverBudgetError, UnsafeContentError

_PLAIN = (str, int, float, bool, bytes, type(None))
_MEASURED = (str, bytes, bytearray, list, tuple, dict)
_PAIR = 80  # bytes of an item in a dict or set
_DIGITS = 4300  # Python's own limit for an integer in decimal
_LONGEST_LINE = 1000  # letters of the name of a module or of what is in it
_DEEPEST = 10_000  # open marks; Python's pickler gives up far before


class Function:
    """A global name that may be called; opaque to the pickle.

    Args:
        name: For messages.
        call: What a call does.
        base: Bytes that a call takes.
        each: Bytes more for each item or letter of its arguments.
        new: Whether an instance may be made without a call, to get its attributes later.
        booked: Whether ``call`` takes the budget first.
    """

    __slots__ = ("base", "booked", "call", "each", "name", "new")

    def __init__(
        self,
        name: str,
        call: Callable[..., Any] | None,
        base: int = OBJECT,
        each: int = 16,
        new: bool = False,
        booked: bool = False,
    ) -> None:
        self.name = name
        self.call = call
        self.base, self.each = base, each
        self.new, self.booked = new, booked

    def __repr__(self) -> str:
        return f"<{self.name}>"


def unpickle(
    stream: Any,
    find: Callable[[str, str], Any],
    persistent: Callable[[Any], Any],
    failed: Callable[[], BaseException | None] = lambda: None,
    base: int = BASE,
    complete: Callable[[Any, Any, Budget], bool] = lambda target, state, budget: False,
) -> Any:
    """Load one pickle from a binary stream, leaving the stream behind it.

    Args:
        stream: Has ``read``, ``readline``, ``seek`` and ``tell``.
        find: The value for a global (module, name); raises ``UnsafeContentError``.
        persistent: The value for a persistent id.
        failed: An error of the caller's own, which is none of the file.
        base: Bytes that it may take besides those in proportion to its length.
        complete: Sets the state of an object that a call built; returns False if it may not.

    Raises:
        UnsafeContentError: It asks for anything that is not data.
        ValueError: It is damaged.
    """
    begin = stream.tell()
    budget = Budget(0, lambda: stream.tell() - begin, base)
    machine = _Machine(stream, find, persistent, budget)
    machine.complete = complete
    allowed = budget.steps(0)
    try:
        for done, code in enumerate(iter(partial(stream.read, 1), b"")):
            if done >= allowed:
                allowed = budget.steps(done)
            if code == b".":
                return machine.stack.pop()
            cost, step = _STEPS.get(code) or _unknown(code)
            budget.spent += cost
            if budget.spent > budget.limit:
                budget.check()
            step(machine)
    except UnsafeContentError as error:
        raise UnsafeContentError(f"{error} ({_place(stream, begin)})", error.hint) from None
    except (SerializationError, OutOfMemoryError):
        raise
    except OverBudgetError as error:
        raise OverBudgetError(f"{error} ({_place(stream, begin)})") from None
    except DAMAGE as error:
        if error is failed():
            raise
        where = _place(stream, begin)
        raise ValueError(f"the pickle is damaged {where}: {error!r:.300}") from None
    raise ValueError("the pickle has no end")


def _place(stream: Any, begin: int) -> str:
    return f"at byte {stream.tell() - begin} of the pickle"  # where reading had come


def _unknown(code: bytes) -> Any:
    known = {op.code: op for op in pickletools.opcodes}.get(code.decode("latin1"))
    if known is None:
        raise ValueError(f"{code!r} is no instruction")
    raise UnsafeContentError(f"it uses the instruction {known.name}, which data does not need")


class _Machine:
    """The unpickling machine: stack, marks, memo, and input."""

    __slots__ = (
        "_find",
        "below",
        "budget",
        "complete",
        "end",
        "memo",
        "named",
        "persistent",
        "read",
        "stack",
        "stream",
    )

    def __init__(
        self,
        stream: Any,
        find: Callable[[str, str], Any],
        persistent: Callable[[Any], Any],
        budget: Budget,
    ) -> None:
        begin = stream.tell()
        self.end = stream.seek(0, 2)
        stream.seek(begin)
        self.stream, self.read = stream, stream.read
        self._find, self.persistent, self.budget = find, persistent, budget
        self.complete: Callable[[Any, Any, Budget], bool] = lambda target, state, budget: False
        self.named: dict[tuple[str, str], Any] = {}
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo = Memo(budget)

    def take(self, count: int) -> bytes:
        """Read bytes; a length is trusted only once the bytes are there."""
        if not 0 <= count <= 64 and not 0 <= count <= self.end - self.stream.tell():
            raise ValueError(f"{count} bytes are expected, more than there are")
        data: bytes = self.read(count)
        if len(data) != count:
            raise ValueError(f"{count} bytes are expected, more than there are")
        return data

    def line(self, most: int) -> str:
        """Read up to the end of the line."""
        data: bytes = self.stream.readline(most + 2)
        if data[-1:] != b"\n":
            raise ValueError(f"a line has more than {most} letters, or no end")
        return data[:-1].decode()

    def find(self, module: str, what: str) -> Any:
        """Resolve a global name, cached by name."""
        if (module, what) not in self.named:
            self.named[module, what] = self._find(module, what)
        return self.named[module, what]

    def from_mark(self) -> list[Any]:
        """Pop what was pushed since the last mark."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def top(self, kind: type | tuple[type, ...]) -> Any:
        """Return the container on top of the stack."""
        if not isinstance(self.stack[-1], kind):
            names = getattr(kind, "__name__", "list")
            raise TypeError(f"{type(self.stack[-1]).__name__} where a {names} should be")
        return self.stack[-1]


# Instructions: each is a function of the machine


def _number(format: str) -> Callable[[_Machine], None]:
    layout = struct.Struct(format)

    def push(m: _Machine) -> None:
        m.stack.append(layout.unpack(m.read(layout.size))[0])

    return push


def _sized(format: str, decode: Callable[[bytes], Any]) -> Callable[[_Machine], None]:
    """Push a value that is preceded by its length."""
    layout = struct.Struct(format)

    def push(m: _Machine) -> None:
        (count,) = layout.unpack(m.read(layout.size))
        value = decode(m.take(count))
        m.budget.spend(sys.getsizeof(value))
        m.stack.append(value)

    return push


def _text(data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


def _letters(data: bytes) -> str:
    return str(data, "latin1")


def _int1(m: _Machine) -> None:
    m.stack.append(m.read(1)[0])


def _decimal(m: _Machine) -> None:
    digits = m.line(_DIGITS)
    flag = {"00": False, "01": True}.get(digits)
    m.stack.append(int(digits) if flag is None else flag)


def _decimal_long(m: _Machine) -> None:
    m.stack.append(int(m.line(_DIGITS).removesuffix("L")))


def _decimal_float(m: _Machine) -> None:
    m.stack.append(float(m.line(_DIGITS)))


def _constant(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _empty(kind: type) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(kind())


def _get4(m: _Machine) -> None:
    m.stack.append(m.memo.get(int.from_bytes(m.take(4), "little")))


def _put(format: str) -> Callable[[_Machine], None]:
    layout = struct.Struct(format)
    return lambda m: m.memo.put(layout.unpack(m.read(layout.size))[0], m.stack[-1])


def _get1(m: _Machine) -> None:  # the most frequent of all
    m.stack.append(m.memo.get(m.read(1)[0]))


def _memoize(m: _Machine) -> None:
    m.memo.put(None, m.stack[-1])


def _mark(m: _Machine) -> None:
    if len(m.below) >= _DEEPEST:
        raise OverBudgetError(f"more than {_DEEPEST} containers are open")
    m.below.append(m.stack)
    m.stack = []


def _pop(m: _Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:  # then a mark is on top
        m.stack = m.below.pop()


def _pop_mark(m: _Machine) -> None:
    m.from_mark()


def _skip(count: int) -> Callable[[_Machine], None]:
    def skip(m: _Machine) -> None:
        m.take(count)

    return skip


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        items = tuple(m.stack[-count:])
        if len(items) < count:
            raise IndexError("a tuple of more than there is")
        m.stack[-count:] = [items]

    return push


def _tuple(m: _Machine) -> None:
    items = tuple(m.from_mark())
    m.stack.append(items)


def _list(m: _Machine) -> None:
    items = m.from_mark()
    m.stack.append(items)


def _append(m: _Machine) -> None:
    item = m.stack.pop()
    m.top((list, deque)).append(item)


def _appends(m: _Machine) -> None:
    more = m.from_mark()
    m.top((list, deque)).extend(more)


def _set_pairs(m: _Machine, target: Any, pairs: list[Any]) -> None:
    before = sys.getsizeof(target)
    for key, item in zip(pairs[0::2], pairs[1::2], strict=True):
        target[plain_key(key, m.budget)] = item
    m.budget.spend(sys.getsizeof(target) - before)  # at most some 100 for what is on the stack


def _setitem(m: _Machine) -> None:
    item, key = m.stack.pop(), m.stack.pop()
    _set_pairs(m, m.top(dict), [key, item])


def _setitems(m: _Machine) -> None:
    pairs = m.from_mark()
    _set_pairs(m, m.top(dict), pairs)


def _dict(m: _Machine) -> None:
    pairs = m.from_mark()
    m.stack.append({})
    _set_pairs(m, m.stack[-1], pairs)


def _additems(m: _Machine) -> None:
    keys = m.from_mark()
    target = m.top(set)
    m.budget.spend(_PAIR * len(keys))
    target.update(plain_key(key, m.budget) for key in keys)


def _global(m: _Machine) -> None:
    module = m.line(_LONGEST_LINE)
    m.stack.append(m.find(module, m.line(_LONGEST_LINE)))


def _stack_global(m: _Machine) -> None:
    what, module = m.stack.pop(), m.stack.pop()
    if type(what) is not str or type(module) is not str:
        raise TypeError("the name of a global is no string")
    m.stack.append(m.find(module, what))


def _reduce(m: _Machine) -> None:
    args, function = m.stack.pop(), m.stack.pop()
    if type(function) is not Function or function.call is None or type(args) is not tuple:
        raise UnsafeContentError(
            f"it calls {short_repr(function)}, which is no function for building data"
        )
    _call(m, function, args)


def _call(m: _Machine, function: Function, args: tuple[Any, ...]) -> None:
    sizes = sum(len(a) for a in args if isinstance(a, _MEASURED))
    m.budget.spend(function.base + function.each * (sizes + len(args)))
    assert function.call is not None
    m.stack.append(function.call(m.budget, *args) if function.booked else function.call(*args))


def _new_object(m: _Machine) -> None:
    args, function = m.stack.pop(), m.stack.pop()
    if type(function) is not Function or not function.new or args != ():
        raise UnsafeContentError(
            f"it uses the instruction NEWOBJ for {short_repr(function)}, which data does not need"
        )
    _call(m, function, args)


def _frozenset(m: _Machine) -> None:
    keys = m.from_mark()
    m.budget.spend(_PAIR * len(keys))
    m.stack.append(frozenset(plain_key(key, m.budget) for key in keys))


def _build(m: _Machine) -> None:
    # Of a dict, only what PyTorch's state dicts carry: versions of the modules in it.
    state, target = m.stack.pop(), m.stack[-1]
    if m.complete(target, state, m.budget):
        return
    if type(target) is not OrderedDict or type(state) is not dict or set(state) != {"_metadata"}:
        raise UnsafeContentError(f"it sets attributes of a {type(target).__name__}")
    target._metadata = state["_metadata"]  # type: ignore[attr-defined]


def _persistent(m: _Machine) -> None:
    m.stack.append(m.persistent(m.stack.pop()))


# By code: the bytes of what is built, with its place on the stack and in a container (what takes
# them by its size books that itself), and the step
_STEPS: dict[bytes, tuple[int, Callable[[_Machine], None]]] = {
    pickle.NONE: (8, _constant(None)),
    pickle.NEWTRUE: (8, _constant(True)),
    pickle.NEWFALSE: (8, _constant(False)),
    pickle.INT: (48, _decimal),
    pickle.LONG: (48, _decimal_long),
    pickle.FLOAT: (32, _decimal_float),
    pickle.BININT: (40, _number("<i")),
    pickle.BININT1: (8, _int1),  # Python has each of them once
    pickle.BININT2: (40, _number("<H")),
    pickle.LONG1: (8, _sized("<B", pickle.decode_long)),
    pickle.LONG4: (8, _sized("<i", pickle.decode_long)),
    pickle.BINFLOAT: (32, _number(">d")),
    pickle.BINUNICODE: (8, _sized("<I", _text)),
    pickle.SHORT_BINUNICODE: (8, _sized("<B", _text)),
    pickle.BINUNICODE8: (8, _sized("<Q", _text)),
    pickle.BINBYTES: (8, _sized("<I", bytes)),
    pickle.SHORT_BINBYTES: (8, _sized("<B", bytes)),
    pickle.BINBYTES8: (8, _sized("<Q", bytes)),
    pickle.BINSTRING: (8, _sized("<i", _letters)),
    pickle.SHORT_BINSTRING: (8, _sized("<B", _letters)),
    pickle.EMPTY_DICT: (88, _empty(dict)),
    pickle.EMPTY_LIST: (80, _empty(list)),
    pickle.EMPTY_SET: (240, _empty(set)),
    pickle.FROZENSET: (240, _frozenset),
    pickle.BYTEARRAY8: (8, _sized("<Q", bytearray)),
    pickle.EMPTY_TUPLE: (8, _constant(())),
    pickle.DICT: (88, _dict),
    pickle.LIST: (80, _list),
    pickle.TUPLE: (64, _tuple),
    pickle.TUPLE1: (64, _tuple_of(1)),
    pickle.TUPLE2: (72, _tuple_of(2)),
    pickle.TUPLE3: (80, _tuple_of(3)),
    pickle.APPEND: (0, _append),
    pickle.APPENDS: (0, _appends),
    pickle.SETITEM: (0, _setitem),
    pickle.SETITEMS: (0, _setitems),
    pickle.ADDITEMS: (8, _additems),
    pickle.BINGET: (8, _get1),
    pickle.LONG_BINGET: (8, _get4),
    pickle.BINPUT: (8, _put("<B")),
    pickle.LONG_BINPUT: (8, _put("<I")),
    pickle.MEMOIZE: (8, _memoize),
    pickle.MARK: (16, _mark),
    pickle.POP: (0, _pop),
    pickle.POP_MARK: (0, _pop_mark),
    pickle.GLOBAL: (8, _global),
    pickle.STACK_GLOBAL: (160, _stack_global),
    pickle.REDUCE: (8, _reduce),
    pickle.NEWOBJ: (8, _new_object),
    pickle.BUILD: (8, _build),
    pickle.BINPERSID: (OBJECT, _persistent),
    pickle.PROTO: (0, _skip(1)),
    pickle.FRAME: (0, _skip(8)),
}


class Memo:
    """The memo of a pickle: a list for consecutive numbers, a dict for others.

    Args:
        budget: Where entries are booked.
    """

    __slots__ = ("_budget", "_others", "_row")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._row: list[Any] = []
        self._others: dict[int, Any] = {}

    def put(self, number: int | None, value: Any) -> None:
        """Store ``value`` under a number, or under the next."""
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
        """Return a stored value."""
        return self._row[number] if number < len(self._row) else self._others[number]


def short_repr(value: Any) -> str:
    """Format a value for a message, bounded even for nested values that share parts."""
    if type(value) in (int, float, bool, str, bytes, type(None), Function):
        try:
            return f"{value!r:.99}"
        except ValueError:  # an integer of very many digits
            return "a huge int"
    return f"a {type(value).__name__}"


def plain_key(key: Any, budget: Budget) -> Any:
    """Return a key of a mapping or set, after its hashing is booked.

    Raises:
        UnsafeContentError: It is neither a plain value nor a flat tuple of them.
    """
    if type(key) in _PLAIN or (type(key) is tuple and all(type(k) in _PLAIN for k in key)):
        return budget.key(key)
    raise UnsafeContentError(
        f"a key is a {type(key).__name__}, and only plain values and flat tuples may be"
    )
