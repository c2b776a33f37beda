"""Giving an op of arrays that look alike a compiled loop over them, flat.

A loop takes the result, the arrays and then numbers, and may be run on parts of the arrays
(``threads.spread``). Where an op's first input is the arriving gradient ``grad``, its loop also
takes one number in place of that array: what a mean or a sum sends back is a number repeated, and
to write it out would take an array as large as the input.
"""

from __future__ import annotations

from importlib import import_module

from .layout import alike, contiguous, even, lines, worth_compiling


def vectorized(input, *_, **__):
    """True for float32 operands that repay a compiled kernel."""
    return worth_compiling(input) and input.dtype.name == "float32"


def alike_singles(*specs, **_):
    """True for float32 operands of one shape that repay a compiled kernel."""
    return alike(*specs) and specs[0].dtype.name == "float32"


def compile_gate(op, kernel, *, when=vectorized, module="gates"):
    """Give an op of arrays that look alike a compiled CPU kernel: ``kernel(loops, attributes)``.

    By this it is declared ``elementwise``.

    Args:
        op: The op's public function.
        kernel: Takes the module of loops and the attributes as keywords; returns a loop and the
            numbers that it takes after the arrays.
        when: Which specs and attributes it is for.
        module: Name of the module of loops, in ``kernels/cpu``; it is imported on first use.
    """
    op.op.elementwise = True
    skipped = len(op.op.scratch)
    backward = op.op.inputs[0] == "grad"
    modules = []  # of the loops and of threads, once imported: a statement for it takes as long

    @op.kernel("cpu", when=when, layout=even if backward else contiguous, scratch=False)
    def _(xp, out, *arrays, **attributes):
        if not modules:
            found = [import_module(f"..kernels.cpu.{m}", __package__) for m in (module, "threads")]
            modules.extend(found)
        loops, threads = modules
        run, numbers = kernel(loops, **attributes)
        arrays = arrays[skipped:]
        flat = lines(out, *arrays) if backward else [a.reshape(-1) for a in (out, *arrays)]
        threads.spread(run, out.size, out.size, *flat, *numbers)
