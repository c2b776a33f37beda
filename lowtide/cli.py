"""The lowtide command: its subcommands, what they take, and where each is.

``python -m lowtide`` is the same command. Only the kinds of arguments are imported here: whatever a
subcommand needs, it imports when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import lowtide
from lowtide.cli_arguments import BUDGET, add_budget, chosen_budget, positive, positives, size
from lowtide.launch_arguments import add_launch

USAGE_ERROR, INTERRUPTED = 2, 130  # exit codes, as shells know them

REPORT_FILES = {
    "html": "a page for a browser",
    "png": "a picture (.png, .svg or .pdf)",
    "perfetto": "a trace for ui.perfetto.dev and speedscope",
    "snapshot": "a snapshot for pytorch.org/memory_viz",
    "flamegraph": "folded stacks of the peak, for flamegraph.pl and speedscope",
}
AS_TORCH = "run a PyTorch script: `import torch` imports lowtide in it"
EXAMPLES = {
    "run": "lowtide run digits --quick",
    "run-as-torch": "lowtide run-as-torch train.py --epochs 3",
    "launch": "lowtide launch -n 4 train.py --epochs 3",
    "recipes": "lowtide recipes",
    "compile": "lowtide compile",
    "doctor": "lowtide doctor",
    "profile": "lowtide profile train.py --epochs 1",
    "estimate": "lowtide estimate train.py",
    "leaks": "lowtide leaks train.py",
    "advise": "lowtide advise --limit 2GiB train.py",
    "fit": "lowtide fit --budget 2GiB train.py",
    "fit-table": "lowtide fit-table models.py --limits 1GiB,2GiB",
    "report": "lowtide report train-memory --html page.html",
    "diff": "lowtide diff before-memory after-memory --fail-over 2%",
    "top": "lowtide top",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the lowtide command.

    Args:
        argv: The words after ``lowtide``; those of the process by default.

    Returns:
        The exit code: 0, 2 for a wrong call, 130 after Ctrl-C, or the recipe's own.
    """
    parser = build_parser()
    options = parser.parse_args(argv)
    if getattr(options, "script", "") is None and not getattr(options, "recipe", None):
        example = EXAMPLES[options.command]
        print(f"lowtide {options.command} takes a script, as in: {example}", file=sys.stderr)
        return USAGE_ERROR
    if getattr(options, "as_torch", False):
        import lowtide.as_torch  # noqa: F401 - from here on `import torch` means lowtide
    try:
        for commands, run in _RUNNERS:
            if options.command in commands:
                return run(options)
    except KeyboardInterrupt as interrupt:
        print(f"\n{interrupt}" if interrupt.args else "\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `lowtide recipes | head -1` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    parser.print_help()
    return USAGE_ERROR


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="lowtide",
        description="Train with lowtide, and see where the memory goes.",
        epilog="Start with: lowtide run digits. Each command has --help.",
    )
    parser.add_argument("--version", action="version", version=f"lowtide {lowtide.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_recipes(commands)
    _add_machine(commands)
    _add_scripts(commands)
    _add_launch(commands)
    _add_recordings(commands)
    return parser


def _command(commands: Any, name: str, sentence: str, more: str = "") -> Any:
    # A subcommand: a line in the list of all, and a help of its own that ends with an example.
    return commands.add_parser(
        name,
        help=sentence,
        description=f"{sentence[0].upper()}{sentence[1:]}. {more}".strip(),
        epilog=f"Example: {EXAMPLES[name]}",
    )


def _add_recipes(commands: Any) -> None:
    run = _command(commands, "run", "run a recipe")
    run.add_argument("name", nargs="?", help="name of the recipe; `lowtide recipes` lists them")
    run.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        help="arguments of the recipe; see `lowtide run NAME --help`",
    )
    _command(commands, "recipes", "list the recipes: what each one trains, and its time and memory")


def _add_machine(commands: Any) -> None:
    ahead = _command(
        commands,
        "compile",
        "compile the CPU kernels that most models need, once per machine",
        "Other kernels are compiled when a program first calls them.",
    )
    ahead.add_argument(
        "--jobs", type=positive, metavar="N", help="number of processes (default: one per core)"
    )
    ahead.add_argument(
        "--clear", action="store_true", help="remove all compiled kernels, and compile none"
    )
    _command(commands, "doctor", "show versions, devices, memory, kernels, and what is missing")


def _add_scripts(commands: Any) -> None:
    profile = _command(
        commands,
        "profile",
        "run a script and report which modules, ops and lines own its memory",
        "Prints a summary, and writes a page, a picture and run.json into a folder.",
    )
    profile.add_argument(
        "-o", "--out", metavar="FOLDER", help="folder for the results (default: SCRIPT-memory)"
    )
    profile.add_argument("--full", action="store_true", help="print all tables")
    profile.add_argument(
        "--no-timeline", action="store_true", help="do not record events over time (for long runs)"
    )
    profile.add_argument(
        "--no-lines", action="store_true", help="do not record source lines or leaks (faster)"
    )
    profile.add_argument(
        "--live", action="store_true", help="let `lowtide top` show the script while it runs"
    )
    estimate = _command(
        commands, "estimate", "predict a script's memory without running its kernels"
    )
    leaks = _command(
        commands,
        "leaks",
        "run a script and find graphs and tensors that it keeps alive by mistake",
        "The exit code is 1 if something leaks.",
    )
    advise = _command(
        commands, "advise", "find changes that make a script fit, or make room for a larger batch"
    )
    advise.add_argument(
        "--limit",
        metavar="SIZE",
        help="memory limit, such as 2GiB or 500MB (default: the limit that the script sets)",
    )
    advise.add_argument(
        "--device", help="device whose memory counts (default: the one with the highest peak)"
    )
    budget = _command(
        commands,
        "fit",
        "predict whether a script fits a memory budget, and its cost",
        "Does not run its kernels. The exit code is 1 if it does not fit.",
    )
    budget.add_argument("--budget", metavar="SIZE", type=size, help=BUDGET)
    budget.add_argument(
        "--world-sizes",
        metavar="NUMBERS",
        type=positives,
        help="tell instead how many ranks with so many bytes each the script wants, and which way "
        "of sharing it out: numbers of ranks, such as 1,2,4",
    )
    budget.add_argument(
        "--plot",
        metavar="FILE",
        help="draw live bytes with the budget and without it (.png, .svg or .pdf)",
    )
    for command in (estimate, advise, leaks, budget):
        command.add_argument(
            "-o", "--out", metavar="FILE", help="write the results to FILE as JSON"
        )
    for command in (estimate, advise):
        command.add_argument(
            "--gpu",
            metavar="SIZE",
            help="predict for a GPU of this size, such as 24GiB; none is needed",
        )
    estimate.add_argument(
        "--world-size",
        metavar="N",
        type=int,
        help="imagine N processes, as `lowtide launch -n N` starts; none is needed",
    )
    estimate.add_argument(
        "--rank", metavar="R", type=int, default=0, help="which of them it is (default: 0)"
    )
    as_torch = _command(
        commands,
        "run-as-torch",
        "run an unmodified PyTorch script: `import torch` imports lowtide in it",
    )
    for command in (profile, as_torch):
        add_budget(command)
    for command in (profile, estimate, leaks, advise, budget, as_torch):
        if command is not as_torch:
            command.add_argument("--as-torch", action="store_true", help=AS_TORCH)
        command.add_argument(
            "-m",
            "--module",
            action="store_true",
            help="SCRIPT is the name of a module, as in python -m",
        )
        command.add_argument("script", metavar="SCRIPT", nargs="?", help="a Python file")
        command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    fit = _command(
        commands, "fit-table", "find the largest batch size for each model and memory limit"
    )
    fit.add_argument("--as-torch", action="store_true", help=AS_TORCH)
    fit.add_argument(
        "script",
        metavar="FILE",
        nargs="?",
        help="a Python file that defines models, batch and optimizer",
    )
    fit.add_argument(
        "--limits",
        metavar="SIZES",
        help="memory limits, such as 1GiB,2GiB (default: those of the file)",
    )
    fit.add_argument("--csv", metavar="FILE", help="write the results to FILE as CSV, in bytes")
    fit.add_argument("--png", metavar="FILE", help="write a picture (.png, .svg or .pdf)")


def _add_launch(commands: Any) -> None:
    parser = _command(
        commands,
        "launch",
        "start workers of a script on this machine, each with its rank, as torchrun does",
        "The options are torchrun's. If a worker fails, the others are ended, and the exit code is "
        "that of the first that failed.",
    )
    add_launch(parser)


def _add_recordings(commands: Any) -> None:
    report = _command(commands, "report", "show a recorded run again, and export it")
    report.add_argument("--full", action="store_true", help="print all tables")
    report.add_argument(
        "run", metavar="RUN", help="run.json of `lowtide profile`, or the folder that has it"
    )
    for kind, words in REPORT_FILES.items():
        report.add_argument(f"--{kind}", metavar="FILE", help=f"write {words}")
    diff = _command(commands, "diff", "compare two recorded runs")
    diff.add_argument("before", metavar="BEFORE", help="run.json of the first run, or its folder")
    diff.add_argument(
        "after", metavar="AFTER", help="run.json of the run to compare with it, or its folder"
    )
    diff.add_argument("--html", metavar="FILE", help="write a page that shows both side by side")
    diff.add_argument(
        "--fail-over",
        metavar="GROWTH",
        help="exit with 1 if the peak grew by more than this: 2%%, or a size such as 10MiB",
    )
    top = _command(commands, "top", "show the live bytes of a running script")
    top.add_argument(
        "pid",
        nargs="?",
        type=int,
        metavar="PID",
        help="process id; lists the scripts that run with --live if omitted",
    )
    top.add_argument("--once", action="store_true", help="print once and exit")


def _running(options: argparse.Namespace) -> int:
    if options.command == "run-as-torch":
        from lowtide.as_torch.__main__ import run as run_as_torch

        budget = chosen_budget(options)
        return run_as_torch(options.script, options.args, options.module, budget)
    from lowtide import recipe_command

    if options.command == "recipes":
        return recipe_command.recipes()
    return recipe_command.run(options.name, options.args)


def _launching(options: argparse.Namespace) -> int:
    from lowtide import launch_command

    return launch_command.launch(options)


def _on_the_machine(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        from lowtide import doctor_command

        return doctor_command.doctor()
    from lowtide import compile_command

    if options.clear:
        return compile_command.clear()
    return compile_command.compile_kernels(options.jobs)


def _watching(options: argparse.Namespace) -> int:
    if options.command == "diff":
        from lowtide import diff_command

        return diff_command.diff(options.before, options.after, options.html, options.fail_over)
    if options.command == "top":
        from lowtide import top_command

        return top_command.top(options.pid, options.once)
    from lowtide import leaks_command

    return leaks_command.leaks(options.script, options.args, module=options.module, out=options.out)


def _estimating(options: argparse.Namespace) -> int:
    from lowtide import estimate_command

    if options.command == "estimate":
        return estimate_command.estimate(
            options.script,
            options.args,
            options.out,
            module=options.module,
            gpu=options.gpu,
            world=(options.rank, options.world_size),
        )
    if options.world_sizes and options.plot:
        print("lowtide fit: --world-sizes draws no picture. Leave out --plot", file=sys.stderr)
        return USAGE_ERROR
    if options.world_sizes:
        return estimate_command.fit_ranks(
            options.script,
            options.args,
            options.budget,
            options.out,
            options.world_sizes,
            module=options.module,
        )
    return estimate_command.fit(
        options.script,
        options.args,
        options.budget,
        options.out,
        module=options.module,
        as_torch=options.as_torch,
        picture=options.plot,
    )


def _fitting(options: argparse.Namespace) -> int:
    from lowtide import advise_command

    if options.command == "advise":
        return advise_command.advise(
            options.script,
            options.args,
            options.limit,
            options.device,
            options.out,
            module=options.module,
            gpu=options.gpu,
        )
    return advise_command.print_fit_table(options.script, options.limits, options.csv, options.png)


def _profiling(options: argparse.Namespace) -> int:
    from lowtide import profile_command

    if options.command == "profile":
        return profile_command.profile(
            options.script,
            options.args,
            options.out,
            timeline=not options.no_timeline,
            lines=not options.no_lines,
            module=options.module,
            live=options.live,
            full=options.full,
            budget=chosen_budget(options),
        )
    asked = {kind: getattr(options, kind) for kind in REPORT_FILES}
    files = {kind: file for kind, file in asked.items() if file}
    return profile_command.report(options.run, files, options.full)


# Which function runs which commands; each imports what it needs.
_RUNNERS: tuple[tuple[tuple[str, ...], Callable[[argparse.Namespace], int]], ...] = (
    (("run", "recipes", "run-as-torch"), _running),
    (("launch",), _launching),
    (("compile", "doctor"), _on_the_machine),
    (("profile", "report"), _profiling),
    (("diff", "leaks", "top"), _watching),
    (("estimate", "fit"), _estimating),
    (("advise", "fit-table"), _fitting),
)
