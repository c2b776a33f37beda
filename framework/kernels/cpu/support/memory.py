"""Arrays over memory that others hold, for compiled functions (``atomics`` reads single words).

Who passes an address keeps the memory alive, and has checked what lies there.
"""

from __future__ import annotations

from typing import Any

from .jit import deferred, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
arrayobj = deferred("numba.np.arrayobj")


@spelled
def matrix_at(typing: Any, address: Any, rows: Any, columns: Any, like: Any) -> Any:
    """Return a C-ordered matrix at an address, of the dtype of ``like``."""
    kind = types.Array(like.dtype, 2, "C")

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(kind.dtype)
        item = ir.IntType(64)(context.get_abi_sizeof(element))
        array = arrayobj.make_array(kind)(context, b)
        data = b.inttoptr(args[0], element.as_pointer())
        steps = [b.mul(args[2], item), item]
        arrayobj.populate_array(array, data, [args[1], args[2]], steps, item, meminfo=None)
        return array._getvalue()

    return kind(types.int64, types.int64, types.int64, like), write


@spelled
def vector_at(typing: Any, address: Any, size: Any, like: Any) -> Any:
    """Return a contiguous array of ``size`` elements at an address, of the dtype of ``like``.

    That is an array or a number.
    """
    kind = types.Array(getattr(like, "dtype", like), 1, "C")

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(kind.dtype)
        item = ir.IntType(64)(context.get_abi_sizeof(element))
        array = arrayobj.make_array(kind)(context, b)
        data = b.inttoptr(args[0], element.as_pointer())
        arrayobj.populate_array(array, data, [args[1]], [item], item, meminfo=None)
        return array._getvalue()

    return kind(types.int64, types.int64, like), write
