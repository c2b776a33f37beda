"""What is installed is what lies in the folders, it imports cheaply, and its examples hold."""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.ops.registry import OPS
from lowtide.recipe_command import stated

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("lowtide", "framework", "modules", "optim", "profiling", "recipes")
FILES = sorted(p.relative_to(ROOT) for top in FOLDERS for p in (ROOT / top).rglob("*.py"))
HEAVY = {
    "cupy", "numba", "matplotlib", "scipy", "rich", "psutil", "torch", "pynvml", "safetensors",
    "multiprocessing", "subprocess", "socket", "asyncio", "unittest",
}  # fmt: skip


def dotted(path: Path) -> str:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return name if name.split(".")[0] == "lowtide" else f"lowtide.{name}"


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process that finds this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=cwd, env=environment
    )


def test_every_package_is_listed() -> None:
    conf = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {p.parent for p in FILES}
    assert [str(d) for d in folders if not (ROOT / d / "__init__.py").is_file()] == []
    assert set(conf["packages"]) == {dotted(d) for d in folders}


def test_this_checkout_is_what_is_tested() -> None:
    assert Path(lt.__file__).parents[1] == ROOT
    assert Path(sys.modules["lowtide.framework.tensor"].__file__ or "").parents[1] == ROOT


LONG_EXAMPLES = {  # of modules whose examples search for plans and batches
    f"lowtide.profiling.estimate.{name}" for name in ("advise", "budget_fit", "fit_table")
}


def _marked(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.deep) if name in LONG_EXAMPLES else name


@pytest.mark.parametrize("name", [_marked(dotted(p)) for p in FILES if p.name != "__main__.py"])
def test_module_imports_and_its_doctests_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (lt.dtype, lt.layout, lt.memory_format, lt.Size):
        monkeypatch.setattr(kind, "home", kind.home)  # as_torch prints them as torch's
    if "einops" in name and name != "lowtide.framework.interop.einops":
        pytest.importorskip("einops", reason="these are einops' layers")
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    if ">>>" in Path(module.__file__ or "").read_text(encoding="utf-8"):
        gc.collect()  # examples state live bytes; what tests left in cycles must not go meanwhile
        assert doctest.testmod(module, optionflags=flags).failed == 0
    runner = doctest.DocTestRunner(optionflags=flags)
    for op in OPS.values():  # functions made of declarations: doctest does not find them
        if op.plain.__module__ == name:
            scope = {**vars(module), "lt": lt}
            runner.run(doctest.DocTestParser().get_doctest(op.doc, scope, op.name, name, 0))
    assert runner.summarize(verbose=False).failed == 0


def test_importing_lowtide_imports_nothing_heavy() -> None:
    done = run("-W", "error", "-c", "import lowtide, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert {m.partition(".")[0] for m in done.stdout.split()} & HEAVY == set()


def test_names_are_found_from_another_directory(tmp_path: Path) -> None:
    code = "import lowtide as lt; print(lt.Tensor.__module__, lt.nn.__name__)"
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout.split() == ["lowtide.framework.tensor", "lowtide.nn"], done.stderr


def test_the_command_gives_its_version() -> None:
    done = run("-m", "lowtide", "--version")
    assert done.stdout.strip() == f"lowtide {lt.__version__}"


def test_the_doctor_finds_nothing_missing() -> None:
    done = run("-m", "lowtide", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "numpy" in done.stdout
    assert "cpu:" in done.stdout


def test_each_recipe_is_listed_with_what_it_did() -> None:
    done = run("-m", "lowtide", "recipes")
    assert done.returncode == 0, done.stderr
    listed = {line.split(" ")[0] for line in done.stdout.splitlines()}
    runnable = [p for p in (ROOT / "recipes").glob("*.py") if "__main__" in p.read_text()]
    assert {p.stem for p in runnable} <= listed
    for path in runnable:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.search(r"\d", stated(said, "Result")), path
        assert re.fullmatch(r"[\d,.]+ (s|min), [\d.]+ [MG]iB\.?", stated(said, "Cost")), path


def test_an_unknown_recipe_is_refused_with_a_hint() -> None:
    done = run("-m", "lowtide", "run", "no-such-recipe")
    assert done.returncode == 2
    assert "got 'no_such_recipe'" in done.stderr
    assert "lowtide recipes" in done.stderr
