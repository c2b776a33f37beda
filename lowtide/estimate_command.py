"""``lowtide estimate``: what a script would take, without computing."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.profile_command import USAGE_ERROR, script_is_there, to_its_end, written
from lowtide.profiling.estimate.programs import estimate_program


def estimate(script: str, args: Sequence[str], out: str | None, module: bool = False) -> int:
    """Predict what a script would take, without computing: its kernels are left out.

    A limit that the script sets refuses nothing; the text says whether it would be kept.

    Returns:
        0; 1 if the script raised; 2 if it is not there or ``out`` cannot be written.
    """
    if not script_is_there("estimate", script, module):
        return USAGE_ERROR
    try:
        found = estimate_program(functools.partial(to_its_end, script, args, module))
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
            "first_bytes": d.first_bytes,
            "steady_bytes": d.steady_bytes,
            "limit_bytes": d.limit_bytes,
            "peak_bytes_by_role": dict(d.peak_roles),
            "reserved_bytes": d.reserved_bytes,
        }
        for d in found.devices
    ]
    text = json.dumps({"devices": figures, "flops": found.flops}, indent=1)
    return written(lambda file: Path(file).write_text(text), out)
