"""``lowtide advise``, ``estimate`` and ``fit-table``, as a user types them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import sys
import lowtide as lt
from lowtide import nn, optim
from lowtide.utils.data import DataLoader, TensorDataset

PASTE = sys.argv[1] if len(sys.argv) > 1 else ""
batch_size = 256
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                         for _ in range(4)])
net = nn.ModuleDict({"blocks": blocks, "head": nn.Linear(64, 4)})
if "limit" in PASTE:
    lt.set_memory_limit(1_000_000)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = net["blocks"], net["head"]

    def forward(self, x):
        return self.head(self.blocks(x))


def main():
    model = Model()
    optimizer = optim.AdamW(model.parameters())
    scope = {"model": model, "lowtide": lt, "optimizer": optimizer, "batch_size": batch_size}
    if PASTE and "limit" not in PASTE:
        exec(open(PASTE).read(), scope)
    data = TensorDataset(lt.randn(2048, 64), lt.randint(0, 4, (2048,)))
    loader = DataLoader(data, batch_size=scope["batch_size"])
    lt.reset_peak_memory_stats()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 2:
            break
    print("peak", lt.max_memory_allocated())


main()
"""
FIT = """
import lowtide as lt
from lowtide import nn, optim

models = {"small": lambda: nn.Linear(32, 64), "large": lambda: nn.Linear(32, 512)}
limits = ["1MiB", "2MiB"]
optimizer = optim.AdamW


def batch(n):
    return lt.randn(n, 32)
"""


def lowtide(folder: Path, *words: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def runs(folder: Path, *words: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def for_the_rest(code: str) -> str:
    """A budget around what follows, where the test cannot paste around a loop."""
    return re.sub(r"with (lowtide.memory_budget\(.*\)):.*\n    \.\.\.", r"\1.__enter__()", code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fit.py").write_text(FIT)
    return tmp_path


@pytest.mark.deep
def test_a_script_gets_advice_that_holds_when_it_is_pasted(folder: Path) -> None:
    peak = runs(folder)
    limit = peak * 4 // 5
    done = lowtide(folder, "advise", "train.py", "--limit", str(limit), "--out", "advice.json")
    assert done.returncode == 0, done.stderr
    assert "does not fit" in done.stdout
    assert "import lowtide" in done.stdout
    assert "for part in model.blocks:" in done.stdout
    found = json.loads((folder / "advice.json").read_text())
    assert found["peak_bytes"] == peak
    assert found["batch"] == 256
    assert not any("no_grad in" in p["change"] for p in found["proposals"])  # all is trained
    kinds = {p["kind"] for p in found["proposals"] if p["fits"]}
    assert {"checkpoint", "batch", "several"} <= kinds
    for kind in ("budget", "checkpoint", "several"):
        way = next(p for p in found["proposals"] if p["kind"] == kind and p["fits"])
        (folder / "paste.py").write_text(for_the_rest(way["code"]))
        assert runs(folder, "paste.py") == way["peak_bytes"] <= limit
    way = next(p for p in found["proposals"] if p["kind"] == "batch")
    (folder / "paste.py").write_text(way["code"])
    assert runs(folder, "paste.py") <= limit
    assert way["batch"] < 256
    larger = sorted(found["larger"], key=lambda p: p["batch"])
    assert larger[0]["batch"] > 256
    for way in (larger[-1], next(p for p in larger if "byte budget" in p["change"])):
        (folder / "paste.py").write_text(for_the_rest(way["code"]))
        assert runs(folder, "paste.py") <= limit


@pytest.mark.deep
def test_mistakes_are_named(folder: Path) -> None:
    (folder / "none.py").write_text("import lowtide as lt\nlt.ones(3).sum()\n")
    (folder / "bad.py").write_text("raise ValueError('no data')\n")
    for words, code, text in (
        (("none.py", "--limit", "1MiB"), 1, "no module with a parameter"),
        (("bad.py", "--limit", "1MiB"), 1, "no data"),
        (("train.py", "--limit", "much"), 2, "is a size in bytes"),
        (("train.py",), 1, "limit"),
        (("absent.py", "--limit", "1MiB"), 2, "absent.py"),
    ):
        done = lowtide(folder, "advise", *words)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr


@pytest.mark.deep
def test_an_estimate_tells_the_first_step_from_later_ones_and_passes_the_scripts_limit(
    folder: Path,
) -> None:
    free = lowtide(folder, "estimate", "-o", "free.json", "train.py")
    done = lowtide(folder, "estimate", "-o", "limited.json", "train.py", "limit")
    assert (free.returncode, done.returncode) == (0, 0), done.stderr
    assert "first step: peak" in done.stdout
    assert "does not fit the limit of" in done.stdout
    (a,), (b,) = (
        [d for d in json.loads((folder / f).read_text())["devices"] if d["device"] == "cpu"]
        for f in ("free.json", "limited.json")
    )
    assert a["peak_bytes"] == b["peak_bytes"] == max(a["first_bytes"], a["steady_bytes"])
    assert a["first_bytes"] < a["steady_bytes"]
    assert b["limit_bytes"] == 1_000_000
    assert a["peak_bytes"] == runs(folder)


@pytest.mark.deep
def test_a_fit_table_of_a_file(folder: Path) -> None:
    done = lowtide(folder, "fit-table", "fit.py", "--csv", "fit.csv", "--png", "fit.png")
    assert done.returncode == 0, done.stderr
    assert "largest batch" in done.stdout
    assert len((folder / "fit.csv").read_text().splitlines()) == 5
    assert (folder / "fit.png").stat().st_size > 1000
    done = lowtide(folder, "fit-table", "fit.py", "--limits", "3MiB")
    assert done.stdout.count("3.00 MiB") >= 2
    (folder / "empty.py").write_text("")
    done = lowtide(folder, "fit-table", "empty.py")
    assert done.returncode == 2
    assert "lacks models and batch and limits" in done.stderr


def test_no_dtype_is_offered_that_does_not_lower_the_peak() -> None:
    net, x = lt.nn.Linear(256, 256), lt.randn(2, 256)

    def step() -> None:
        with lt.no_grad():
            net(x)

    found = lt.profiling.advise(step, limit=1)
    useless = [p.change for p in found.proposals if p.saved_bytes <= 0]
    table = str(found).partition("saves nothing")[0]
    assert all(change not in table for change in useless)
