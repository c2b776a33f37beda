"""``lowtide leaks``: run a script as it is, and name the graphs and tensors that pile up."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lowtide.profile_command import show, written
from lowtide.profiling import detect_retained
from lowtide.script_command import (
    USAGE_ERROR,
    hint_as_torch,
    run_script,
    script_is_there,
    told_to_end,
)

LEAKS = 1  # the exit code


def leaks(script: str, args: Sequence[str], module: bool = False, out: str | None = None) -> int:
    """Run a script; print what survives its step, with the line that keeps it.

    That is graphs, and tensors without one that pile up. A step ends where the optimizers have
    stepped; without any, with a backward pass; without that, where a model is called again.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        module: ``script`` is a module's name.
        out: A file for the findings, as JSON.

    Returns:
        The script's exit code if it failed; else 1 if something leaks, 0 if nothing does, 2 if
        there is no such script, or ``out`` cannot be written.
    """
    if not script_is_there("leaks", script, module):
        return USAGE_ERROR
    out = str(Path(out).absolute()) if out else None  # the script may go elsewhere
    process = os.getpid()
    found = detect_retained()
    with told_to_end():
        code = run_script(script, args, module, inside=found)
    if os.getpid() != process:  # a copy that the script forked has come to its end
        return code
    show(found.report())
    if not found.steps:
        hint_as_torch("leaks", script, module)
    if out:
        figures = {
            "steps": found.steps,
            "findings": [asdict(f) for f in found.findings],
            "shared_bytes": found.shared_bytes,
            "elsewhere_bytes": found.elsewhere_bytes,
        }
        text = json.dumps(figures, indent=1)
        failed = written(lambda file: Path(file).write_text(text), out)
        if failed:
            return failed
    return code or (LEAKS if found.findings else 0)
