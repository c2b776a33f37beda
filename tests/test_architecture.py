"""Imports point one way: framework <- modules, optim, profiling <- the face <- all the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
