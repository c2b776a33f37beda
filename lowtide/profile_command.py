"""``lowtide profile`` and ``report``: the profiler for unmodified scripts.

A script runs as ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` would run it. Whatever happens
inside, exception, Ctrl-C or a batch system's SIGTERM, what was recorded until then is reported.
Only what ends the process without Python's knowledge, ``os._exit`` or SIGKILL, leaves no report.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lowtide.framework.distributed.place import launched_rank
from lowtide.script_command import (
    USAGE_ERROR,
    hint_as_torch,
    run_script,
    script_is_there,
    told_to_end,
    within_budget,
)


def profile(
    script: str,
    args: Sequence[str],
    out: str | None,
    timeline: bool,
    lines: bool,
    module: bool = False,
    live: bool = False,
    full: bool = False,
    budget: Any = None,
) -> int:
    """Run a script under a profiler; print the verdict, write ``run.json``, page and picture.

    Where nothing was recorded, nothing is written. A script that fails does not cost an earlier
    profile: what was recorded until then goes to the folder ``failed`` beside it. A process that is
    one of several ranks writes to a folder ``rank-0``, ``rank-1``, ... in it, and prints one line.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        out: The folder to write to; the script's name and ``-memory`` by default.
        timeline: Keep every event, and draw page and picture.
        lines: Note source lines, and graphs that outlive their step.
        module: ``script`` is a module's name.
        live: Publish what lives meanwhile, for ``lowtide top``.
        full: Print all tables, not the verdict alone.
        budget: To run it in (:class:`lowtide.memory_budget`); None for no budget.

    Returns:
        The script's exit code; 1 if it raised.
    """
    from lowtide.profiling import MemoryProfiler

    if not script_is_there("profile", script, module):
        return USAGE_ERROR
    name = script.rpartition(".")[2] if module else Path(script).stem
    folder = Path(out or f"{name}-memory").absolute()  # the script may go elsewhere
    rank = launched_rank()
    if rank is not None:
        folder /= f"rank-{rank}"
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)  # now: not after hours of training
    except OSError as error:
        print(f"lowtide profile cannot write to {folder}: {error}", file=sys.stderr)
        return USAGE_ERROR
    prof = MemoryProfiler(lines=lines, timeline=timeline, leaks=lines)
    process = os.getpid()
    code = run_script(script, args, module, inside=_recorded(prof, live, budget))
    if os.getpid() != process:  # a copy that the script forked has come to its end
        return code
    if not prof.recording.devices:
        if made:
            with contextlib.suppress(OSError):  # the script itself has put something there
                folder.rmdir()
        print(prof.verdict())
        print("Nothing was recorded, so nothing was written.")
        hint_as_torch("profile", script, module)
        return code
    kept = ""
    if code and (folder / "run.json").exists():
        kept = f"The script failed: the earlier profile in {folder} stays. "
        folder /= "failed"
        folder.mkdir(exist_ok=True)
    prof.to_json(folder / "run.json")
    files = ["run.json"]
    if timeline:
        prof.html(folder / "memory.html")
        prof.plot(folder / "memory.png")
        files += ["memory.html", "memory.png"]
    # Last, because the reader may stop reading: `lowtide profile train.py | head`.
    if full or rank is None:
        print(prof.report() if full else prof.verdict())
    print(f"{kept}Written to {folder}: {', '.join(files)}")
    if not full and rank is None:
        print(f"All tables: lowtide report --full {shlex.quote(str(folder))}")
    return code


@contextlib.contextmanager
def _recorded(prof: Any, live: bool, budget: Any) -> Iterator[None]:
    published = _published(prof) if live else contextlib.nullcontext()
    with prof, told_to_end(), published, within_budget(budget):
        yield


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


def report(path: str, files: dict[str, str], full: bool = False) -> int:
    """Print the verdict on a recorded run; write what else is asked for.

    Args:
        path: A ``run.json``, or the folder it is in, or one with the folders of several ranks.
        full: Print all tables, not the verdict alone.
        files: What to write -> where to: ``html``, ``png``, ``perfetto``, ``snapshot``,
            ``flamegraph``.

    Returns:
        0, or 2 if the file is no recording or another cannot be written.
    """
    if has_ranks(path):
        return report_of_ranks(path, files)
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
    show(run.report() if full else run.verdict())
    return max([written(writers[kind], file) for kind, file in files.items()], default=0)


def report_of_ranks(path: str, files: dict[str, str] | None = None) -> int:
    """Print the ranks of a run side by side; draw them, if that is asked for.

    Args:
        path: The folder with their folders.
        files: What to write -> where to: ``png`` alone.

    Returns:
        0, or 2 if there are no profiles of ranks, or the picture cannot be written.
    """
    from lowtide.profiling import rank_report

    try:
        found = rank_report(path)
    except (OSError, ValueError) as error:
        print(f"lowtide report: {error}", file=sys.stderr)
        return USAGE_ERROR
    show(str(found))
    others = [kind for kind in files or {} if kind != "png"]
    if others:
        print(
            f"lowtide report: {path} is of several ranks, of which --png draws a picture. For "
            f"--{others[0]}, name the folder of one: {Path(path, 'rank-0')}",
            file=sys.stderr,
        )
        return USAGE_ERROR
    return written(found.plot, files["png"]) if files else 0


# Files


def has_ranks(path: str) -> bool:
    """Whether a folder has the folders of several ranks, and no run by itself."""
    return not Path(path, "run.json").exists() and any(Path(path).glob("rank-*/run.json"))


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
