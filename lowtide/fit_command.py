"""``lowtide fit``: how a script would run within a number of bytes, without computing."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lowtide.framework.errors import InfeasibleBudget
from lowtide.profile_command import written
from lowtide.profiling.estimate.budget_fit import fit_program
from lowtide.script_command import USAGE_ERROR, hint_as_torch, script_is_there, to_its_end


def fit(
    script: str,
    args: Sequence[str],
    budget: int | None,
    out: str | None,
    module: bool = False,
    as_torch: bool = False,
) -> int:
    """Predict how a script runs within a budget, and what that costs.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        budget: Bytes that may live at once.
        out: A file for the figures, as JSON.
        module: ``script`` is a module's name.
        as_torch: In it, ``import torch`` means lowtide.

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
    }
    return written(lambda file: Path(file).write_text(json.dumps(figures, indent=1)), out)
