"""The verdict: the peak, whose it is, and what grows, each in a sentence."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn
from lowtide.profiling import MemoryProfiler


def train(steps, kept, file):
    source = (
        "def loss_of(model, x):\n"
        "    return model(x).tanh().sum()\n"
        "def step(model, optimizer, x):\n"
        "    loss = loss_of(model, x)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    kept.append(lt.ones(100))\n"
    )
    file.write_text(source)
    space = {"lt": lt, "kept": kept}
    exec(compile(source, str(file), "exec"), space)
    model = nn.Sequential(nn.Linear(50, 60))
    optimizer = lt.optim.Adam(model.parameters())
    x = lt.randn(200, 50)
    with MemoryProfiler() as prof:
        for _ in range(steps):
            space["step"](model, optimizer, x)
    return prof


class Forgets(list):
    def append(self, value):
        pass


def test_it_names_the_line_with_its_text_and_what_grows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "steps.py"
    said = " ".join(train(5, [], file).verdict().split())
    line = f"most is allocated at {file.name}:2 (`return model(x).tanh().sum()`)"
    assert "The peak is " in said
    assert line in said
    assert "Live bytes grow by 400 B a step from step 2 to step 5" in said
    assert f"most at {file.name}:8 (`kept.append(lt.ones(100))`)" in said


def test_it_says_that_nothing_grows(tmp_path):
    said = " ".join(train(5, Forgets(), tmp_path / "steps.py").verdict().split())
    assert "Live bytes do not grow from step 2 to step 5." in said


def test_what_lived_before_is_no_line(tmp_path):
    x = lt.ones(10_000)
    with MemoryProfiler() as prof:
        y = x + 1
        del y
    said = prof.verdict()
    assert "before the profiler" not in said
    assert "test_verdict.py" in said


def test_one_step_says_nothing_of_growth(tmp_path):
    assert "grow" not in train(1, Forgets(), tmp_path / "steps.py").verdict()
