"""Giving an op a compiled loop over the first dim of its arrays, in chunks by several threads.

The op says how its arrays are laid out for the loop; importing the loops on first use, leaving
workspace out and cutting the work is the same for all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .layout import contiguous
from .schedule import parallel_rows


def compiled_rows(op, loop, *, when, arguments) -> None:
    """Give an op a compiled CPU kernel that takes no workspace.

    Args:
        op: The op's public function.
        loop: Module and name of the loop, in ``kernels/cpu``: ``"vision:image"``.
        when: Which specs and attributes it is for.
        arguments: Takes the results, the inputs and the attributes as keywords; returns the work,
            in additions of two elements, the size of the first dim, and what the loop is called
            with: arrays of that size are cut, all else is passed as it is.
    """
    module, name = loop.split(":")
    # The module of loops, once imported: a statement for it takes as long as a small loop.
    modules: list[Any] = []

    @op.kernel("cpu", when=when, layout=contiguous, scratch=False)
    def _(xp, *arrays, **attributes):
        if not modules:
            modules[:] = [import_module(f"..cpu.{module}", __package__)]
        work, n, operands = arguments(*arrays, **attributes)
        parallel_rows(getattr(modules[0], name), work, n, *operands)
