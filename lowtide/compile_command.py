"""``lowtide compile``: the CPU's kernels that most models need, compiled once on a machine."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lowtide.framework.kernels.cpu.compiler import ahead, library
from lowtide.framework.kernels.runtime import kernel_seconds
from lowtide.framework.kernels.runtime.cache_folder import Unusable


def compile_kernels(jobs: int | None) -> int:
    """Compile the kernels that most models need, where they are not kept already.

    Args:
        jobs: Processes at once; one for each core if None.

    Returns:
        0 if they are there, 1 if they cannot be kept on this machine.
    """
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    try:
        with shown as progress:
            task = progress.add_task("", total=None)

            def told(done: int, count: int, name: str) -> None:
                progress.update(task, completed=done, total=count, description=name)

            count, seconds = ahead.compile_all(jobs, told)
    except RuntimeError as error:
        print(f"lowtide compile: {error}", file=sys.stderr)
        return 1
    print(f"compiled {count} kernels in {seconds:.1f} s; they are kept in {library.folder()}")
    return 0


def clear() -> int:
    """Remove all kernels that are kept, and their times.

    Returns:
        0; 1 if their folder cannot be used.
    """
    try:
        count = library.clear()
        times = kernel_seconds.clear()
    except Unusable as error:
        print(f"lowtide compile --clear: {error}", file=sys.stderr)
        return 1
    print(f"removed {count} files from {library.folder()}")
    if times:
        print(f"removed the times of kernels, {times} file{'s' if times > 1 else ''}")
    return 0
