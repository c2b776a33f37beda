"""``--memory-budget`` of commands and recipes: the same numbers, within the bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 128)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def lowtide(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.deep
def test_a_pytorch_script_in_a_budget(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    code, plain, _ = lowtide(tmp_path, "run-as-torch", "train.py")
    assert code == 0
    code, out, err = lowtide(tmp_path, "run-as-torch", "--memory-budget", "3MiB", "train.py")
    assert (code, out) == (0, plain)
    found = re.search(
        r"memory budget of 3.00 MiB: at most (\d.\d\d) MiB live; (\d+) values dropped "
        r"\(\d+.\d\d MiB\), (\d+) replays",
        err,
    )
    assert found, err
    assert float(found[1]) <= 3
    assert int(found[2]) > 10


@pytest.mark.deep
def test_a_disk_for_what_is_dropped(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    code, plain, _ = lowtide(tmp_path, "run-as-torch", "train.py")
    words = ("--memory-budget", "3MiB", "--budget-disk", tmp_path / "disk", "train.py")
    code, out, err = lowtide(tmp_path, "run-as-torch", *words)
    assert (code, out) == (0, plain)
    assert "values dropped" in err
    assert os.listdir(tmp_path / "disk") == []  # the file has no name
    code, _, err = lowtide(tmp_path, "run-as-torch", *words[:3], "/dev/null/no", "train.py")
    assert code
    assert "/dev/null/no" in err


@pytest.mark.deep
def test_the_budget_of_the_process(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run-as-torch", "--budget-of", "process", "--memory-budget")
    code, plain, err = lowtide(tmp_path, *words, "4GiB", "train.py")
    assert code == 0
    assert "memory budget of 4.00 GiB for the process: at most" in err
    assert " 0 values dropped" in err
    assert len(plain.splitlines()) == 3
    code, out, err = lowtide(tmp_path, *words, "20MiB", "train.py")
    assert (code, out) == (1, "")
    assert "the budget of 20.00 MiB for the process (of which the interpreter and libraries" in err
    assert "begun at the option --memory-budget" in err


def test_a_script_that_does_not_fit_hears_of_the_option(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    code, _, err = lowtide(tmp_path, "run-as-torch", "--memory-budget", "1MiB", "train.py")
    assert code == 1
    assert "would pass the budget of 1.00 MiB, begun at the option --memory-budget, by " in err


@pytest.mark.deep
def test_a_profile_in_a_budget(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("profile", "--as-torch", "--memory-budget", "3MiB", "--no-timeline", "train.py")
    code, out, err = lowtide(tmp_path, *words)
    assert code == 0, err
    assert float(re.search(r"The peak is (\d.\d\d) MiB", out)[1]) <= 3
    assert json.loads((tmp_path / "train-memory" / "run.json").read_text())


@pytest.mark.deep
def test_a_script_is_fitted_without_computing(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("fit", "--as-torch", "--budget", "3MiB", "-o", "fit.json", "--plot", "tide.png")
    words = (*words, "train.py")
    code, out, err = lowtide(tmp_path, *words)
    assert code == 0, err
    assert out.startswith("budget 3.00 MiB: peak ")
    assert f"lowtide run-as-torch --memory-budget {3 * 2**20} train.py" in out
    assert (tmp_path / "tide.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "fit.json").read_text())
    assert figures["seconds"] > 0 < figures["plain_seconds"]
    assert " a run (" in out
    code, _, err = lowtide(tmp_path, "run-as-torch", "--memory-budget", "3MiB", "train.py")
    assert f"at most {figures['peak_bytes'] / 2**20:.2f} MiB live; {figures['dropped']} val" in err
    code, _, err = lowtide(tmp_path, "fit", "--as-torch", "--budget", "1MiB", "train.py")
    assert code == 1
    assert "no way was found to run the step within 1.00 MiB on cpu" in err
    code, _, err = lowtide(tmp_path, "fit", "--as-torch", "train.py")
    assert code == 2
    assert "--budget 2GiB" in err


@pytest.mark.quick(1)
@pytest.mark.parametrize("text", ["lots", "-1", "3 apples", ""])
def test_what_is_no_size_is_refused_at_once(text, tmp_path):
    code, _, err = lowtide(tmp_path, "run-as-torch", f"--memory-budget={text}", "train.py")
    assert code == 2
    assert "argument --memory-budget: it is a size in bytes" in err


@pytest.mark.deep
@pytest.mark.parametrize(("name", "limit"), [("chargpt", 10), ("autoencoder", 19)])
def test_a_recipe_in_a_budget(name, limit, tmp_path):
    results = []
    for k, words in enumerate(((), ("--memory-budget", f"{limit}MiB"))):
        out = tmp_path / str(k)
        code, said, err = lowtide(tmp_path, "run", name, "--quick", "--out", out, *words)
        assert code == 0, err
        results.append(json.loads((out / "results.json").read_text()))
    plain, found = results
    assert "values dropped" in said
    assert plain["losses"] == found["losses"]
    assert found["peak_bytes"] <= limit * 2**20 < plain["peak_bytes"]
