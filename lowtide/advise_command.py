"""``lowtide advise`` and ``lowtide fit-table``: which change, and which batch, fits a limit.

A script is taken as it is. What it draws, computes and writes happens in forked copies of this
process, without kernels.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.framework.memory.sizes import as_bytes
from lowtide.modules.hooks import register_module_forward_pre_hook
from lowtide.profile_command import written
from lowtide.profiling import fit_table
from lowtide.profiling.estimate.programs import advise_program
from lowtide.script_command import (
    USAGE_ERROR,
    as_main,
    hint_as_torch,
    script_is_there,
    to_its_end,
)

OWN = {"--limit": "limit", "--device": "device", "--out": "out", "-o": "out"}
ASKED = ("models", "batch", "loss", "optimizer", "device")  # variables, and arguments of fit_table


def advise(
    script: str,
    args: Sequence[str],
    limit: str | None,
    device: str | None,
    out: str | None,
    module: bool = False,
    gpu: str | None = None,
) -> int:
    """Print what would make a script's training step fit a limit, and the code of each change.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``; our own options may stand before them.
        limit: A size as text; the limit that the script sets, if None.
        device: Whose memory is meant; the fullest, if None.
        out: A file for the figures, as JSON.
        module: ``script`` is a module's name.
        gpu: The size of a GPU that the script shall find, whether there is one or not.

    Returns:
        0 if the step fits, or a change makes it fit; 1 if nothing does, or the script raised; 2 for
        a limit that is none, or a script that is not there.
    """
    args, own = _own_options(args, {"limit": limit, "device": device, "out": out})
    if not script_is_there("advise", script, module):
        return USAGE_ERROR
    try:
        nbytes = None if own["limit"] is None else as_bytes(own["limit"], "lowtide advise: --limit")
        size = None if gpu is None else as_bytes(gpu, "lowtide advise: --gpu")
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    program = functools.partial(to_its_end, script, args, module)
    try:
        found = advise_program(
            program, register_module_forward_pre_hook, nbytes, own["device"], gpu=size
        )
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be advised on: {error}", file=sys.stderr)
        if "named 'torch" in str(error) or "calls no module" in str(error):
            hint_as_torch("advise", script, module)
        return 1
    print(found)
    code = found.code()
    if code:
        print("\nCode, to be pasted where the model and the optimizer are ready:\n")
        print(f"import lowtide\n\n{code}")
    if own["out"]:
        text = json.dumps(found.to_dict(), indent=1)
        failed = written(lambda file: Path(file).write_text(text), own["out"])
        if failed:
            return failed
    return 0 if found.fits or found.fitting or found.larger else 1


def _own_options(
    args: Sequence[str], own: dict[str, str | None]
) -> tuple[list[str], dict[str, str | None]]:
    # `lowtide advise train.py --limit 2GiB`: ours, if they stand before those of the script.
    rest = list(args)
    while rest and rest[0].partition("=")[0] in OWN:
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            value = rest.pop(0) if rest else ""
        own[OWN[name]] = value
    return rest, own


def print_fit_table(script: str, limits: str | None, csv: str | None, picture: str | None) -> int:
    """Print the largest batch of each model of a file, under each limit.

    Args:
        script: A file that defines ``models`` and ``batch``, and maybe ``loss``, ``optimizer``,
            ``limits`` and ``device``, as :func:`lowtide.profiling.fit_table` takes them.
        limits: Sizes, with commas; those of the file, if None.
        csv: A file to write the figures to, in bytes.
        picture: A PNG, SVG or PDF to write.

    Returns:
        0; 1 if the file or a model in it raised; 2 if it does not define what is needed, or a file
        cannot be written.
    """
    if not script_is_there("fit-table", script, False):
        return USAGE_ERROR
    try:
        with as_main(script, (), False):  # it finds its own name in sys.argv, and nothing of ours
            names: dict[str, Any] = runpy.run_path(script, run_name="__fit_table__")
    except Exception as error:
        print(f"{script} cannot be run: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    asked: Any = limits.split(",") if limits else names.get("limits")
    missing = [name for name in ("models", "batch") if name not in names]
    missing += [] if asked else ["limits, or --limits 1GiB,2GiB"]
    if missing:
        print(
            f"lowtide fit-table takes a file that defines models and batch; {script} lacks "
            f"{' and '.join(missing)}. Define models = {{'name': make_model}} and batch(n), which "
            "makes n examples.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    given = {name: names[name] for name in ASKED if name in names}
    try:
        table = fit_table(given.pop("models"), asked, **given)
    except Exception as error:  # whatever the user's models raise
        print(f"{script}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(table)
    failed = written(table.to_csv, csv) if csv else 0
    return max(failed, written(table.plot, picture) if picture else 0)
