"""``lowtide profile``, ``report``, ``diff`` and ``estimate``: the profiler for unmodified scripts.

A script runs as ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` would run it. Whatever happens
inside, exception, Ctrl-C or a batch system's SIGTERM, what was recorded until then is reported.
Only what ends the process without Python's knowledge, ``os._exit`` or SIGKILL, leaves no report.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
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
) -> int:
    """Run a script under a profiler; print the report, write ``run.json``, page and picture.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        out: The folder to write to; the script's name and ``-memory`` by default.
        timeline: Keep every event, and draw page and picture.
        lines: Note source lines.
        module: ``script`` is a module's name.

    Returns:
        The script's exit code; 1 if it raised.
    """
    from lowtide.profiling import MemoryProfiler

    if not _is_there("profile", script, module):
        return USAGE_ERROR
    name = script.rpartition(".")[2] if module else Path(script).stem
    folder = Path(out or f"{name}-memory").absolute()  # the script may go elsewhere
    try:
        folder.mkdir(parents=True, exist_ok=True)  # now: not after hours of training
    except OSError as error:
        print(f"lowtide profile cannot write to {folder}: {error}", file=sys.stderr)
        return USAGE_ERROR
    prof, process = MemoryProfiler(lines=lines, timeline=timeline), os.getpid()
    with prof, _told_to_end():
        code = _run(script, args, module)
    if os.getpid() != process:  # a copy that the script forked has come to its end
        return code
    prof.to_json(folder / "run.json")
    written = ["run.json"]
    if timeline:
        prof.html(folder / "memory.html")
        prof.plot(folder / "memory.png")
        written += ["memory.html", "memory.png"]
    # Last, for whoever reads it may stop reading: `lowtide profile train.py | head`.
    print(prof.report())
    print(f"Written to {folder}: {', '.join(written)}")
    return code


def report(path: str, files: dict[str, str]) -> int:
    """Print the report of a recorded run; write what else is asked for.

    Args:
        path: A ``run.json``, or the folder it is in.
        files: What to write -> where to: ``html``, ``png``, ``perfetto``, ``snapshot``,
            ``flamegraph``.

    Returns:
        0, or 2 if the file is no recording or another cannot be written.
    """
    run = _read(path)
    if run is None:
        return USAGE_ERROR
    writers = {
        "html": run.html,
        "png": run.plot,
        "perfetto": run.to_perfetto,
        "snapshot": run.to_pytorch_snapshot,
        "flamegraph": run.to_flamegraph,
    }
    _show(run.report())
    return max([_written(writers[kind], file) for kind, file in files.items()], default=0)


def diff(before: str, after: str, html: str | None) -> int:
    """Print what the second of two recorded runs has more at its peak, by role, module and line.

    Returns:
        0, or 2 if a file is no recording, or one in which no tensor was made.
    """
    a, b = _read(before), _read(after)
    if a is None or b is None:
        return USAGE_ERROR
    for path, run in ((before, a), (after, b)):
        if not run.recording.devices:
            print(f"{path} has nothing to compare: no device was used in it.", file=sys.stderr)
            return USAGE_ERROR
    change = b.peak_bytes - a.peak_bytes
    print(f"peak: {a.peak_bytes:,} -> {b.peak_bytes:,} bytes ({change:+,})\n")
    for by in ("role", "module", "line"):
        _show(b.diff(a, by).text(signed=True))
        print()
    if not html:
        return 0
    paths = _run_of(before), _run_of(after)
    names = [path.stem for path in paths]
    if names[0] == names[1]:  # both are run.json; then their folders tell them apart
        names = [path.resolve().parent.name for path in paths]
    if names[0] == names[1]:
        names = [before, after]
    return _written(lambda file: a.html(file, b, names), html)


def estimate(script: str, args: Sequence[str], out: str | None, module: bool = False) -> int:
    """Predict what a script would take, without computing: its kernels are left out.

    Returns:
        0; 1 if the script raised; 2 if it is not there or ``out`` cannot be written.
    """
    from lowtide.profiling import estimate as predict

    if not _is_there("estimate", script, module):
        return USAGE_ERROR
    try:
        found = predict(lambda: _to_its_end(script, args, module))
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be estimated: {error}", file=sys.stderr)
        return 1
    print(found)
    if not out:
        return 0
    figures: list[dict[str, Any]] = [
        {
            "device": str(d.device),
            "peak_bytes": d.peak_bytes,
            "peak_bytes_by_role": dict(d.peak_roles),
            "reserved_bytes": d.reserved_bytes,
        }
        for d in found.devices
    ]
    text = json.dumps({"devices": figures, "flops": found.flops}, indent=1)
    return _written(lambda file: Path(file).write_text(text), out)


# Files


def _run_of(path: str) -> Path:
    return Path(path, "run.json") if Path(path).is_dir() else Path(path)


def _read(path: str) -> Any:
    from lowtide.profiling import MemoryProfiler

    try:
        return MemoryProfiler.from_json(_run_of(path))
    except (OSError, ValueError) as error:
        print(f"lowtide takes a run.json of `lowtide profile`: {error}", file=sys.stderr)
        return None


def _show(text: str) -> None:
    # a name in a recording may be half of a surrogate pair, or what this terminal cannot show
    coding = sys.stdout.encoding or "utf-8"
    print(text.encode(coding, "backslashreplace").decode(coding))


def _written(write: Callable[[str], Any], path: str) -> int:
    try:
        write(path)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"lowtide cannot write {path}: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


# Scripts


def _is_there(command: str, script: str, module: bool) -> bool:
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


def _run(script: str, args: Sequence[str], module: bool) -> int:
    # Runs a script to its end or its exception, and says how it ended.
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


def _to_its_end(script: str, args: Sequence[str], module: bool) -> None:
    # For an estimate: raises SystemExit with words if the script does not come to a good end.
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
def _told_to_end() -> Iterator[None]:
    # `timeout` and batch systems send SIGTERM. Python would die of it without a word.
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
