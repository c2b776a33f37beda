"""Words of memory that several threads share, and calls by address, for compiled functions.

A word is eight bytes, named by its address. Every access here is sequentially consistent: what a
thread wrote before it stored a word is seen by any thread that loads that word.
"""

from __future__ import annotations

import platform
from typing import Any

from .jit import deferred, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
_ORDER = "seq_cst"
_X86 = platform.machine() in ("x86_64", "AMD64")


def _at(b: Any, address: Any) -> Any:
    return b.inttoptr(address, ir.IntType(64).as_pointer())


@spelled
def load(typing: Any, address: Any) -> Any:
    """Return the word at an address."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(_at(b, args[0]), ordering=_ORDER, align=8)

    return types.int64(types.int64), write


@spelled
def store(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at an address."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[1], _at(b, args[0]), ordering=_ORDER, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@spelled
def add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at an address, and return what it was."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _at(b, args[0]), args[1], ordering=_ORDER)

    return types.int64(types.int64, types.int64), write


@spelled
def exchange(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at an address, and return what it was."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("xchg", _at(b, args[0]), args[1], ordering=_ORDER)

    return types.int64(types.int64, types.int64), write


@spelled
def relax(typing: Any) -> Any:
    """Tell the processor that this thread waits in a loop."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if _X86:
            declare: Any = cgutils.get_or_insert_function
            kind = ir.FunctionType(ir.VoidType(), [])
            b.call(declare(b.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), write


@spelled
def call_words(typing: Any, function: Any, arguments: Any) -> Any:
    """Call a C function of words by its address; ``arguments`` is a tuple. It returns a word."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        unpack: Any = cgutils.unpack_tuple
        words = unpack(b, args[1])
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * len(words))
        return b.call(b.inttoptr(args[0], kind.as_pointer()), words)

    return types.int64(types.int64, arguments), write


@spelled
def ticks(typing: Any) -> Any:
    """Return the processor's counter of cycles; 0 where reading it may be forbidden."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not _X86:
            return ir.Constant(ir.IntType(64), 0)
        declare: Any = cgutils.get_or_insert_function
        kind = ir.FunctionType(ir.IntType(64), [])
        return b.call(declare(b.module, kind, "llvm.readcyclecounter"), [])

    return types.int64(), write
