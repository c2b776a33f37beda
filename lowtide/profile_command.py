"""``lowtide profile``, ``report``, ``diff`` and ``estimate``: the profiler for unmodified scripts.

A script runs as ``python SCRIPT ARGS`` would run it. Whatever happens inside, exception or Ctrl-C,
what was recorded until then is reported.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

USAGE_ERROR = 2


def profile(script: str, args: Sequence[str], out: str | None, timeline: bool, lines: bool) -> int:
    """Run a script under a profiler; print the report, write ``run.json``, page and picture.

    Returns:
        The script's exit code; 1 if it raised.
    """
    from lowtide.profiling import MemoryProfiler

    if not Path(script).is_file():
        print(f"lowtide profile takes a Python script; there is no {script}.", file=sys.stderr)
        return USAGE_ERROR
    folder = Path(out or f"{Path(script).stem}-memory")
    prof = MemoryProfiler(lines=lines, timeline=timeline)
    with prof:
        code = _run(script, args)
    folder.mkdir(parents=True, exist_ok=True)
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


def report(path: str, html: str | None, picture: str | None) -> int:
    """Print the report of a recorded run; write its page and picture if asked.

    Returns:
        0, or 2 if the file is no recording.
    """
    run = _read(path)
    if run is None:
        return USAGE_ERROR
    print(run.report())
    if html:
        run.html(html)
    if picture:
        run.plot(picture)
    return 0


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
        print(b.diff(a, by).text(signed=True))
        print()
    if html:
        names = Path(before).stem, Path(after).stem
        if names[0] == names[1]:  # both are run.json; then their folders tell them apart
            names = Path(before).resolve().parent.name, Path(after).resolve().parent.name
        a.html(html, b, names)
    return 0


def estimate(script: str, args: Sequence[str], out: str | None) -> int:
    """Predict what a script would take, without computing: its kernels are left out.

    Returns:
        0; 1 if the script raised; 2 if it is not there.
    """
    from lowtide.profiling import estimate as predict

    if not Path(script).is_file():
        print(f"lowtide estimate takes a Python script; there is no {script}.", file=sys.stderr)
        return USAGE_ERROR
    try:
        found = predict(lambda: _script(script, args))
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be estimated: {error}", file=sys.stderr)
        return 1
    print(found)
    if out:
        figures: list[dict[str, Any]] = [
            {
                "device": str(d.device),
                "peak_bytes": d.peak_bytes,
                "peak_bytes_by_role": dict(d.peak_roles),
                "reserved_bytes": d.reserved_bytes,
            }
            for d in found.devices
        ]
        Path(out).write_text(json.dumps({"devices": figures, "flops": found.flops}, indent=1))
    return 0


def _read(path: str) -> Any:
    from lowtide.profiling import MemoryProfiler

    try:
        return MemoryProfiler.from_json(path)
    except (OSError, ValueError) as error:
        print(f"lowtide takes a run.json of `lowtide profile`: {error}", file=sys.stderr)
        return None


def _run(script: str, args: Sequence[str]) -> int:
    # Runs a script to its end or its exception, and says how it ended.
    try:
        return _script(script, args)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BaseException as error:
        show: Callable[..., Any] = sys.excepthook
        show(type(error), error, error.__traceback__)
        return 1


def _script(script: str, args: Sequence[str]) -> int:
    before, path = sys.argv, list(sys.path)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before, path
    return 0
