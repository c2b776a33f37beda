"""Kernels compiled ahead: every line names one, and what is compiled is there afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lowtide.framework.kernels.cpu.compiler import ahead, library
from lowtide.framework.kernels.cpu.compiler.standard import KERNELS
from lowtide.framework.kernels.runtime import cache_folder

LINES = KERNELS.splitlines()
supported = pytest.mark.skipif(not library.supported(), reason="libraries: x86-64 Linux, CPython")


@pytest.mark.parametrize("line", LINES)
def test_every_line_names_a_kernel_and_a_signature(line):
    kernel, words = ahead.kernel_of(line)
    assert ahead.described(kernel, words) == line
    assert kernel.py_func.__code__.co_argcount == words.count(",") + 1


@supported
def test_what_is_missing_is_compiled_once(tmp_path, monkeypatch):
    few = [line for line in LINES if "layer_norm add_rows" in line or "work_pool _run" in line]
    monkeypatch.setattr(ahead, "KERNELS", "\n".join(few) + "\n")
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))  # for the processes that compile
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path))
    told = []
    assert ahead.compile_all(2, lambda *news: told.append(news))[0] == 2
    assert [news[:2] for news in told] == [(0, 2), (1, 2), (2, 2)]
    assert {name for *_, name in told} == {"", "add_rows", "run"}
    assert ahead.missing() == []
    assert ahead.compile_all()[0] == 0


@supported
def test_a_worker_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "missing", lambda: ["attention nothing f4:1C -"])
    with pytest.raises(RuntimeError, match="nothing"):
        ahead.compile_all()


def test_where_nothing_can_be_kept_the_command_says_so(monkeypatch, capsys):
    from lowtide.cli import main

    monkeypatch.setattr(cache_folder, "BASE", "")
    assert main(["compile"]) == 1
    assert "no home directory is known; set LOWTIDE_CACHE_DIR" in capsys.readouterr().err


@supported
@pytest.mark.deep
def test_the_command_compiles_all(tmp_path):
    import os

    environment = os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "lowtide", "compile"]
    for count in (len(LINES), 0):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"compiled {count} kernels in ")
