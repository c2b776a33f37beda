"""The options that every recipe has, checked before anything is loaded or computed."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

import lowtide as lt
from lowtide.cli_arguments import add_budget


def options(doc: str, *, batch_size: int, lr: float, **length: int) -> argparse.ArgumentParser:
    """The options that every recipe has; it adds its own.

    Args:
        doc: The recipe's docstring.
        batch_size: Its default.
        lr: Its default.
        **length: ``epochs=`` or ``steps=``, whichever the recipe counts in.
    """
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=f"lowtide run {name}", description=doc.splitlines()[0])
    parser.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: cpu)")
    if "epochs" in length:
        parser.add_argument(
            "--epochs", type=count, default=length["epochs"], help="passes over the data"
        )
    parser.add_argument(
        "--steps", type=count, default=length.get("steps"), help="stop after this many steps"
    )
    parser.add_argument("--batch-size", type=count, default=batch_size, help="examples per step")
    parser.add_argument("--lr", type=rate, default=lr, help=f"learning rate (default: {lr})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    parser.add_argument("--data-dir", type=folder, help="folder with the data files")
    parser.add_argument(
        "--out", type=target, help="folder for the results (default: a new one, runs/NAME)"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument(
        "--checkpoint-every", type=count, metavar="STEPS", help="steps between checkpoints"
    )
    add_budget(parser)
    parser.add_argument(
        "--compile", action="store_true", help="record the model's kernel calls and replay them"
    )
    parser.add_argument("--memory-report", action="store_true", help="report where the memory went")
    parser.add_argument("--quick", action="store_true", help="train for a few seconds only")
    return parser


def count(text: str) -> int:
    """A number of things, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"takes an integer, 1 or more; got {text!r}")
    return number


def rate(text: str) -> float:
    """A learning rate."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"takes a number, 0 or more, as in 1e-3; got {text!r}")
    return number


def device(text: str) -> str:
    """A device that computes."""
    try:
        found = lt.device(text)
        if found.type in ("cpu", "cuda"):
            lt.zeros(1, device=found)
            return text
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    raise argparse.ArgumentTypeError(f"a recipe needs values: takes cpu or cuda; got {text!r}")


def folder(text: str) -> str:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"takes a folder; {text!r} {'is a file' if Path(text).exists() else 'does not exist'}"
        )
    return text


def target(text: str) -> Path:
    """A folder that can be made, if it is not there."""
    there = next(p for p in (Path(text), *Path(text).absolute().parents) if p.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"takes a folder to write to; {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"takes a folder to write to; {there} may not be written")
    return Path(text)
