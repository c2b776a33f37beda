"""``lowtide estimate`` and ``lowtide fit``: what a script would take, without computing."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.framework.errors import InfeasibleBudget
from lowtide.framework.memory.sizes import as_bytes
from lowtide.modules.hooks import register_module_forward_pre_hook
from lowtide.profile_command import written
from lowtide.profiling.estimate.budget_fit import fit_program
from lowtide.profiling.estimate.estimate import world_of
from lowtide.profiling.estimate.programs import estimate_program, rank_table_of_program
from lowtide.script_command import USAGE_ERROR, hint_as_torch, script_is_there, to_its_end


def estimate(
    script: str,
    args: Sequence[str],
    out: str | None,
    module: bool = False,
    gpu: str | None = None,
    world: tuple[int, int | None] = (0, None),
) -> int:
    """Predict what a script would take, without computing: its kernels are left out.

    A limit that the script sets refuses nothing; the text says whether it would be kept.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        out: A file for the figures, as JSON.
        module: ``script`` is a module's name.
        gpu: The size of a GPU that the script shall find, whether there is one or not.
        world: (rank, number of ranks) that the script shall find itself in; None for what there is.

    Returns:
        0; 1 if the script raised; 2 if it is not there or ``out`` cannot be written,
        or ``gpu`` is no size, or the rank does not exist.
    """
    if not script_is_there("estimate", script, module):
        return USAGE_ERROR
    try:
        nbytes = None if gpu is None else as_bytes(gpu, "lowtide estimate: --gpu")
        place = world_of(*world)
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    try:
        program = functools.partial(to_its_end, script, args, module)
        found = estimate_program(program, nbytes, place)
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be estimated: {error}", file=sys.stderr)
        if "named 'torch" in str(error):
            hint_as_torch("estimate", script, module)
        return 1
    print(found)
    if not found.devices:
        hint_as_torch("estimate", script, module)
    if not out:
        return 0
    figures: list[dict[str, Any]] = [
        {
            "device": str(d.device),
            "peak_bytes": d.peak_bytes,
            "first_bytes": d.first_bytes,
            "steady_bytes": d.steady_bytes,
            "limit_bytes": d.limit_bytes,
            "peak_bytes_by_role": dict(d.peak_roles),
            "reserved_bytes": d.reserved_bytes,
        }
        for d in found.devices
    ]
    of = {} if place is None else {"rank": place[0], "world_size": place[1]}
    text = json.dumps({**of, "devices": figures, "flops": found.flops}, indent=1)
    return written(lambda file: Path(file).write_text(text), out)


def fit_ranks(
    script: str,
    args: Sequence[str],
    limit: int | None,
    out: str | None,
    world_sizes: Sequence[int],
    module: bool = False,
) -> int:
    """Predict the bytes of each rank if several processes share a script's training step out.

    Args:
        script: A file, or a module's name; it trains in one process.
        args: What the script finds in ``sys.argv``.
        limit: Bytes that may live in a rank.
        out: A file for the figures, as JSON.
        world_sizes: Numbers of ranks.
        module: ``script`` is a module's name.

    Returns:
        0 if it fits in some way, or there is no limit; 1 if it does not, or the script raised; 2 if
        it is not there or ``out`` cannot be written.
    """
    if not script_is_there("fit", script, module):
        return USAGE_ERROR
    program = functools.partial(to_its_end, script, args, module)
    try:
        found = rank_table_of_program(program, register_module_forward_pre_hook, world_sizes, limit)
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be shared out: {error}", file=sys.stderr)
        if "named 'torch" in str(error) or "calls no module" in str(error):
            hint_as_torch("fit", script, module)
        return 1
    print(found)
    if found.code:
        print("\nCode, to be pasted where the model and the optimizer are ready:\n")
        print(f"import lowtide\n\n{found.code}")
    failed = 0
    if out:
        text = json.dumps(found.to_dict(), indent=1)
        failed = written(lambda file: Path(file).write_text(text), out)
    return failed or int(limit is not None and found.best is None)


def fit(
    script: str,
    args: Sequence[str],
    budget: int | None,
    out: str | None,
    module: bool = False,
    as_torch: bool = False,
    picture: str | None = None,
) -> int:
    """Predict how a script runs within a budget, and what that costs.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        budget: Bytes that may live at once.
        out: A file for the figures, as JSON.
        module: ``script`` is a module's name.
        as_torch: In it, ``import torch`` means lowtide.
        picture: A file for the picture of its live bytes: PNG, SVG or PDF.

    Returns:
        0 if it fits; 1 if it does not, or the script raised; 2 for a wrong call.
    """
    if budget is None:
        print("lowtide fit takes a budget, as in: --budget 2GiB", file=sys.stderr)
        return USAGE_ERROR
    if not script_is_there("fit", script, module):
        return USAGE_ERROR
    try:
        plan = fit_program(functools.partial(to_its_end, script, args, module), budget)
    except InfeasibleBudget as error:
        print(error, file=sys.stderr)
        return 1
    except (Exception, SystemExit) as error:
        print(f"{script} cannot be imagined: {error}", file=sys.stderr)
        if "named 'torch" in str(error):
            hint_as_torch("fit", script, module)
        return 1
    print(plan)
    command = "run-as-torch" if as_torch else "profile"
    words = [*(["-m"] if module else []), script, *args]
    print(f"Run it: lowtide {command} --memory-budget {budget} {shlex.join(words)}")
    if not plan.plain_peak:
        hint_as_torch("fit", script, module)
    if picture:
        failed = written(plan.plot, picture)
        if failed:
            return failed
    if not out:
        return 0
    figures = {
        "budget_bytes": budget,
        "peak_bytes": plan.peak,
        "plain_peak_bytes": plan.plain_peak,
        "floor_proved_bytes": plan.floor_proved,
        "flops": plan.flops,
        "plain_flops": plan.plain_flops,
        "dropped": plan.dropped,
        "replays": plan.replayed,
        "seconds": plan.seconds,
        "plain_seconds": plan.plain_seconds,
    }
    return written(lambda file: Path(file).write_text(json.dumps(figures, indent=1)), out)
