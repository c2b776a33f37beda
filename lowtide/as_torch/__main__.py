"""``python -m lowtide.as_torch SCRIPT ARGS``: a PyTorch script as it is, on lowtide.

``lowtide run-as-torch`` is the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from lowtide.cli_arguments import add_budget, chosen_budget
from lowtide.script_command import USAGE_ERROR, run_script, script_is_there, within_budget


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script or module in which ``import torch`` means lowtide.

    Args:
        argv: ``[-m] SCRIPT ARGS``; the words of the process by default.

    Returns:
        The script's exit code; 1 if it raised; 2 if it is not there.
    """
    parser = argparse.ArgumentParser(
        prog="lowtide run-as-torch", description="Run a PyTorch script as it is, on lowtide."
    )
    add_budget(parser)
    parser.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m"
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the script itself takes")
    options = parser.parse_args(argv)
    return run(options.script, options.args, options.module, chosen_budget(options))


def run(script: str, args: Sequence[str], module: bool = False, budget: Any = None) -> int:
    """Run a script to its end.

    Args:
        script: A file, or a module's name.
        args: What the script finds in ``sys.argv``.
        module: ``script`` is a module's name.
        budget: To run it in (:class:`lowtide.memory_budget`); None for no budget.

    Returns:
        As :func:`main`.
    """
    if not script_is_there("run-as-torch", script, module):
        return USAGE_ERROR
    return run_script(script, args, module, within_budget(budget))


if __name__ == "__main__":
    sys.exit(main())
