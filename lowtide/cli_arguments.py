"""Kinds of arguments that several subcommands take, checked when the command is read."""

from __future__ import annotations

import argparse
from typing import Any

from lowtide.framework.checkpointing.budget import memory_budget
from lowtide.framework.checkpointing.disk import offload_to_disk
from lowtide.framework.memory.sizes import as_bytes

BUDGET = "memory budget, such as 2GiB: saved values are evicted and recomputed to stay within it"


def size(text: str) -> int:
    """A number of bytes: ``2GiB``, ``500MB``, ``1000``."""
    try:
        return as_bytes(int(text) if text.isdecimal() else text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how many bytes a program may have."""
    parser.add_argument("--memory-budget", metavar="SIZE", type=size, help=BUDGET)
    parser.add_argument(
        "--budget-of",
        choices=["pages", "tensors", "process"],
        default="pages",
        help="what the budget counts: the memory pages of tensors (default), the bytes of tensors, "
        "or all memory of the process",
    )
    parser.add_argument(
        "--budget-disk",
        metavar="DIR",
        help="folder for values that take less time to write and read than to recompute",
    )


def chosen_budget(options: argparse.Namespace, device: Any = None) -> memory_budget | None:
    """Return the budget that those options ask for; None if they ask for none."""
    if options.memory_budget is None:
        return None
    stash = () if options.budget_disk is None else offload_to_disk(options.budget_disk)
    budget = memory_budget(options.memory_budget, device, of=options.budget_of, stash=stash)
    budget.where = "the option --memory-budget"
    return budget


def positive(text: str) -> int:
    """A number of processes."""
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"takes a number of processes, 1 or more; got {text!r}")


def positives(text: str) -> list[int]:
    """Numbers of processes, with commas."""
    return [positive(part.strip()) for part in text.split(",")]
