"""Imports point one way: framework <- modules, optim, profiling <- the face <- all the rest.

And inside framework and profiling, folder by folder: ``LAYERS``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = {"framework", "modules", "optim", "profiling"}
MAY_IMPORT = {
    "framework": set(),
    "modules": {"framework"},
    "optim": {"framework"},
    "profiling": {"framework"},
    "lowtide": CORE,
    "recipes": {"lowtide", "optim", "profiling"},
    "benchmarks": {"lowtide", *CORE},
    "tests": {"lowtide", *CORE},
}
MAPPED = CORE | {"recipes"}  # folders that are lowtide.<folder> when imported
RUN_TIME = MAPPED | {"lowtide"}
OTHER_FRAMEWORKS = {"torch", "tensorflow", "jax", "mlx", "tinygrad", "paddle", "chainer"}


def files(root: Path, folders: set[str]) -> Iterator[Path]:
    for folder in sorted(folders):
        yield from sorted((root / folder).rglob("*.py"))


def imported(path: Path, root: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, relative) of each import; relative ones made absolute."""
    parts = path.relative_to(root).parts
    package = list(parts[:-1]) if parts[0] == "lowtide" else ["lowtide", *parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, False
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package[: len(package) - node.level + 1]
                base = ".".join([*start, *([base] if base else [])])
            if base == "lowtide":  # the names decide: `from lowtide import optim`
                for alias in node.names:
                    yield node.lineno, f"lowtide.{alias.name}", bool(node.level)
            else:
                yield node.lineno, base, bool(node.level)


def folder_of(name: str) -> str | None:
    """The top folder that an absolute import leads to; None for other people's packages."""
    first, _, rest = name.partition(".")
    if first != "lowtide":
        return None
    second = rest.partition(".")[0]
    return second if second in MAPPED else "lowtide"


def violations(root: Path) -> list[str]:
    """Every import below ``root`` that the table does not allow."""
    found = []
    for path in files(root, set(MAY_IMPORT)):
        own = path.relative_to(root).parts[0]
        for line, name, relative in imported(path, root):
            where = f"{path.relative_to(root)}:{line}"
            first = name.partition(".")[0]
            if first in MAPPED:
                found.append(f"{where} imports {name}: write lowtide.{name}")
                continue
            target = folder_of(name)
            if target is None:
                if own in RUN_TIME and first in OTHER_FRAMEWORKS:
                    found.append(f"{where} imports {name}, which lowtide must not need")
                continue
            if own in CORE and not relative:
                found.append(f"{where} imports {name} absolutely: use a relative import")
            elif own == "recipes" and relative:
                found.append(f"{where} imports {name} relatively: it would not run as a script")
            elif target != own and target not in MAY_IMPORT[own]:
                found.append(f"{where}: {own} must not import {target}")
    return found


def test_imports_point_one_way() -> None:
    assert violations(ROOT) == []


PLANTED = {
    "framework/ops/a.py": "from ...optim import SGD",
    "framework/b.py": "def f():\n    from ..modules.linear import Linear",
    "framework/c.py": "from .. import nn",
    "framework/d.py": "import lowtide.framework.tensor",
    "modules/a.py": "from ..optim.sgd import SGD",
    "modules/b.py": "from lowtide.framework.tensor import Tensor",
    "optim/a.py": "from .. import modules",
    "optim/b.py": "if TYPE_CHECKING:\n    from ..profiling.memory import MemoryProfiler",
    "profiling/a.py": "from ..recipes.digits import main",
    "profiling/b.py": "import torch.nn",
    "lowtide/nn/a.py": "from lowtide import recipes",
    "lowtide/b.py": "from framework.tensor import Tensor",
    "recipes/a.py": "from lowtide.framework.tensor import Tensor",
    "recipes/b.py": "from lowtide import modules",
    "recipes/c.py": "from . import digits",
    "tests/a.py": "import optim",
    "benchmarks/a.py": "from lowtide import recipes",
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_violation_is_found(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(f"import numpy\n{PLANTED[place]}\n")
    found = violations(tmp_path)
    assert len(found) == 1
    assert place in found[0]


ALLOWED = {
    "framework/ops/a.py": "from ..tensor import Tensor\nfrom . import rules",
    "modules/a.py": "from ..framework.tensor import Tensor\nfrom .base import Module",
    "optim/a.py": "from ..framework.ops import zeros_like",
    "lowtide/nn/a.py": "from lowtide.modules import Linear\nfrom lowtide import autograd",
    "recipes/a.py": "import lowtide as lt\nfrom lowtide import nn\nimport lowtide.profiling\n"
    "from lowtide.recipes import data",
    "tests/a.py": "import torch\nfrom lowtide.framework.tensor import Tensor",
    "benchmarks/a.py": "import torch\nimport lowtide.optim",
}


@pytest.mark.parametrize("place", ALLOWED)
def test_an_arrow_of_the_table_is_allowed(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(ALLOWED[place] + "\n")
    assert violations(tmp_path) == []


# Inside framework and profiling


LAYERS = """
    framework/errors framework/interrupts framework/compat framework/memory_format framework/dtypes
    framework/device framework/kernels/runtime framework/execution framework/data_dependence
    framework/modes framework/memory framework/spec framework/storage
    framework/kernels/cuda/kernel framework/kernels/cuda/printer framework/kernels/cuda/matmul
    framework/kernels/common framework/kernels/formula
    framework/kernels/cpu framework/kernels/cuda framework/devices framework/devices/sim
    framework/tensor
    framework/printing framework/attribution framework/random framework/autograd/given_ops
    framework/autograd framework/autograd/remat framework/ops framework/ops/creation
    framework/ops/indexing/cpu_routes framework/ops/views framework/ops/manipulation
    framework/ops/views/slice framework/ops/conversion framework/ops/random framework/ops/indexing
    framework/ops/elementwise framework/ops/reduction framework/ops/linalg
    framework/ops/reduction/statistics framework/ops/activation framework/ops/convolution
    framework/ops/pooling framework/ops/normalization framework/ops/sparse
    framework/ops/embedding framework/ops/signal
    framework/ops/vision framework/ops/recurrent framework/ops/attention framework/ops/loss
    framework/vmap framework/autograd/functional framework/autograd/transforms
    framework/vmap/custom_function framework/vmap/transform framework/amp framework/interop
    framework/distributions framework/listed_updates framework/updates framework/checkpointing
    framework/distributed
    framework/data
    framework/capture
    framework/serialization framework/distributed/objects framework/distributed/checkpoint
    framework/testing framework/codegen
    profiling/leaks profiling/record profiling/analysis profiling/record/event_log
    profiling/profile profiling/ranks profiling/report profiling/exports
    profiling/profiler profiling/magics profiling/estimate profiling/publisher
    profiling/assertions profiling/loggers profiling/op_times profiling/op_table profiling/stepwise
""".split()
"""Folders, and files that stand elsewhere than their folder: each imports only what comes before.

At module level, that is, and not for type checkers alone."""
LAYERED = {"framework", "profiling"}
FACES = {
    "framework/__init__.py",
    "framework/kernels/__init__.py",
    "framework/ops/__init__.py",
    "profiling/__init__.py",
}
DEFERRED = (  # to defer these is what an import inside a function is for
    "lowtide.framework.kernels.cpu",  # Numba
    "lowtide.framework.capture.tape",  # as above
    "lowtide.framework.devices.host",  # backends: made when a device is first asked for
    "lowtide.framework.devices.cuda",
    "lowtide.framework.devices.sim",
    "lowtide.framework.distributed.mpi",  # what one process does without
    "lowtide.framework.distributed.rendezvous",
    "lowtide.framework.distributed.store_connections",
    "lowtide.profiling.report",  # reports, plots and files, of which a program asks for one
    "lowtide.profiling.exports",
)
LATE = {  # (file, what it imports inside a function): why
    ("framework/checkpointing/stash.py", "framework/checkpointing/regions"): "a decorator of"
    " policies opens a region, and regions ask the policies",
    ("framework/ops/activation/relu.py", "framework/ops/activation/glu_prelu"): "PyTorch computes a"
    " leaky_relu of a tensor slope as prelu, whose gradient is made of relu's",
    ("framework/ops/elementwise/bitmask.py", "framework/ops/elementwise/comparison"): "samples of"
    " an op that clamp is made of",
    ("framework/ops/linalg/checks.py", "framework/ops/linalg/lu"): "a message wants the pivots",
    ("framework/ops/reduction/sum.py", "framework/ops/reduction/scan"): "the gradient of prod is"
    " made of scans, and theirs of sums",
    ("framework/serialization/save_load.py", "framework/serialization/pytorch_files"): "only"
    " PyTorch's files need zip archives and the unpickler",
    ("modules/hooks.py", "modules/module"): "hooks on all modules, and Module inherits from hooks",
    ("lowtide/cli.py", "lowtide/profile_command"): "other commands need no profiler",
    ("lowtide/cli.py", "lowtide/recipe_command"): "the command starts without what others need",
    ("lowtide/cli.py", "lowtide/compile_command"): "as above",
    ("lowtide/cli.py", "lowtide/doctor_command"): "as above",
    ("lowtide/cli.py", "lowtide/diff_command"): "as above",
    ("lowtide/cli.py", "lowtide/estimate_command"): "as above",
    ("lowtide/cli.py", "lowtide/advise_command"): "as above",
    ("lowtide/cli.py", "lowtide/leaks_command"): "as above",
    ("lowtide/cli.py", "lowtide/top_command"): "as above",
    ("lowtide/cli.py", "lowtide/launch_command"): "as above",
    ("lowtide/cli.py", "lowtide/as_torch/__main__"): "from there on `import torch` is lowtide",
    ("lowtide/profile_command.py", "profiling"): "its help is shown without the framework",
}
MOST_LATE = 133
MOST_IN_CIRCLE = 4


class Import(NamedTuple):
    """One import of ours in a file: where, what, and whether a function or a type checker does."""

    path: str
    line: int
    target: str  # a file, without its suffix; a folder for its __init__.py
    name: str
    late: bool


def dotted(path: Path) -> str:
    parts = list(path.with_suffix("").parts)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "lowtide" else ["lowtide", *parts])


def graph(root: Path) -> list[Import]:
    """Every import of ours by ours below ``root`` that happens at run time."""
    paths = {dotted(p.relative_to(root)): p for p in files(root, RUN_TIME)}
    found = []
    for path in paths.values():
        here = path.relative_to(root)
        package = (
            list(here.parts[:-1]) if here.parts[0] == "lowtide" else ["lowtide", *here.parts[:-1]]
        )
        for node, late in _imports(ast.parse(path.read_text(encoding="utf-8")), False):
            base = node.module or ""
            if node.level:
                start = package[: len(package) - node.level + 1]
                base = ".".join([*start, *([base] if base else [])])
            for name in dict.fromkeys(
                full if (full := f"{base}.{a.name}") in paths else base for a in node.names
            ):
                target = paths.get(name)
                if target is not None and target != path:
                    to = target.relative_to(root).with_suffix("").as_posix()
                    to = to.removesuffix("/__init__")
                    found.append(Import(here.as_posix(), node.lineno, to, name, late))
    return found


def _imports(node: ast.AST, late: bool) -> Iterator[tuple[ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield child, late
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(other, late)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, late or inside)


def layer_of(file: str) -> int | None:
    """The place in ``LAYERS`` of a file or folder: of the longest entry that leads to it."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    for n in range(len(parts), 0, -1):
        if "/".join(parts[:n]) in LAYERS:
            return LAYERS.index("/".join(parts[:n]))
    return None


def upward(root: Path, imports: list[Import]) -> list[str]:
    """Imports at module level that lead up, and files that have no place in ``LAYERS``."""
    found = [
        f"{path} has no place in LAYERS"
        for path in (p.relative_to(root).as_posix() for p in files(root, LAYERED))
        if path not in FACES and layer_of(path) is None
    ]
    for i in imports:
        own, target = layer_of(i.path), layer_of(i.target)
        same = i.path.partition("/")[0] == i.target.partition("/")[0]
        if i.late or i.path in FACES or own is None or not same:
            continue
        if target is None or target > own:
            found.append(f"{i.path}:{i.line} must not import {i.target}, which lies above it")
    return found


def unexplained(imports: list[Import]) -> list[str]:
    """Imports inside functions that defer nothing and have no reason in ``LATE``."""
    found = []
    for i in imports:
        deferred = any(i.name == d or i.name.startswith(f"{d}.") for d in DEFERRED)
        if i.late and not deferred and (i.path, i.target) not in LATE:
            found.append(f"{i.path}:{i.line} imports {i.target} inside a function")
    return found


def circles(imports: list[Import]) -> list[set[str]]:
    """Groups of files that import each other in a circle, the largest first."""
    after: dict[str, set[str]] = {}
    for i in imports:
        own = i.path.removesuffix(".py").removesuffix("/__init__")
        after.setdefault(own, set()).add(i.target)
    reached = {file: _reached(after, file) for file in after}
    groups = {
        frozenset(other for other in reached[file] if file in reached.get(other, ()))
        for file in after
    }
    return sorted((set(g) for g in groups if g), key=len, reverse=True)


def _reached(after: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in after.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return graph(ROOT)


def test_folders_of_the_core_import_downwards(imports: list[Import]) -> None:
    assert upward(ROOT, imports) == []


def test_imports_inside_functions_defer_something_or_say_why(imports: list[Import]) -> None:
    assert unexplained(imports) == []
    late = [i for i in imports if i.late]
    assert len({(i.path, i.line) for i in late}) <= MOST_LATE
    assert set(LATE) <= {(i.path, i.target) for i in late}, "a reason for what is no longer there"


def test_no_listed_import_inside_a_function_leads_up() -> None:
    for path, target in LATE:
        own, other = layer_of(path), layer_of(target)
        same_folder = path.rpartition("/")[0] == target.rpartition("/")[0]
        assert same_folder or own is None or other is None or other < own, (path, target)


def test_circles_of_files_are_small(imports: list[Import]) -> None:
    assert max(map(len, circles(imports)), default=0) <= MOST_IN_CIRCLE


@pytest.mark.parametrize(
    ("place", "line"),
    {
        "framework/tensor.py": "from .ops.registry import op",
        "framework/ops/dispatch.py": "from .views.reshape import sizes",
        "framework/ops/views/reshape.py": "from ..linalg import matmul",
        "framework/autograd/node.py": "if 1:\n    from ..ops import plan",
        "profiling/record/recording.py": "from ..report import text",
    }.items(),
)
def test_a_planted_import_that_leads_up_is_found(tmp_path: Path, place: str, line: str) -> None:
    _planted(tmp_path, place, line)
    found = upward(tmp_path, graph(tmp_path))
    assert len(found) == 1
    assert place in found[0]


def test_a_planted_file_without_a_place_is_found(tmp_path: Path) -> None:
    _planted(tmp_path, "framework/novel/a.py", "import numpy")
    assert upward(tmp_path, graph(tmp_path)) == ["framework/novel/a.py has no place in LAYERS"]


def test_a_planted_import_inside_a_function_is_found(tmp_path: Path) -> None:
    late = "def f():\n    from ..views.reshape import sizes"
    _planted(tmp_path, "framework/ops/linalg/lu.py", late)
    assert upward(tmp_path, graph(tmp_path)) == []
    assert len(unexplained(graph(tmp_path))) == 1
    _planted(tmp_path, "framework/ops/linalg/lu.py", late.replace("views.reshape", "..kernels.cpu"))
    assert unexplained(graph(tmp_path)) == []


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    _planted(tmp_path, "framework/ops/plan.py", "def f():\n    from . import dispatch")
    _planted(tmp_path, "framework/ops/dispatch.py", "from .rules import Rule")
    _planted(tmp_path, "framework/ops/rules.py", "from .plan import Plan")
    assert circles(graph(tmp_path)) == [
        {"framework/ops/plan", "framework/ops/dispatch", "framework/ops/rules"}
    ]
    checked = "if TYPE_CHECKING:\n    from .plan import Plan"
    _planted(tmp_path, "framework/ops/rules.py", checked)
    assert circles(graph(tmp_path)) == []


# An op is declared by @op or @function


def undeclared(root: Path) -> list[str]:
    """Where a file of ops writes into the table of functions, or into Tensor, by itself."""
    found = []
    for path in sorted((root / "framework" / "ops").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if place == "framework/ops/registry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "exec"):
                wrong = ast.unparse(node).startswith(("setattr(Tensor,", "exec("))
                wrong &= place != "framework/ops/templates.py"
            elif isinstance(node, ast.Subscript | ast.Attribute):
                stored = isinstance(node.ctx, ast.Store)
                wrong = stored and ast.unparse(node.value) in ("FUNCTIONS", "Tensor")
            else:
                wrong = isinstance(node, ast.alias) and node.name == "install_method"
            if wrong:
                found.append(f"{place}:{node.lineno} declares past @op and @function")
    return found


def test_ops_are_declared_in_two_ways() -> None:
    assert undeclared(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        'FUNCTIONS["det"] = det',
        'FUNCTIONS["a"], FUNCTIONS["b"] = a, b',
        "Tensor.T = property(reverse)",
        'setattr(Tensor, f"__{name}__", operator)',
        "from ...tensor import install_method",
        'exec(compile(source, "<op>", "exec"), names)',
    ],
)
def test_a_planted_declaration_is_found(tmp_path: Path, line: str) -> None:
    _planted(tmp_path, "framework/ops/linalg/det.py", line)
    assert {f.partition(":")[0] for f in undeclared(tmp_path)} == {"framework/ops/linalg/det.py"}


def _planted(root: Path, place: str, line: str) -> None:
    # The file with the line in it; what others import exists.
    for other in (
        place,
        "framework/ops/registry.py",
        "framework/ops/plan.py",
        "framework/ops/views/reshape.py",
        "framework/ops/linalg/matmul.py",
        "framework/kernels/cpu/__init__.py",
        "profiling/report/text.py",
    ):
        (root / other).parent.mkdir(parents=True, exist_ok=True)
        (root / other).touch()
    (root / place).write_text(line + "\n")
