"""``lowtide launch``: many workers of one script, each with its rank, as torchrun starts them.

On several nodes, start one launcher a node with the same options and a ``--node-rank`` each. Under
Slurm, ``srun --ntasks-per-node=1 lowtide launch -n 4 train.py`` starts them, and Slurm's variables
say how many nodes there are, which one this is (``SLURM_NODEID``), and which is the first
(``SLURM_STEP_NODELIST`` or ``SLURM_JOB_NODELIST``).

With ``--max-restarts`` each launcher starts its own workers again. On several nodes, those of the
others fail when their connections break, and their launchers do so too: give all the same number.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from lowtide.framework.distributed.launch.environment import (
    DEFAULT_PORT,
    LOOPBACK,
    Job,
    SlurmNode,
    slurm,
)
from lowtide.framework.distributed.launch.launcher import Launcher
from lowtide.launch_arguments import port as as_port
from lowtide.profile_command import has_ranks, report_of_ranks
from lowtide.script_command import USAGE_ERROR, script_is_there

ENDPOINT_PORT = 29400  # torchrun's, for an endpoint without one


class _Refused(Exception):
    """Options that do not fit together, in words."""


def launch(options: argparse.Namespace) -> int:
    """Start the workers and wait for them.

    Args:
        options: Of :func:`lowtide.launch_arguments.add_launch`.

    Returns:
        The exit code of the worker that failed first; 0 if none did; 2 for a wrong call.
    """
    try:
        job, command = chosen_job(options), chosen_command(options)
    except _Refused as refused:
        print(f"lowtide launch: {refused}", file=sys.stderr)
        return USAGE_ERROR
    plain = not (options.module or options.no_python or options.recipe)
    if plain and not script_is_there("launch", options.script, False):
        return USAGE_ERROR
    code = Launcher(job, command, options.grace, prefix=not options.no_prefix).run()
    if options.profile and has_ranks(options.profile):
        print()
        report_of_ranks(options.profile, {"png": str(Path(options.profile, "ranks.png"))})
        print(f"\nWritten to {options.profile}: ranks.png, and a folder for each rank")
    return code


def chosen_command(options: argparse.Namespace) -> list[str]:
    """What each worker runs.

    Raises:
        _Refused: The options do not fit together.
    """
    if options.in_place_of_torch and (options.recipe or options.no_python):
        raise _Refused("--as-torch is for a Python script. Leave out --recipe and --no-python")
    given: Sequence[str] = [] if options.script is None else [options.script, *options.args]
    if options.recipe:
        given = given[1:] if given[:1] == ["--"] else given
        given = ["-m", "lowtide", "run", options.recipe, *given]
    elif options.no_python:
        if options.profile:
            raise _Refused("--profile is for a Python script. Leave out --no-python")
        return [*given]
    elif options.module:
        given = ["-m", *given]
    as_torch = ["--as-torch"] if options.in_place_of_torch else []
    if options.profile:
        profile = ["profile", "-o", os.path.abspath(options.profile), *as_torch]
        return [sys.executable, "-m", "lowtide", *profile, *given]
    if options.in_place_of_torch:
        given = ["-m", "lowtide", "run-as-torch", *given]
    return [sys.executable, *given]


def chosen_job(options: argparse.Namespace) -> Job:
    """Who the workers are, by the options and by Slurm's variables.

    Raises:
        _Refused: The options do not fit together.
    """
    _refuse_files(options)
    host, port = _endpoint(options)
    batch = None if options.standalone else slurm(os.environ)
    if options.nnodes is not None and batch is not None and options.nnodes != batch.nodes:
        batch = None  # the options know better
    nodes = options.nnodes or (batch.nodes if batch else 1)
    if options.standalone and nodes > 1:
        raise _Refused(f"--standalone is for one node; got --nnodes {nodes}. Leave one of them out")
    if options.bind_cores and not hasattr(os, "sched_setaffinity"):
        raise _Refused("--bind-cores needs Linux. Leave it out here")
    if nodes == 1:
        if options.node_rank:
            raise _Refused(
                f"--node-rank {options.node_rank} is not on one node. Give --nnodes as well"
            )
        return _job(options, 1, 0, host or LOOPBACK, port or None)
    return _one_of_many(options, batch, nodes, host, port)


def _one_of_many(
    options: argparse.Namespace, batch: SlurmNode | None, nodes: int, host: str, port: int | None
) -> Job:
    if batch is not None and batch.local_id:
        raise _Refused(
            "Slurm has started several launchers on this node. Start one, with as many workers: "
            "srun --ntasks-per-node=1 lowtide launch -n WORKERS SCRIPT"
        )
    node: int | None = options.node_rank
    if node is None and batch is not None:
        node = batch.node_rank
    if node is None:
        raise _Refused(
            f"with --nnodes {nodes}, give each launcher the number of its node: --node-rank 0 to "
            f"{nodes - 1}"
        )
    if node >= nodes:
        raise _Refused(f"--node-rank is 0 to {nodes - 1} with --nnodes {nodes}; got {node}")
    host = host or (batch.master if batch else "")
    if not host:
        raise _Refused(
            f"with --nnodes {nodes}, give all launchers the address of node 0: --master-addr HOST"
        )
    if port == 0:
        raise _Refused("with several nodes, all must name the same port: --master-port PORT")
    if batch is not None:
        print(
            f"lowtide launch: node {node} of {nodes}, as Slurm says; node 0 is {host}.",
            file=sys.stderr,
        )
    name = batch.run_id if batch else "none"  # the same on all nodes; "none" is torchrun's
    return _job(options, nodes, node, host, port or DEFAULT_PORT, name)


def _job(
    options: argparse.Namespace, nodes: int, node: int, host: str, port: int | None, name: str = ""
) -> Job:
    return Job(
        local_size=options.nproc_per_node,
        nodes=nodes,
        node_rank=node,
        master_addr=host,
        master_port=port,
        max_restarts=options.max_restarts,
        run_id=options.rdzv_id or name or uuid.uuid4().hex,
        role=options.role,
        bind_cores=options.bind_cores,
    )


def _refuse_files(options: argparse.Namespace) -> None:
    for name, value in (("--redirects", options.redirects), ("--log-dir", options.log_dir)):
        if value not in (None, "0"):
            raise _Refused(
                f"{name} {value}: the workers' output is not written to files. Redirect it in the "
                "shell, as in: lowtide launch ... > log.txt 2>&1; each line begins with its rank"
            )


def _endpoint(options: argparse.Namespace) -> tuple[str, int | None]:
    # The host ("" if none is given) and port (None) of the meeting place.
    if options.standalone or not options.rdzv_endpoint:
        if options.standalone:
            return LOOPBACK, None
        return options.master_addr or "", options.master_port
    if options.master_addr or options.master_port is not None:
        raise _Refused("give --rdzv-endpoint, or --master-addr and --master-port, not both")
    host, colon, number = options.rdzv_endpoint.rpartition(":")
    if not colon:
        return options.rdzv_endpoint, ENDPOINT_PORT
    try:
        return host.strip("[]"), as_port(number)
    except argparse.ArgumentTypeError:
        raise _Refused(f"--rdzv-endpoint takes HOST:PORT; got {options.rdzv_endpoint!r}") from None
