"""The functions of a kernel's library, written out: what Python, threads and tapes call it by.

The entry is a function as an extension module has them. It looks whether the arguments are what the
kernel was compiled for, by comparing the addresses of their types, and reads arrays where NumPy has
their fields; it lets go of the interpreter's lock while the kernel runs. If an argument is another,
it returns ``NotImplemented``. So a call costs a fraction of a microsecond, and no process needs
Numba for it.

It knows where the fields of an array, an int and a float lie in memory: what is public of NumPy's
and Python's C interface (``entry.layout_known`` looks at one array before any entry is used).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils as _cgutils
from numba.core import types as _types
from numba.np import arrayobj as _arrayobj

from .entry import (
    COUNT,
    DATA,
    DTYPE,
    ENTRY,
    FAILED,
    FIXED,
    FLAGS,
    ITEMS,
    NDIM,
    PACKED,
    RETURNED_TRUE,
    SHAPE,
    SHARED,
    STRIDES,
    TABLE,
    TYPE,
    VALUE,
    WORDS,
)
from .fingerprint import of_source

SOURCE = of_source(__file__)  # as it is imported

cgutils: Any = _cgutils
types: Any = _types
arrayobj: Any = _arrayobj

SYMBOLS = [ENTRY, WORDS, SHARED, PACKED, TABLE]
_I1, _I8, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
_POINTER = _I8.as_pointer()
_C, _F, _ALIGNED, _WRITEABLE = 1, 2, 0x100, 0x400


class CannotTranslate(Exception):
    """The kernel takes or returns something that an entry does not know."""


def write_all(made: Any, module: Any, words: list[str], declared: bool) -> None:
    """Write the functions that a kernel's library has into a module.

    Args:
        made: The kernel, compiled.
        module: Of its library.
        words: The types of its arguments.
        declared: Whether all arguments that fit are taken, instead of those of these types alone.

    Raises:
        CannotTranslate: An entry does not know what the kernel takes or returns.
    """
    Entry(made, module, words, declared).write()
    if made.signature.return_type == types.none:
        SharedEntry(made, module, words, declared).write()
    if made.signature.return_type in (types.none, types.boolean):
        _write_packed(made, module, words)
    if all(w == "i8" for w in words):
        _write_words(made, module)


class Entry:
    """Writes ``PyObject *entry(PyObject *self, PyObject **args, ssize_t n)``."""

    name = ENTRY
    before = 0  # arguments before those of the kernel

    def __init__(self, made: Any, module: Any, words: list[str], declared: bool) -> None:
        self.made, self.module, self.words, self.declared = made, module, words, declared
        kind = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _I64])
        self.function = ir.Function(module, kind, self.name)
        count = FIXED + 2 * len(words)
        self.table = module.globals.get(TABLE)
        if self.table is None:
            self.table = ir.GlobalVariable(module, ir.ArrayType(_I64, count), TABLE)
            self.table.initializer = ir.Constant(self.table.type.pointee, [0] * count)
        self.b = ir.IRBuilder(self.function.append_basic_block("first"))

    def write(self) -> None:
        """Write all of it."""
        b = self.b
        self.other = self.function.append_basic_block("other")
        count = self.before + len(self.words)
        self._go_on(b.icmp_signed("==", self.function.args[2], _number(count)))
        objects = [b.load(b.gep(self.function.args[1], [_number(k)])) for k in range(count)]
        first, objects = objects[: self.before], objects[self.before :]
        for k, (x, word) in enumerate(zip(objects, self.words, strict=True)):
            self._check(k, x, word)
        given = [
            self._read(x, w, t)
            for x, w, t in zip(objects, self.words, self.made.signature.args, strict=True)
        ]
        words = [self._int(x) for x in first]
        state = b.call(self._outside("PyEval_SaveThread", _POINTER, []), [])
        is_error, result = self._run(words, given)
        b.call(self._outside("PyEval_RestoreThread", ir.VoidType(), [_POINTER]), [state])
        with b.if_then(is_error, likely=False):
            b.ret(b.call(self._outside("PyErr_NoMemory", _POINTER, []), []))
        b.ret(self._python(self.made.signature.return_type, result))
        b.position_at_end(self.other)
        b.ret(self._kept(b.inttoptr(self._word(0), _POINTER)))

    def _run(self, words: list[Any], given: list[Any]) -> tuple[Any, Any]:
        status, result = self._call(self.b, given)
        return status.is_error, result

    def _call(self, b: Any, given: list[Any]) -> Any:
        # The kernel, not written into each of its entries: it is there once.
        context, signature = self.made.target_context, self.made.signature
        kernel = context.declare_function(self.module, self.made.fndesc)
        return context.call_conv.call_function(
            b, kernel, signature.return_type, signature.args, given, attrs=("noinline",)
        )

    def _outside(self, name: str, result: Any, args: list[Any]) -> Any:
        kind = ir.FunctionType(result, args)
        return cgutils.get_or_insert_function(self.module, kind, name)

    def _kept(self, x: Any) -> Any:
        self.b.call(self._outside("Py_IncRef", ir.VoidType(), [_POINTER]), [x])
        return x

    def _word(self, k: int) -> Any:
        return self.b.load(self.b.gep(self.table, [_number(0), _number(k)]))

    def _field(self, x: Any, offset: int, kind: Any = _I64) -> Any:
        at = self.b.gep(x, [_number(offset)])
        return self.b.load(self.b.bitcast(at, kind.as_pointer()))

    def _go_on(self, condition: Any) -> None:
        following = self.function.append_basic_block("go_on")
        self.b.cbranch(condition, following, self.other)
        self.b.position_at_end(following)

    def _check(self, k: int, x: Any, word: str) -> None:
        b = self.b
        of_type = b.icmp_signed("==", self._field(x, TYPE), self._word(FIXED + 2 * k))
        self._go_on(of_type)
        if "x" in word:
            count = int(word.partition("x")[2])
            self._go_on(b.icmp_signed("==", self._field(x, COUNT), _number(count)))
            for item in self._items(x, count):
                known = self._word(FIXED + 2 * k + 1)
                self._go_on(b.icmp_signed("==", self._field(item, TYPE), known))
            return
        _, _, rest = word.partition(":")
        if not rest:
            return
        layout = rest.lstrip("0123456789")
        ndim = int(rest[: -len(layout)])
        fits = b.icmp_signed("==", self._field(x, DTYPE), self._word(FIXED + 2 * k + 1))
        found = self._field(x, NDIM, _I32)
        fits = b.and_(fits, b.icmp_signed("==", found, ir.Constant(_I32, ndim)))
        mask, wanted = _flags(layout, self.declared)
        flags = b.and_(self._field(x, FLAGS, _I32), ir.Constant(_I32, mask))
        self._go_on(b.and_(fits, b.icmp_signed("==", flags, ir.Constant(_I32, wanted))))

    def _read(self, x: Any, word: str, kind: Any) -> Any:
        b, context = self.b, self.made.target_context
        if isinstance(kind, types.Array):
            return self._array(x, kind)
        if "x" in word:
            items = [self._int(item) for item in self._items(x, len(kind))]
            return context.make_tuple(b, kind, items)
        if word == "-":
            return context.get_dummy_value()
        if word == "b1":
            return b.icmp_signed("==", b.ptrtoint(x, _I64), self._word(1))
        if word == "i8":
            return self._int(x)
        if word == "u8":
            return b.call(self._outside("PyLong_AsUnsignedLongLongMask", _I64, [_POINTER]), [x])
        read = self._field(x, VALUE, context.get_data_type(kind))
        return context.data_model_manager[kind].from_data(b, read)

    def _items(self, x: Any, count: int) -> list[Any]:
        return [self._field(x, ITEMS + 8 * k, _POINTER) for k in range(count)]

    def _int(self, x: Any) -> Any:
        b = self.b
        found = b.call(self._outside("PyLong_AsLongLong", _I64, [_POINTER]), [x])
        with b.if_then(b.icmp_signed("==", found, _number(-1)), likely=False):
            error = b.call(self._outside("PyErr_Occurred", _POINTER, []), [])
            nothing = ir.Constant(_POINTER, None)
            with b.if_then(b.icmp_unsigned("!=", error, nothing)):
                b.ret(nothing)  # it has more than 64 bits
        return found

    def _array(self, x: Any, kind: Any) -> Any:
        b, context = self.b, self.made.target_context
        array = context.make_array(kind)(context, b)
        whole = _I64.as_pointer()
        lines = [b.inttoptr(self._field(x, at), whole) for at in (SHAPE, STRIDES)]
        shape, strides = (
            [b.load(b.gep(line, [_number(d)])) for d in range(kind.ndim)] for line in lines
        )
        element = context.get_data_type(kind.dtype)
        data = b.inttoptr(self._field(x, DATA), element.as_pointer())
        size = _number(context.get_abi_sizeof(element))
        arrayobj.populate_array(array, data, shape, strides, size, meminfo=None)
        return array._getvalue()

    def _python(self, kind: Any, value: Any) -> Any:
        # The result as an object.
        b = self.b
        if kind == types.none:
            return self._kept(self._none())
        if isinstance(kind, types.Boolean):
            make = self._outside("PyBool_FromLong", _POINTER, [_I64])
            return b.call(make, [b.zext(value, _I64)])
        if isinstance(kind, types.Integer):
            name = "PyLong_FromLongLong" if kind.signed else "PyLong_FromUnsignedLongLong"
            wide = b.sext(value, _I64) if kind.signed else b.zext(value, _I64)
            return b.call(self._outside(name, _POINTER, [_I64]), [wide])
        if isinstance(kind, types.Float):
            double = ir.DoubleType()
            wide = b.fpext(value, double) if kind.bitwidth < 64 else value
            return b.call(self._outside("PyFloat_FromDouble", _POINTER, [double]), [wide])
        if isinstance(kind, types.BaseTuple):
            items = [self._python(t, b.extract_value(value, k)) for k, t in enumerate(kind.types)]
            make = self._outside("PyTuple_New", _POINTER, [_I64])
            put = self._outside("PyTuple_SetItem", _I32, [_POINTER, _I64, _POINTER])
            whole = b.call(make, [_number(len(items))])
            for k, item in enumerate(items):
                b.call(put, [whole, _number(k), item])
            return whole
        raise CannotTranslate(f"it returns {kind}")

    def _none(self) -> Any:
        name = "_Py_NoneStruct"
        return self.module.globals.get(name) or ir.GlobalVariable(self.module, _I8, name)


class SharedEntry(Entry):
    """Writes an entry that shares a call out among threads: ``PyObject *shared(...)``.

    Its first arguments are the address of the pool's function that runs a job, the pool's words,
    how many chunks there are, how many helpers may join, the size of the range that is cut, and
    which arrays are cut along their first dim, a bit for each. Without such a bit the kernel's last
    two arguments are where its chunk begins and ends.
    """

    name = SHARED
    before = 6

    def _run(self, words: list[Any], given: list[Any]) -> tuple[Any, Any]:
        b = self.b
        run, pool, chunks, helpers, size, cut = words
        kept = [_I64, size, chunks, cut, *given]
        kind = ir.LiteralStructType([_I64, *[v.type for v in kept[1:]]])
        with b.goto_entry_block():
            job = b.alloca(kind)
        for k, value in enumerate([_number(0), *kept[1:]]):
            b.store(value, b.gep(job, [_index(0), _index(k)]))
        function = self._write_chunk(kind)
        arguments = [pool, b.ptrtoint(function, _I64), b.ptrtoint(job, _I64), chunks, helpers]
        of_words = ir.FunctionType(_I64, [_I64] * len(arguments)).as_pointer()
        b.call(b.inttoptr(run, of_words), arguments)
        failed = b.load(b.gep(job, [_index(0), _index(0)]))
        return b.icmp_signed("!=", failed, _number(0)), None

    def _write_chunk(self, kind: Any) -> Any:
        # word chunk(word job, word k): the kernel on one part of its range.
        function = ir.Function(self.module, ir.FunctionType(_I64, [_I64, _I64]), f"{SHARED}_chunk")
        function.linkage = "internal"
        b = ir.IRBuilder(function.append_basic_block("first"))
        job, k = b.inttoptr(function.args[0], kind.as_pointer()), function.args[1]
        _, size, chunks, cut, *given = (
            b.load(b.gep(job, [_index(0), _index(i)])) for i in range(len(kind.elements))
        )
        start = b.sdiv(b.mul(size, k), chunks)
        stop = b.sdiv(b.mul(size, b.add(k, _number(1))), chunks)
        for i, array in enumerate(self.made.signature.args):
            if isinstance(array, types.Array):
                given[i] = self._part(b, array, given[i], start, stop, b.and_(cut, _number(1 << i)))
        if self.words[-2:] == ["i8", "i8"]:
            whole = b.icmp_signed("==", cut, _number(0))
            given[-2:] = [b.select(whole, start, given[-2]), b.select(whole, stop, given[-1])]
        status, _ = self._call(b, given)
        with b.if_then(status.is_error, likely=False):
            b.store(_number(1), b.gep(job, [_index(0), _index(0)]))
        b.ret(_number(0))
        return function

    def _part(self, b: Any, kind: Any, value: Any, start: Any, stop: Any, bit: Any) -> Any:
        # The array from ``start`` to ``stop`` of its first dim, if ``bit`` is not 0.
        context = self.made.target_context
        array = context.make_array(kind)(context, b, value)
        shape, strides = (cgutils.unpack_tuple(b, t) for t in (array.shape, array.strides))
        if not shape:
            return value
        is_cut = b.icmp_signed("!=", bit, _number(0))
        shift = b.select(is_cut, b.mul(start, strides[0]), _number(0))
        shape[0] = b.select(is_cut, b.sub(stop, start), shape[0])
        data = b.inttoptr(b.add(b.ptrtoint(array.data, _I64), shift), array.data.type)
        part = context.make_array(kind)(context, b)
        arrayobj.populate_array(part, data, shape, strides, array.itemsize, meminfo=None)
        return part._getvalue()


def _index(k: int) -> Any:
    return ir.Constant(_I32, k)


def _flags(layout: str, declared: bool) -> tuple[int, int]:
    # (which flags of an array count, what they must be)
    wanted = {"C": _C, "F": _F, "A": 0}[layout[0]]
    mask = wanted
    if not declared:
        mask = {"C": _C, "F": _C | _F, "A": _C | _F}[layout[0]]
    if "u" not in layout:
        mask, wanted = mask | _ALIGNED, wanted | _ALIGNED
    if "r" not in layout:
        mask, wanted = mask | _WRITEABLE, wanted | _WRITEABLE
    elif not declared:
        mask |= _WRITEABLE
    return mask, wanted


def _write_words(made: Any, module: Any) -> None:
    # The kernel as a C function of words that returns a word.
    count = len(made.signature.args)
    function = ir.Function(module, ir.FunctionType(_I64, [_I64] * count), WORDS)
    b = ir.IRBuilder(function.append_basic_block("first"))
    context = made.target_context
    kernel = context.declare_function(module, made.fndesc)
    kind = made.signature.return_type
    _, result = context.call_conv.call_function(
        b, kernel, kind, made.signature.args, list(function.args)
    )
    b.ret(result if isinstance(kind, types.Integer) and kind.bitwidth == 64 else _number(0))


def _write_packed(made: Any, module: Any, kinds: list[str]) -> None:
    # word packed(word *arguments): the kernel with the arguments that ``packed`` packs. Returns
    # FAILED if it failed, RETURNED_TRUE if it returned True, else 0.
    function = ir.Function(module, ir.FunctionType(_I64, [_I64]), PACKED)
    b = ir.IRBuilder(function.append_basic_block("first"))
    context, signature = made.target_context, made.signature
    memory, place = b.inttoptr(function.args[0], _I64.as_pointer()), 0

    def following(count: int) -> list[Any]:
        nonlocal place
        place += count
        return [b.gep(memory, [_number(k)]) for k in range(place - count, place)]

    given = []
    for word, kind in zip(kinds, signature.args, strict=True):
        if isinstance(kind, types.Array):
            first, *rest = (b.load(at) for at in following(1 + 2 * kind.ndim))
            element = context.get_data_type(kind.dtype)
            array = context.make_array(kind)(context, b)
            data, size = b.inttoptr(first, element.as_pointer()), context.get_abi_sizeof(element)
            lines = rest[: kind.ndim], rest[kind.ndim :]
            arrayobj.populate_array(array, data, *lines, _number(size), meminfo=None)
            given.append(array._getvalue())
        elif "x" in word:
            given.append(context.make_tuple(b, kind, [b.load(at) for at in following(len(kind))]))
        elif word == "-":
            given.append(context.get_dummy_value())
        elif word == "b1":
            given.append(b.icmp_signed("!=", b.load(following(1)[0]), _number(0)))
        else:
            at = b.bitcast(following(2)[0], context.get_data_type(kind).as_pointer())
            given.append(context.data_model_manager[kind].from_data(b, b.load(at)))
    kernel = context.declare_function(module, made.fndesc)
    status, result = context.call_conv.call_function(
        b, kernel, signature.return_type, signature.args, given, attrs=("noinline",)
    )
    found = _number(0)
    if signature.return_type == types.boolean:
        found = b.select(b.icmp_signed("!=", result, result.type(0)), _number(RETURNED_TRUE), found)
    b.ret(b.select(status.is_error, _number(FAILED), found))


def _number(n: int) -> Any:
    return ir.Constant(_I64, n)
