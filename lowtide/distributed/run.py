"""``python -m lowtide.distributed.run``: in place of ``torchrun``, with its options.

``lowtide launch`` is the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lowtide.launch_arguments import add_launch
from lowtide.launch_command import launch
from lowtide.script_command import USAGE_ERROR

EXAMPLE = "python -m lowtide.distributed.run --nproc-per-node 4 train.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Start the workers of a script and wait for them.

    Args:
        argv: Options, script and its arguments; the words of the process by default.

    Returns:
        As :func:`lowtide.launch_command.launch`.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lowtide.distributed.run",
        description="Start workers of a script on this machine, each with its rank.",
        epilog=f"Example: {EXAMPLE}",
    )
    add_launch(parser)
    options = parser.parse_args(argv)
    if options.script is None and not options.recipe:
        print(f"lowtide launch takes a script, as in: {EXAMPLE}", file=sys.stderr)
        return USAGE_ERROR
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())
