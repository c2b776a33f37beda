"""``lowtide profile``, ``report`` and ``estimate``: the profiler for unmodified scripts.

A script runs as ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` would run it. Whatever happens
inside, exception, Ctrl-C or a batch system's SIGTERM, what was recorded until then is reported.
Only what ends the process without Python's knowledge, ``os._exit`` or SIGKILL, leaves no report.
"""

from __future__ import annotations

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
from types import TracebackType
from typing import Any

USAGE_ERROR, INTERRUPTED = 2, 130


def profile(
    script: str,
    args: Sequence[str],
    out: str | None,
    timeline: bool,
    lines: bool,
    module: bool = False,
    live: bool = False,
) -> int:
    """Run a script under a profiler; print the report, write ``run.json``, page and picture.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        out: The folder to write to; the script's name and ``-memory`` by default.
        timeline: Keep every event, and draw page and picture.
        lines: Note source lines, and graphs that outlive their step.
        module: ``script`` is a module's name.
        live: Publish what lives meanwhile, for ``lowtide top``.

    Returns:
        The script's exit code; 1 if it raised.
    """
    from lowtide.profiling import MemoryProfiler

    if not script_is_there("profile", script, module):
        return USAGE_ERROR
    name = script.rpartition(".")[2] if module else Path(script).stem
    folder = Path(out or f"{name}-memory").absolute()  # the script may go elsewhere
    try:
        folder.mkdir(parents=True, exist_ok=True)  # now: not after hours of training
    except OSError as error:
        print(f"lowtide profile cannot write to {folder}: {error}", file=sys.stderr)
        return USAGE_ERROR
    prof = MemoryProfiler(lines=lines, timeline=timeline, leaks=lines)
    process = os.getpid()
    with prof, told_to_end(), _published(prof) if live else contextlib.nullcontext():
        code = run_script(script, args, module)
    if os.getpid() != process:  # a copy that the script forked has come to its end
        return code
    prof.to_json(folder / "run.json")
    files = ["run.json"]
    if timeline:
        prof.html(folder / "memory.html")
        prof.plot(folder / "memory.png")
        files += ["memory.html", "memory.png"]
    # Last, for whoever reads it may stop reading: `lowtide profile train.py | head`.
    print(prof.report())
    print(f"Written to {folder}: {', '.join(files)}")
    return code


@contextlib.contextmanager
def _published(prof: Any) -> Iterator[None]:
    from lowtide.profiling import Publisher

    try:
        publisher = Publisher(prof)
    except OSError as error:
        print(f"lowtide profile --live: {error}", file=sys.stderr)
        yield
        return
    print(f"lowtide top {os.getpid()}  shows what lives in it", file=sys.stderr)
    try:
        yield
    finally:
        publisher.stop()


def report(path: str, files: dict[str, str]) -> int:
    """Print the report of a recorded run; write what else is asked for.

    Args:
        path: A ``run.json``, or the folder it is in.
        files: What to write -> where to: ``html``, ``png``, ``perfetto``, ``snapshot``,
            ``flamegraph``.

    Returns:
        0, or 2 if the file is no recording or another cannot be written.
    """
    run = read_run(path)
    if run is None:
        return USAGE_ERROR
    writers = {
        "html": run.html,
        "png": run.plot,
        "perfetto": run.to_perfetto,
        "snapshot": run.to_pytorch_snapshot,
        "flamegraph": run.to_flamegraph,
    }
    show(run.report())
    return max([written(writers[kind], file) for kind, file in files.items()], default=0)


# Files


def run_of(path: str) -> Path:
    """The file of a recorded run, given that or its folder."""
    return Path(path, "run.json") if Path(path).is_dir() else Path(path)


def read_run(path: str) -> Any:
    """A recorded run; None, and words on stderr, if it is none."""
    from lowtide.profiling import MemoryProfiler

    try:
        return MemoryProfiler.from_json(run_of(path))
    except (OSError, ValueError) as error:
        print(f"lowtide takes a run.json of `lowtide profile`: {error}", file=sys.stderr)
        return None


def show(text: str) -> None:
    """Print text that this terminal may not be able to show."""
    # a name in a recording may be half of a surrogate pair, or what this terminal cannot show
    coding = sys.stdout.encoding or "utf-8"
    print(text.encode(coding, "backslashreplace").decode(coding))


def written(write: Callable[[str], Any], path: str) -> int:
    """Write a file: 0; 2, and words on stderr, if that fails."""
    try:
        write(path)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"lowtide cannot write {path}: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


# Scripts


def script_is_there(command: str, script: str, module: bool) -> bool:
    """True for a script or module that can be run; else words on stderr."""
    if not module and Path(script).is_file():
        return True
    if not module:
        print(f"lowtide {command} takes a Python script; there is no {script}.", file=sys.stderr)
        return False
    try:
        with _as_main(script, (), module):
            if importlib.util.find_spec(script) is not None:
                return True
        why = "there is no such module"
    except (ImportError, ValueError) as error:  # a package above it, or what that imports
        why = str(error)
    print(f"lowtide {command} -m takes a module's name; {script}: {why}.", file=sys.stderr)
    return False


def run_script(script: str, args: Sequence[str], module: bool) -> int:
    """Run a script to its end or its exception; return its exit code."""
    try:
        _script(script, args, module)
        return 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:
        where = _inside(error.__traceback__)
        show: Callable[..., Any] = sys.excepthook
        show(type(error), error.with_traceback(where), where)
        return 1


def to_its_end(script: str, args: Sequence[str], module: bool) -> None:
    """Run a script for an estimate.

    Raises:
        SystemExit: It does not come to a good end; with words.
    """
    try:
        _script(script, args, module)
    except SystemExit as stop:
        if stop.code:
            raise SystemExit(f"it leaves with {stop.code!r}.") from None
    except BaseException as error:
        where = _inside(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, where))
        raise SystemExit(f"it raises an exception.\n{text.rstrip()}") from None


def _script(script: str, args: Sequence[str], module: bool) -> None:
    with _as_main(script, args, module):
        try:
            if module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:  # Python itself makes `__file__` absolute: the script may go elsewhere
                runpy.run_path(os.path.abspath(script), run_name="__main__")
        except SystemExit as stop:
            if not isinstance(stop, _Terminated):
                _wait_for_threads()
            raise
        _wait_for_threads()


def _wait_for_threads() -> None:
    # As Python does before it ends.
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


@contextlib.contextmanager
def _as_main(script: str, args: Sequence[str], module: bool) -> Iterator[None]:
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
