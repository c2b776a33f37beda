"""A list of loops of NumPy's ufuncs and of compiled kernels, called one after the other.

A replay of a compiled function whose kernel calls are small spends its time between the kernels:
Python calls a function, the function calls a ufunc, the ufunc checks its arrays. Where all of this
comes out the same at each replay, what is left are the loops in C and the addresses they take. They
are written down as words, and :func:`run` reads those.

An instruction of a ufunc's loop is: address of the loop, its data, how many operands, dims, steps
and outer dims it has (0 or ``OUTER``); the operands' addresses; the loop's dims; its steps; the
sizes of the outer dims; for each of them, the bytes by which the operands move. An instruction of a
compiled kernel has its address, 0, how many words its arguments are, 0, 0, ``KERNEL``; then the
arguments (``compiler/signature.py``, ``packed``). If the kernel returns True, the tape stops there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .compiler.entry import RETURNED_TRUE
from .elementwise.ufunc_loops import address, pointers
from .support.atomics import call_words
from .support.jit import compiled, deferred, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")

MOST_OPERANDS = 4
SCRATCH = 2 * MOST_OPERANDS  # words at the start of a tape: addresses of this call and the next one
HEAD = 6  # words of an instruction before its operands' addresses
OUTER = 3  # outer dims of an instruction that has any
KERNEL = -1  # in the place of the number of outer dims: a compiled kernel


@spelled
def _call_at(typing: Any, function: Any, data: Any, at: Any, dims: Any, steps: Any) -> Any:
    """Call ``function(at, dims, steps, data)``, a ufunc's loop; all are addresses."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 4)
        b.call(b.inttoptr(args[0], kind.as_pointer()), [args[2], args[3], args[4], args[1]])
        return context.get_dummy_value()

    return types.void(function, data, at, dims, steps), write


@compiled(signature="i8:1C,i8,i8,i8")
def _run(tape: Any, here: int, start: int, stop: int) -> int:
    # The instructions in words `start` to `stop`. Returns 0; or, where a kernel returned something
    # else, that plus 4 times the word behind it.
    while start < stop:
        function, data = tape[start], tape[start + 1]
        count, outer = tape[start + 2], tape[start + 5]
        at = start + HEAD
        if outer == KERNEL:
            start = at + count
            found: int = call_words(function, (here + 8 * at,))
            if found != 0:
                return 4 * start + found
            continue
        dims = at + count
        steps = dims + tape[start + 3]
        sizes = steps + tape[start + 4]
        start = sizes + outer * (count + 1)
        if outer == 0:
            for n in range(count):  # some loops count up the addresses that they are given
                tape[n] = tape[at + n]
            _call_at(function, data, here, here + 8 * dims, here + 8 * steps)
            continue
        moves = sizes + OUTER
        for i in range(tape[sizes]):
            for j in range(tape[sizes + 1]):
                for n in range(count):
                    moved = i * tape[moves + n] + j * tape[moves + count + n]
                    tape[MOST_OPERANDS + n] = tape[at + n] + moved
                for _ in range(tape[sizes + 2]):
                    for n in range(count):
                        place = tape[MOST_OPERANDS + n]
                        tape[n] = place
                        tape[MOST_OPERANDS + n] = place + tape[moves + 2 * count + n]
                    _call_at(function, data, here, here + 8 * dims, here + 8 * steps)
    return 0


def run(tape: Any, here: int, answer: Callable[[int], int] | None = None) -> None:
    """Call the loops and kernels of a tape.

    Args:
        tape: Words, of which the first ``SCRATCH`` are overwritten.
        here: The tape's address.
        answer: Called if a kernel returns True, with the word behind its instruction; returns the
            word where the tape goes on. None if no kernel does.

    Raises:
        MemoryError: A kernel had no memory for what it needs.
    """
    stopped = _run(tape, here, SCRATCH, tape.size)
    while stopped:
        place, found = divmod(stopped, 4)
        if found != RETURNED_TRUE or answer is None:
            raise MemoryError("a compiled kernel had no memory for what it needs")
        stopped = _run(tape, here, answer(place), tape.size)


def instruction(
    loop: tuple[int, int], operands: int, dims: Any, steps: Any, sizes: Any = (), moves: Any = ()
) -> list[int]:
    """Return the words of an instruction, with zeros for the operands' addresses.

    Args:
        loop: Its address and its data.
        operands: How many there are.
        dims: What the loop takes: a count, or, of a product, sizes.
        steps: Bytes from element to element of each operand; of a product, more.
        sizes: Of the outer dims, at most ``OUTER``, from the outermost.
        moves: For each, the bytes by which the operands move.

    The first operand's address is word ``HEAD``.
    """
    outer: list[int] = []
    if sizes:
        missing = OUTER - len(sizes)
        outer = [*[1] * missing, *sizes, *[0] * (missing * operands)]
        outer += [step for of_dim in moves for step in of_dim]
    head = [*loop, operands, len(dims), len(steps), OUTER if sizes else 0]
    return [*head, *[0] * operands, *dims, *steps, *outer]


@cache
def product_loop(dtype: Any) -> tuple[int, int] | None:
    """Return the address of ``np.matmul``'s loop for a dtype, and its data.

    Returns:
        None if there is none, or if it does not compute what NumPy does.
    """
    found = pointers(np.matmul, f"{dtype.char * 2}->{dtype.char}")
    if found is None:
        return None
    a = (np.arange(15) % 7 + 1).astype(dtype).reshape(3, 5)
    b = (np.arange(20) % 11 + 1).astype(dtype).reshape(5, 4)
    out = np.zeros((3, 4), dtype)
    words = product(found, a.shape, b.shape, (a.strides, b.strides, out.strides))
    tape = np.array([*[0] * SCRATCH, *words], np.int64)
    tape[SCRATCH + HEAD :][:3] = [address(x) for x in (a, b, out)]
    run(tape, address(tape))
    return found if out.tobytes() == (a @ b).tobytes() else None


def kernel_call(function: int, arguments: list[int]) -> list[int]:
    """Return the instruction of a compiled kernel.

    Args:
        function: Its address.
        arguments: Packed; they begin at word ``HEAD``.
    """
    return [function, 0, len(arguments), 0, 0, KERNEL, *arguments]


def product(
    loop: tuple[int, int], a: Any, b: Any, strides: Any, sizes: Any = (), moves: Any = ()
) -> list[int]:
    """Return the instruction of a product of matrices.

    Args:
        loop: Its address and its data.
        a: The shape (M, K).
        b: The shape (K, N).
        strides: Those of both and of the result.
        sizes: Of a stack, as in :func:`instruction`.
        moves: For each of its dims, the bytes by which the operands move.
    """
    dims = 1, a[0], a[1], b[1]
    steps = (0, 0, 0, *(s for of_operand in strides for s in of_operand))
    return instruction(loop, 3, dims, steps, sizes, moves)


@compiled
def masked_copy(out: Any, source: Any, mask: Any) -> None:
    """Copy where a mask is true; all are of four dims and one shape, of words and of bools."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                for n in range(out.shape[3]):
                    if mask[i, j, k, n]:
                        out[i, j, k, n] = source[i, j, k, n]
