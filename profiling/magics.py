"""IPython magics ``%memory`` and ``%%memory``: the memory of a line or a cell of a notebook.

``%load_ext lowtide`` makes them. ``%memory`` alone prints what lives now; ``%memory f(x)`` runs the
line, and ``%%memory`` the cell below it, under a profiler that also watches for graphs that
survive. The result is the profile: a notebook shows it, and ``_`` holds it for further questions.

IPython is not imported here: it loads the extension, and hands its shell over.
"""

from __future__ import annotations

import sys
from typing import Any

from ..framework.devices import live_backends
from ..framework.memory.ledger import ROLES, describe, format_bytes
from .profile import Profile
from .profiler import MemoryProfiler

NAME = "memory"


def load_ipython_extension(shell: Any) -> None:
    """Make the magics ``%memory`` and ``%%memory``; ``%load_ext lowtide`` calls it.

    Args:
        shell: IPython's ``InteractiveShell``.
    """

    def memory(line: str, cell: str | None = None) -> Profile | None:
        """Show the memory of a line or a cell; without either, what lives now."""
        if cell is not None:
            # The line of the magic is the cell's first: the others keep their numbers. IPython
            # would drop an empty one.
            return run(shell, f"# %%{NAME} {line}\n{cell}")
        if line.strip():
            return run(shell, line)
        print(live())
        return None

    shell.register_magic_function(memory, magic_kind="line_cell", magic_name=NAME)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; ``%unload_ext lowtide`` calls it.

    Args:
        shell: IPython's ``InteractiveShell``.
    """
    for magics in shell.magics_manager.magics.values():
        magics.pop(NAME, None)


def run(shell: Any, source: str) -> Profile:
    """Run source in the user's namespace and return its profile; an error is shown as ever.

    Args:
        shell: IPython's shell: its ``run_cell`` runs the source and shows what it raises.
        source: Python, or whatever else a cell may hold.
    """
    count = shell.execution_count
    try:
        shell.execution_count = _number(shell) or count
        prof = MemoryProfiler(leaks=True)
        with prof:
            shell.run_cell(source, store_history=False)
    finally:
        shell.execution_count = count
    return prof


def _number(shell: Any) -> int | None:
    # Of the cell that runs: IPython counts on before it runs one, and the source is a part of it.
    numbers = getattr(shell.compile, "_filename_map", {})
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename in numbers:
            number: int = numbers[frame.f_code.co_filename]
            return number
    return None


def live() -> str:
    """Say what lives now on each device that is in use: bytes by role, peak, limit."""
    lines = []
    for be in live_backends():
        ledger = be.ledger
        roles = {ROLES[k]: n for k, n in enumerate(ledger.roles) if n}
        if ledger.live or ledger.peak:
            words = f" ({describe(roles)})" if roles else ""
            lines.append(
                f"{ledger.name}: {format_bytes(ledger.live)} live{words}; "
                f"peak {format_bytes(ledger.peak)}"
            )
    return "\n".join(lines) or "No tensor was made yet."
