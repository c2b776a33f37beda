"""Scripts that a subcommand runs: found, run as ``python SCRIPT ARGS`` runs them, and judged.

What ends a script, exception, Ctrl-C or a batch system's SIGTERM, comes back as an exit code.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import lowtide
from lowtide.framework.memory.ledger import format_bytes

USAGE_ERROR, INTERRUPTED = 2, 130


def script_is_there(command: str, script: str, module: bool) -> bool:
    """True for a script or module that can be run; else words on stderr."""
    if not module:
        path = Path(script)
        if path.is_file() or (path / "__main__.py").is_file():
            return True
        why = f"there is no {script}"
        if path.is_dir():
            why = f"{script} is a folder without a __main__.py. Name the script in it"
        print(f"lowtide {command} takes a Python script; {why}.", file=sys.stderr)
        return False
    try:
        with as_main(script, (), module):
            if importlib.util.find_spec(script) is not None:
                return True
        why = "there is no such module"
    except (ImportError, ValueError) as error:  # a package above it, or what that imports
        why = str(error)
    print(f"lowtide {command} -m takes a module's name; {script}: {why}.", file=sys.stderr)
    return False


def hint_as_torch(command: str, script: str, module: bool) -> None:
    """Say on stderr what to write, if a script used PyTorch itself and lowtide saw nothing."""
    used = "torch" in sys.modules or _imports(script, module)
    if "lowtide.as_torch" in sys.modules or not used:
        return
    words = f"-m {script}" if module else script
    print(
        f"lowtide {command} saw nothing: {script} imports PyTorch itself. Let `import torch` mean "
        f"lowtide in it, as it is: lowtide {command} --as-torch {words}",
        file=sys.stderr,
    )


def _imports(script: str, module: bool) -> bool:
    # Whether a script's text imports torch: where it failed to, or ran in a copy of the process.
    try:
        spec = importlib.util.find_spec(script) if module else None
        tree = ast.parse(Path((spec and spec.origin) or script).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return False
    names = [
        name
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    ]
    return any(name.partition(".")[0] == "torch" for name in names)


def run_script(
    script: str,
    args: Sequence[str],
    module: bool,
    inside: contextlib.AbstractContextManager[Any] | None = None,
) -> int:
    """Run a script to its end or its exception; return its exit code.

    Args:
        script: A file, or a module's name.
        args: What it finds in ``sys.argv``.
        module: ``script`` is a module's name.
        inside: A context to run it in. It is left while the script's names are still there, in
            ``sys.modules["__main__"]``: a search for holders of an object then finds its name.
    """
    before = sys.modules["__main__"]
    try:
        with inside or contextlib.nullcontext():
            return _run(script, args, module)
    finally:
        sys.modules["__main__"] = before


def _run(script: str, args: Sequence[str], module: bool) -> int:
    try:
        _keep_names(_script(script, args, module))
        return 0
    except SystemExit as stop:
        _keep_names(_globals_of(stop))
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _keep_names(_globals_of(error))
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:
        _keep_names(_globals_of(error))
        where = _inside(error.__traceback__)
        show: Callable[..., Any] = sys.excepthook
        show(type(error), error.with_traceback(where), where)
        return 1


def _globals_of(error: BaseException) -> dict[str, Any]:
    # Of the script that raised.
    where = _inside(error.__traceback__)
    return {} if where is None else where.tb_frame.f_globals


def _keep_names(found: dict[str, Any]) -> None:
    # `runpy` takes the script's module away as soon as it ends.
    if found.get("__name__") == "__main__":
        main = ModuleType("__main__")
        main.__dict__.update(found)
        sys.modules["__main__"] = main


def to_its_end(script: str, args: Sequence[str], module: bool) -> None:
    """Run a script for an estimate, in a copy of the process; its names stay in ``__main__``.

    Raises:
        SystemExit: It does not come to a good end; with words.
    """
    try:
        _keep_names(_script(script, args, module))
    except SystemExit as stop:
        if stop.code:
            raise SystemExit(f"it leaves with {stop.code!r}.") from None
    except BaseException as error:
        where = _inside(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, where))
        raise SystemExit(f"it raises an exception.\n{text.rstrip()}") from None


def _script(script: str, args: Sequence[str], module: bool) -> dict[str, Any]:
    with as_main(script, args, module):
        try:
            if module:
                names = runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:  # Python itself makes `__file__` absolute: the script may go elsewhere
                names = runpy.run_path(os.path.abspath(script), run_name="__main__")
        except SystemExit as stop:
            if not isinstance(stop, _Terminated):
                _wait_for_threads()
            raise
        _wait_for_threads()
        return names


def _wait_for_threads() -> None:
    # As Python does before it ends.
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


@contextlib.contextmanager
def as_main(script: str, args: Sequence[str], module: bool) -> Iterator[None]:
    """Let ``sys.argv`` and ``sys.path`` be what Python gives a script, inside the block."""
    before, path = sys.argv, list(sys.path)
    sys.argv = [script, *args]
    sys.path.insert(0, os.getcwd() if module else str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path


def _inside(where: TracebackType | None) -> TracebackType | None:
    # A traceback without the frames that are between us and the script.
    ours = (__file__, runpy.__file__, "<frozen runpy>", contextlib.__file__)
    while where is not None and where.tb_frame.f_code.co_filename in ours:
        where = where.tb_next
    return where


class _Terminated(SystemExit):
    """The process was told to end."""


@contextlib.contextmanager
def within_budget(budget: lowtide.memory_budget | None) -> Iterator[None]:
    """Run the block in a budget, if there is one, and tell on stderr what that took."""
    if budget is None:
        yield
        return
    with budget:
        yield
    process = " for the process" if budget.of == "process" else ""
    print(
        f"memory budget of {format_bytes(budget.limit)}{process}: at most "
        f"{format_bytes(lowtide.max_memory_allocated())} live; {budget.evictions} values dropped "
        f"({format_bytes(budget.evicted_bytes)}), {budget.replays} replays in "
        f"{budget.replay_seconds:.2f} s",
        file=sys.stderr,
    )


@contextlib.contextmanager
def told_to_end() -> Iterator[None]:
    """Let SIGTERM, which ``timeout`` and batch systems send, end the block as an exception does."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise _Terminated(128 + number)

    forks = _Forks()
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        forks.over = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Forks:
    """Gives forked workers the SIGTERM that they would have without us: they die of it.

    Python forgets signals that a fork gets before it runs, so a handler of Python's could miss one.
    The system's own never does. So the signal waits until the fork has that.
    """

    def __init__(self) -> None:
        self.over = False  # what was registered stays so
        self.masks: dict[int, Any] = {}  # thread -> the signals that it had blocked
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self.before, after_in_parent=self.after, after_in_child=self.in_child
            )

    def before(self) -> None:
        if not self.over:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            self.masks[threading.get_ident()] = mask

    def in_child(self) -> None:
        if not self.over:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.after()

    def after(self) -> None:
        mask = self.masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
