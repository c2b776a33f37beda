"""``%memory`` and ``%%memory`` with a stand-in for IPython's shell, and with IPython itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.framework.attribution.frames import file_line
from lowtide.profiling import MemoryProfiler, Profile

ROOT = Path(__file__).resolve().parents[2]


class Shell:
    """As much of IPython's InteractiveShell as an extension sees."""

    def __init__(self):
        self.magics_manager = types.SimpleNamespace(magics={"line": {}, "cell": {}})
        self.compile = types.SimpleNamespace(_filename_map={})
        self.user_ns = {"__name__": "__main__", "lt": lt}
        self.execution_count = 1
        self.error = None

    def register_magic_function(self, function, magic_kind, magic_name):
        assert magic_kind == "line_cell"
        for kind in self.magics_manager.magics.values():
            kind[magic_name] = function

    def run_cell(self, source, store_history=True):
        name = f"<ipython-input-{self.execution_count}-{abs(hash(source))}>"
        self.compile._filename_map[name] = self.execution_count
        if store_history:
            self.execution_count += 1  # before it runs, as IPython does
        try:
            exec(compile(source.lstrip("\n"), name, "exec"), self.user_ns)
        except Exception as error:
            self.error = error

    def magic(self, line, cell=None):
        """Run a cell that consists of the magic."""
        kind = self.magics_manager.magics["line" if cell is None else "cell"]
        self.user_ns["_magic"] = lambda: kind["memory"](*([line] if cell is None else [line, cell]))
        self.run_cell("_result = _magic()")
        return self.user_ns["_result"]


LEAK = """kept = []
for k in range(4):
    loss = (w * w).sum()
    loss.backward()
    kept.append(loss)
"""


@pytest.fixture
def shell(monkeypatch):
    shell = Shell()
    stand_in = types.ModuleType("IPython")
    stand_in.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", stand_in)
    lt.load_ipython_extension(shell)
    yield shell
    shell.user_ns.clear()  # a cycle would keep its tensors for the tests that follow


def test_a_cell_is_profiled_and_its_lines_are_named_as_the_cell_s(shell):
    shell.run_cell("w = lt.ones(1000, requires_grad=True)")
    prof = shell.magic("", "y = w * 2\nz = y.exp()\n")
    assert isinstance(prof, Profile)
    lines = prof.at_peak("line").as_dict()
    assert {k: n for k, n in lines.items() if k.startswith("cell")} == {
        "cell [2], line 2": 4000,  # line 1 is the magic's
        "cell [2], line 3": 4000,
    }
    assert "cell [2], line 3" in prof._repr_html_()
    assert "cell [2], line 3" in prof.report()
    assert shell.execution_count == 3
    assert shell.user_ns["z"].shape == (1000,)


def test_a_cell_that_leaks_is_told(shell):
    shell.run_cell("w = lt.ones(10, requires_grad=True)")
    prof = shell.magic("", LEAK)
    (finding,) = prof.findings
    assert finding.line == "cell [2], line 4"


def test_a_line_is_profiled_and_a_bare_one_says_what_lives(shell, capsys):
    prof = shell.magic("x = lt.ones(250)")
    assert prof.at_peak("line")["cell [1], line 1"] == 1000
    assert shell.magic(" ") is None
    assert "cpu: " in capsys.readouterr().out


def test_what_raises_is_shown_by_the_shell_and_profiled_until_then(shell):
    prof = shell.magic("", "x = lt.ones(250)\n1 / 0\n")
    assert isinstance(shell.error, ZeroDivisionError)
    assert prof.peak_bytes >= 1000
    assert shell.execution_count == 2


def test_the_extension_can_be_removed(shell):
    lt.unload_ipython_extension(shell)
    assert shell.magics_manager.magics == {"line": {}, "cell": {}}
    assert "load_ipython_extension" not in lt.__all__


def test_cells_of_kernels_and_of_others_are_named(shell):
    path = "/tmp/ipykernel_77/12345.py"
    assert file_line(path, 2) == "a cell, line 2"
    shell.compile._filename_map[path] = 3
    assert file_line(path, 2) == "cell [3], line 2"
    assert file_line("/else/where.py", 2) == "/else/where.py:2"


def test_in_a_terminal_a_profile_is_its_report():
    with MemoryProfiler("cpu") as prof:
        lt.ones(10)
    printed = []
    prof._repr_pretty_(types.SimpleNamespace(text=printed.append), False)
    assert printed == [prof.report()]


REAL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
for cell in (
    "%load_ext lowtide\\nimport lowtide as lt",
    "w = lt.ones(1000, requires_grad=True)",
    "%%memory\\ny = w * 2\\nz = y.exp()",
):
    shell.run_cell(cell, store_history=True).raise_error()
shown = shell.user_ns["_"]
print(sorted(shown.at_peak("line").as_dict()))
assert "<svg" in shown._repr_html_()
"""


def test_with_ipython_itself(tmp_path):
    if importlib.util.find_spec("IPython") is None:
        pytest.skip("IPython is not installed")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "'cell [3], line 2', 'cell [3], line 3'" in done.stdout


def test_importing_lowtide_imports_no_ipython():
    code = "import sys, lowtide; assert 'IPython' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=True,
        timeout=600,
    )
