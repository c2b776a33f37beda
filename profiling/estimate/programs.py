"""Questions about a program as it is: what it takes, what makes it fit, how many ranks it wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from . import fake_kernels
from .advice_request import AdviceRequest
from .advise import answer, device_and_limit
from .changes import Change
from .estimate import Estimate, imagined
from .fork_sandbox import branched, run_apart
from .proposals import Advice
from .rank_table import RankTable, check_alone, table_of
from .stopped_program import OnCall, StoppedProgram


def _asked_where_it_stands(
    name: str,
    program: Callable[[], Any],
    on_call: OnCall,
    question: Callable[[StoppedProgram], Any],
    gpu: int | None = None,
) -> Any:
    with branched() as branch:
        if branch.pid == 0:
            try:
                branch.begin()
                StoppedProgram(branch, name, program, on_call, question, gpu).run()
            except BaseException as error:
                branch.fail(error)
        return branch.answer()


def advise_program(
    program: Callable[[], Any],
    on_call: OnCall,
    limit: int | None,
    device: Any = None,
    larger: bool = True,
    gpu: int | None = None,
) -> Advice:
    """Advise on the training step of a program.

    Args:
        program: Runs it from its start to its end.
        on_call: Registers a function of (module, args), called before any module's forward.
        limit: Bytes that may live on the device; the limit that the program sets, if None.
        device: As for :func:`~lowtide.profiling.advise`.
        larger: Also look for larger batches.
        gpu: Bytes of a GPU that the program shall find, whether there is one or not.

    Raises:
        ValueError: The program calls no module with a parameter to train; or no limit is known.
        Exception: What the program raises.
    """

    def advise(stopped: StoppedProgram) -> Advice:
        before, reached = stopped.estimate([])
        name, allowed = device_and_limit(before, limit, device)
        request = AdviceRequest(
            run=stopped.estimate,
            roots=stopped.roots,
            optimizers=stopped.optimizers,
            batch=(stopped.rows, stopped.batch),
            resized=stopped.resized,
            device=name,
            limit=allowed,
            before=before,
            reached=reached,
            drawn=True,
        )
        found = answer(request, larger)
        return replace(found, run=stopped.longer_run(name))

    return _asked_where_it_stands(  # type: ignore[no-any-return]
        "advise", program, on_call, advise, gpu
    )


def rank_table_of_program(
    program: Callable[[], Any], on_call: OnCall, world_sizes: Sequence[int], limit: int | None
) -> RankTable:
    """Predict the peak of a program's training step if ranks share it out.

    Args:
        program: Runs it from its start to its end, in one process.
        on_call: As for :func:`advise_program`.
        world_sizes: Numbers of ranks.
        limit: Bytes that may live in a rank; None to ask about no limit.

    Raises:
        ValueError: The program calls no module with a parameter to train, or makes a process group
            itself.
        Exception: What the program raises.
    """

    def table(stopped: StoppedProgram) -> RankTable:
        check_alone()

        def estimate(changes: list[Change]) -> Estimate:
            return stopped.estimate(changes)[0]

        estimate([])  # what it raises as it is
        optimizers = list(stopped.optimizers.values())
        return table_of(estimate, stopped.roots, optimizers, world_sizes, limit)

    return _asked_where_it_stands(  # type: ignore[no-any-return]
        "rank_table", program, on_call, table
    )


def estimate_program(
    program: Callable[[], Any], gpu: int | None = None, world: tuple[int, int] | None = None
) -> Estimate:
    """Estimate a program from its start to its end, its first step apart from the later ones.

    Args:
        program: Runs it.
        gpu: Bytes of a GPU that it shall find, whether there is one or not.
        world: (rank, number of ranks) that it shall find itself in; None for what there is.
    """

    def before() -> None:
        if gpu is not None:
            fake_kernels.begin().imagine_gpu(gpu)

    return run_apart(lambda: imagined(program, (), {}, before, again=False, world=world))
