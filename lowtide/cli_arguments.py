"""Kinds of arguments that several subcommands take, checked when the command is read."""

from __future__ import annotations

import argparse

from lowtide.framework.memory.sizes import as_bytes

BUDGET = "bytes that may live at once, such as 2GiB: saved values are dropped and made again"


def size(text: str) -> int:
    """A number of bytes: ``2GiB``, ``500MB``, ``1000``."""
    try:
        return as_bytes(int(text) if text.isdecimal() else text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """A number of processes."""
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"takes a number of processes, 1 or more; got {text!r}")
