"""The lowtide command: run a recipe, list recipes, say what this machine offers.

``python -m lowtide`` is the same command. Only the standard library is imported here: whatever a
subcommand needs, it imports when it runs.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

import lowtide

USAGE_ERROR, INTERRUPTED = 2, 130  # exit codes, as shells know them

# What the framework needs, and what only some work needs: how to install it, and what for.
REQUIRED = (
    "numpy", "scipy", "numba", "psutil", "nvidia-ml-py", "ml_dtypes", "safetensors", "rich",
    "matplotlib",
)  # fmt: skip
OPTIONAL = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "torch": ("torch",),
}
REPORT_FILES = {
    "html": "a page for a browser",
    "png": "a picture; .svg and .pdf do as well",
    "perfetto": "a trace for ui.perfetto.dev and speedscope",
    "snapshot": "a snapshot for pytorch.org/memory_viz",
    "flamegraph": "folded stacks of the peak, for flamegraph.pl and speedscope",
}
AS_TORCH = "the script is PyTorch's: in it, `import torch` means lowtide"
HINTS = {
    "cupy": "runs on NVIDIA GPUs: pip install 'lowtide[cuda]'",
    "torch": "only for the parity tests: pip install 'lowtide[parity]'",
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
    if getattr(options, "as_torch", False):
        import lowtide.as_torch  # noqa: F401 - from here on `import torch` means lowtide
    try:
        if options.command == "run":
            return run(options.name, options.args)
        if options.command == "run-as-torch":
            from lowtide.as_torch.__main__ import run as run_as_torch

            return run_as_torch(options.script, options.args, options.module)
        if options.command == "recipes":
            return recipes()
        if options.command == "compile":
            return compile_kernels(options.jobs)
        if options.command == "doctor":
            return doctor()
        if options.command in ("profile", "report"):
            return _profiling(options)
        if options.command == "diff":
            from lowtide import diff_command

            return diff_command.diff(options.before, options.after, options.html, options.fail_over)
        if options.command == "estimate":
            from lowtide import estimate_command

            return estimate_command.estimate(
                options.script,
                options.args,
                options.out,
                module=options.module,
                gpu=options.gpu,
            )
        if options.command in ("advise", "fit-table"):
            return _fitting(options)
        if options.command == "leaks":
            from lowtide import leaks_command

            return leaks_command.leaks(options.script, options.args, module=options.module)
        if options.command == "top":
            from lowtide import top_command

            return top_command.top(options.pid, options.once)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `lowtide recipes | head -1` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    parser.print_help()
    return USAGE_ERROR


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="lowtide", description="A training framework that knows where every byte is."
    )
    parser.add_argument("--version", action="version", version=f"lowtide {lowtide.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run_parser = commands.add_parser("run", help="run a recipe: lowtide run digits --quick")
    run_parser.add_argument("name", nargs="?", help="its name, as `lowtide recipes` lists it")
    run_parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="what the recipe itself takes; try --help"
    )
    commands.add_parser("recipes", help="list the recipes")
    ahead = commands.add_parser(
        "compile", help="compile the CPU's kernels that most models need, once on a machine"
    )
    ahead.add_argument("--jobs", type=int, default=0, help="processes at once; one for each core")
    commands.add_parser("doctor", help="show versions, devices, memory, and what is missing")
    profile = commands.add_parser("profile", help="run a script and show who owned its memory")
    profile.add_argument("-o", "--out", help="the folder to write to; SCRIPT-memory by default")
    profile.add_argument("--no-timeline", action="store_true", help="keep no events: for long runs")
    profile.add_argument("--no-lines", action="store_true", help="no lines, no leaks: faster")
    estimate = commands.add_parser("estimate", help="predict a script's memory without computing")
    estimate.add_argument("-o", "--out", metavar="FILE", help="write the figures there, as JSON")
    profile.add_argument(
        "--live", action="store_true", help="let `lowtide top PID` show it while it runs"
    )
    leaks = commands.add_parser(
        "leaks", help="run a script and name graphs that outlive their step"
    )
    advise = commands.add_parser(
        "advise", help="find changes that make a script fit, or make room for a larger batch"
    )
    advise.add_argument("--limit", metavar="SIZE", help="what may live: 2GiB, 500MB, bytes")
    advise.add_argument("--device", help="whose memory is meant; the fullest by default")
    advise.add_argument("-o", "--out", metavar="FILE", help="write the figures there, as JSON")
    for command in (estimate, advise):
        command.add_argument(
            "--gpu",
            metavar="SIZE",
            help="let the script find a GPU of this size, such as 24GiB, with or without one",
        )
    as_torch = commands.add_parser(
        "run-as-torch", help="run a PyTorch script as it is: in it, `import torch` means lowtide"
    )
    for command in (profile, estimate, leaks, advise, as_torch):
        if command is not as_torch:
            command.add_argument("--as-torch", action="store_true", help=AS_TORCH)
        command.add_argument(
            "-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m"
        )
        command.add_argument("script", metavar="SCRIPT", help="a Python file")
        command.add_argument("args", nargs=argparse.REMAINDER, help="what the script itself takes")
    fit = commands.add_parser("fit-table", help="find the largest batch by model and limit")
    fit.add_argument("--as-torch", action="store_true", help=AS_TORCH)
    fit.add_argument("script", metavar="FILE", help="a Python file: models, batch, optimizer")
    fit.add_argument("--limits", metavar="SIZES", help="such as 1GiB,2GiB; else those of the file")
    fit.add_argument("--csv", metavar="FILE", help="write the figures there, in bytes")
    fit.add_argument("--png", metavar="FILE", help="write a picture; .svg and .pdf do as well")
    report = commands.add_parser("report", help="show a recorded run again, and write its files")
    report.add_argument("run", metavar="RUN", help="a run.json of `lowtide profile`, or its folder")
    for kind, words in REPORT_FILES.items():
        report.add_argument(f"--{kind}", metavar="FILE", help=f"write {words}")
    diff = commands.add_parser("diff", help="compare two recorded runs")
    diff.add_argument("before", metavar="BEFORE", help="a run.json, or its folder")
    diff.add_argument("after", metavar="AFTER", help="another: what has it more?")
    diff.add_argument("--html", metavar="FILE", help="write a page of both, side by side")
    diff.add_argument(
        "--fail-over",
        metavar="GROWTH",
        help="exit with 1 if the peak grew by more: a share or a size",
    )
    top = commands.add_parser("top", help="show the live bytes of a running script")
    top.add_argument("pid", nargs="?", type=int, metavar="PID", help="its process; without: a list")
    top.add_argument("--once", action="store_true", help="print once, and do not refresh")
    return parser


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
        )
    asked = {kind: getattr(options, kind) for kind in REPORT_FILES}
    return profile_command.report(options.run, {k: file for k, file in asked.items() if file})


def run(name: str | None, args: Sequence[str]) -> int:
    """Run a recipe as a script, with its own arguments.

    Returns:
        Its exit code, or 2 if there is no such recipe.
    """
    known = {path.stem: path for path, _ in find_recipes()}
    if name is None:
        print(
            "lowtide run takes the name of a recipe, as in `lowtide run digits`. `lowtide recipes` "
            f"lists them: {', '.join(known) or 'none installed'}.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    name = name.removesuffix(".py").replace("-", "_")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        print(
            f"lowtide run takes the name of a recipe; got {name!r}. {hint}"
            f"`lowtide recipes` lists them: {', '.join(known) or 'none installed'}.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    import runpy

    before = sys.argv
    sys.argv = [name, *args]
    try:
        # By its path: under pytest, which rewrites plugins, the module's loader has no code to run.
        runpy.run_path(str(known[name]), run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    finally:
        sys.argv = before
    return 0


def recipes() -> int:
    """Print a table: what each recipe shows, what it costs, and its result."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    known = list(find_recipes())
    if not known:
        print("no recipes are installed")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe", style="bold", no_wrap=True)
    for heading in ("what it shows", "cost", "result"):
        table.add_column(heading, overflow="fold")
    for path, text in known:
        cells = text.partition("\n")[0], stated(text, "Cost"), stated(text, "Result")
        table.add_row(path.stem, *[Text(cell.replace("`", "")) for cell in cells])
    Console(highlight=False).print(table)
    print("\nCost: time on one busy CPU core, and peak memory. Run one with: lowtide run NAME")
    return 0


def stated(text: str, heading: str) -> str:
    """A paragraph of a docstring that begins with ``heading:``, on one line; "" if none does."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(f"{heading}: "):
            return " ".join(paragraph.removeprefix(f"{heading}: ").split())
    return ""


def find_recipes() -> Iterator[tuple[Path, str]]:
    """Each recipe's file, in the order of names, and its docstring; none of them is imported."""
    package = util.find_spec("lowtide.recipes")
    folders = package.submodule_search_locations if package is not None else None
    for path in sorted(p for folder in folders or () for p in Path(folder).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text:  # the others are what recipes share
            yield path, ast.get_docstring(ast.parse(text)) or ""


def compile_kernels(jobs: int) -> int:
    """Compile the kernels that most models need, where they are not kept already.

    Returns:
        0 if they are there, 1 if they cannot be kept on this machine.
    """
    from lowtide.framework.kernels.cpu.compiler import ahead, library

    try:
        count, seconds = ahead.compile_all(jobs)
    except RuntimeError as error:
        print(f"lowtide compile: {error}", file=sys.stderr)
        return 1
    print(f"compiled {count} kernels in {seconds:.1f} s; they are kept in {library.folder()}")
    return 0


def doctor() -> int:
    """Print versions, devices, threads and memory; name what is missing and how to get it.

    Returns:
        0 if everything that lowtide requires is there, else 1.
    """
    print(f"lowtide {lowtide.__version__} in {Path(lowtide.__path__[0])}")
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("\nPackages")
    missing = [name for name in REQUIRED if _version(name) is None]
    for name in REQUIRED:
        print(f"  {name:<14} {_version(name) or 'MISSING'}")
    for name, distributions in OPTIONAL.items():
        found = next(filter(None, map(_version, distributions)), None)
        print(f"  {name:<14} {found or 'not installed: ' + HINTS[name]}")
    print("\nDevices")
    for line in _devices():
        print(f"  {line}")
    print("\nMemory")
    for line in _memory():
        print(f"  {line}")
    if missing:
        print(f"\nMissing: {', '.join(missing)}. Install with: pip install {' '.join(missing)}")
        return 1
    print("\nNothing that lowtide requires is missing.")
    return 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = [f"{k}={os.environ[k]}" for k in _THREADS if k in os.environ]
    said = f" ({', '.join(limits)})" if limits else ""
    yield f"cpu: {_processor()}, {cores} cores usable{said}"
    yield "meta: shapes and bytes without values, always there"
    yield from _gpus()


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> Iterator[str]:
    # NVML answers without a CUDA context, and without CuPy.
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        yield "cuda: unknown, nvidia-ml-py is missing"
        return
    except pynvml.NVMLError as error:
        yield f"cuda: none ({error})"
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            yield f"cuda:{index}: {name}, {_gib(total)}"
        yield f"driver {pynvml.nvmlSystemGetDriverVersion()}"
        if count and not any(map(_version, OPTIONAL["cupy"])):
            yield "cupy is missing, so lowtide cannot use them: pip install 'lowtide[cuda]'"
    finally:
        pynvml.nvmlShutdown()


def _memory() -> Iterator[str]:
    try:
        import psutil
    except ImportError:
        yield "unknown, psutil is missing"
        return
    machine = psutil.virtual_memory()
    yield f"machine: {_gib(machine.available)} of {_gib(machine.total)} available"
    yield f"this process: {_gib(psutil.Process().memory_info().rss)} resident"


def _gib(n: int) -> str:
    from lowtide.framework.memory.ledger import format_bytes

    return format_bytes(n)
