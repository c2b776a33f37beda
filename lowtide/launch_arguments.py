"""The options of ``lowtide launch``, which are torchrun's, checked when the command is read."""

from __future__ import annotations

import argparse

from lowtide.framework.kernels.runtime import cores

NO_EFFECT = "accepted from torchrun's command lines; has no effect"


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how many workers there are, where, and what they run."""
    _add_workers(parser)
    _add_meeting(parser)
    _add_output(parser)
    parser.add_argument(
        "--as-torch",
        dest="in_place_of_torch",
        action="store_true",
        help="run a PyTorch script: `import torch` imports lowtide in it",
    )
    parser.add_argument(
        "--profile",
        metavar="FOLDER",
        help="profile each worker, write the results to FOLDER, and print the ranks side by side",
    )
    runs = parser.add_mutually_exclusive_group()
    runs.add_argument(
        "-m",
        "--module",
        action="store_true",
        help="SCRIPT is the name of a module, as in python -m",
    )
    runs.add_argument(
        "--no-python",
        "--no_python",
        action="store_true",
        help="SCRIPT is a program, and is run without Python",
    )
    runs.add_argument(
        "--recipe", metavar="NAME", help="run a recipe of `lowtide recipes` in place of a script"
    )
    for name in ("run-path", "use-env"):
        parser.add_argument(*_both(name), action="store_true", help=NO_EFFECT)
    for name in ("start-method", "monitor-interval", "rdzv-conf"):
        parser.add_argument(*_both(name), metavar="VALUE", help=NO_EFFECT)
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")


def _both(name: str) -> tuple[str, ...]:
    # An option as torchrun spells it, with dashes and with underscores.
    return (f"--{name}", f"--{name.replace('-', '_')}")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        *_both("nproc-per-node"),
        metavar="N",
        type=workers,
        default=1,
        help="number of workers on each node, or `auto` for one per core (default: 1)",
    )
    parser.add_argument(
        *_both("max-restarts"),
        metavar="N",
        type=count,
        default=0,
        help="how often to start all workers again after one failed (default: 0)",
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=seconds,
        default=2.0,
        help="time that workers have to end before they are killed (default: 2)",
    )
    parser.add_argument(
        *_both("bind-cores"),
        action="store_true",
        help="let each worker run on its share of the cores only (Linux)",
    )
    parser.add_argument(
        "--role", metavar="NAME", default="default", help="value of ROLE_NAME (default: default)"
    )


def _add_meeting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nnodes",
        metavar="N",
        type=nodes,
        help="number of nodes, each with a launcher (default: 1, or what Slurm says)",
    )
    parser.add_argument(
        *_both("node-rank"),
        metavar="K",
        type=count,
        help="number of this node, from 0 (default: 0, or what Slurm says)",
    )
    parser.add_argument(
        *_both("master-addr"),
        metavar="HOST",
        help="address of node 0 (default: 127.0.0.1 on one node, or what Slurm says)",
    )
    parser.add_argument(
        *_both("master-port"),
        metavar="PORT",
        type=port,
        help="TCP port on node 0 (default: a free one on one node, else 29500)",
    )
    parser.add_argument(
        "--standalone", action="store_true", help="one node, with a free port, also under Slurm"
    )
    parser.add_argument(
        *_both("rdzv-backend"),
        choices=["static", "c10d"],
        help="accepted from torchrun's command lines: both mean the port on node 0",
    )
    parser.add_argument(
        *_both("rdzv-endpoint"),
        metavar="HOST:PORT",
        help="address and port of node 0, in place of --master-addr and --master-port",
    )
    parser.add_argument(
        *_both("rdzv-id"), metavar="NAME", help="name of the job, for TORCHELASTIC_RUN_ID"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *_both("no-prefix"),
        action="store_true",
        help="do not write [RANK]: in front of the lines of several workers",
    )
    parser.add_argument(
        "-t",
        "--tee",
        metavar="VALUE",
        help="accepted from torchrun's command lines: all output is shown, always",
    )
    parser.add_argument(
        "-r", "--redirects", metavar="VALUE", help="refused: redirect the output in the shell"
    )
    parser.add_argument(
        *_both("log-dir"), metavar="DIR", help="refused: redirect the output in the shell"
    )


def workers(text: str) -> int:
    """A number of workers: ``4``, or ``auto`` for one per core."""
    if text in ("auto", "cpu"):
        return cores.usable()
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(
        f"takes a number of workers, 1 or more, or auto for one per core; got {text!r}"
    )


def nodes(text: str) -> int:
    """A number of nodes: ``2``, or torchrun's ``2:2``."""
    least, _, most = text.partition(":")
    if least.isdecimal() and int(least) and most in ("", least):
        return int(least)
    if least.isdecimal() and most.isdecimal():
        raise argparse.ArgumentTypeError(
            f"lowtide starts on a fixed number of nodes; got {text!r}. Name one number"
        )
    raise argparse.ArgumentTypeError(f"takes a number of nodes, 1 or more; got {text!r}")


def count(text: str) -> int:
    """A number from 0."""
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"takes a number, 0 or more; got {text!r}")


def port(text: str) -> int:
    """A TCP port; 0 is a free one."""
    if text.isdecimal() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"takes a TCP port, 0 to 65535; got {text!r}")


def seconds(text: str) -> float:
    """A time from 0."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if 0 <= found < float("inf"):
        return found
    raise argparse.ArgumentTypeError(f"takes seconds, 0 or more; got {text!r}")
