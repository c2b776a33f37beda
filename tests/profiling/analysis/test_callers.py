"""Call stacks of owners: told apart by their callers, bounded, and exact in bytes."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import call_stacks
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.analysis.callers import by_caller, line_of, parted
from lowtide.profiling.record.json_format import from_dict
from lowtide.profiling.record.recording import Owner


def program(source: str) -> dict:
    space: dict = {"lt": lt, "kept": []}
    exec(compile(source, "drawn.py", "exec"), space)
    return space


def test_a_function_that_training_and_evaluation_call_is_two_owners():
    space = program(
        "def loss(x):\n"  # 1
        "    kept.append(lt.ones(len(x)))\n"
        "def train():\n"  # 3
        "    loss(range(10))\n"
        "def evaluate():\n"  # 5
        "    loss(range(20))\n"
        "def main():\n"  # 7
        "    train()\n"
        "    evaluate()\n"
    )
    with MemoryProfiler() as prof:
        space["main"]()
    assert prof.at_peak("line").as_dict()["drawn.py:2"] == 120
    stacks = {k: n for k, n in prof.at_peak("stack").as_dict().items() if k.startswith("drawn.py")}
    here = "drawn.py:2 < drawn.py:{} < drawn.py:{}"
    assert [(k.startswith(here.format(6, 9)), n) for k, n in stacks.items()] == [
        (True, 80),
        (False, 40),
    ]
    report = prof.report()
    assert "drawn.py:2 from drawn.py:4" in report
    assert "drawn.py:2 from drawn.py:6" in report


def test_modules_remember_the_stack_of_their_call():
    class Inner(nn.Module):
        def forward(self, x):
            return x + 1

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + self.inner(x)

    space = program("def train(m, x):\n    return m(x)\ndef evaluate(m, x):\n    return m(x)\n")
    model, x = Outer(), lt.ones(100)
    with MemoryProfiler() as prof:
        kept = [space[name](model, x) for name in ("train", "evaluate") for _ in range(2)]
    assert len(kept) == 4
    inner = [o for o in prof.recording.owners if o.module.endswith("inner") and o.op == "add"]
    assert len(inner) == 2  # two calls on one line, from two callers
    for owner in inner:
        assert len(owner.callers) >= 3
    assert {next(c for c in o.callers if c.startswith("drawn.py")) for o in inner} == {
        "drawn.py:2",
        "drawn.py:4",
    }


def test_backward_has_the_stack_of_its_forward():
    space = program(
        "def half(x):\n    return x * 0.5\n"
        "def one(x):\n    return half(x)\n"  # 4
        "def two(x):\n    return half(x)\n"  # 6
    )
    x = lt.ones(100, requires_grad=True)
    with MemoryProfiler() as prof:
        space["one"](space["two"](x)).sum().backward()
    backward = [o for o in prof.recording.owners if o.op == "MulBackward0"]
    assert {o.callers[0] for o in backward} == {"drawn.py:4", "drawn.py:6"}


@pytest.mark.parametrize("depth", [1, 5, 40, 200])
def test_recursion_makes_no_more_owners_than_the_text_has_ways(depth):
    space = program(
        "def tree(n):\n"
        "    if n == 0:\n"
        "        return lt.ones(10)\n"
        "    return tree(n - 1) + 1 if n % 2 else 1 + tree(n - 1)\n"
    )
    with MemoryProfiler() as prof:
        space["tree"](depth)
    owners = [o for o in prof.recording.owners if o.line.startswith("drawn.py")]
    assert len({(o.op, o.line, o.callers) for o in owners}) == len(owners) <= 3
    assert all(not any(c.startswith("drawn.py") for c in o.callers) for o in owners)


def test_nothing_is_kept_when_nobody_listens():
    with MemoryProfiler():
        lt.ones(3)
    assert not call_stacks._by_instruction
    assert not call_stacks._by_line


@pytest.mark.parametrize("seed", range(200))
def test_drawn_programs_sum_to_the_ledger_and_part_where_they_differ(seed):
    rng = random.Random(seed)
    count = rng.randrange(2, 7)
    source, calls = [], {}
    for k in range(count):  # a function calls later ones: no cycle
        source.append(f"def f{k}(way):")
        source.append(f"    kept.append((way + (0,), lt.ones({rng.randrange(1, 9)})))")
        lines = calls[k] = []
        for _ in range(rng.randrange(0, 3) if k + 1 < count else 0):
            source.append(f"    f{rng.randrange(k + 1, count)}(way + ({len(source) + 1},))")
            lines.append(len(source))
    space = program("\n".join(source))
    with MemoryProfiler() as prof:
        space["f0"](())
        recording = prof.recording
        expected: dict[tuple[int, ...], int] = {}
        for way, tensor in space["kept"]:
            expected[way] = expected.get(way, 0) + tensor.nbytes
        table = prof.at_peak("stack").as_dict()
    prefix = "drawn.py:"
    found: dict[tuple[int, ...], int] = {}
    for name, nbytes in table.items():
        lines = [line for line in name.split(" < ") if line.startswith(prefix)]
        if lines:
            way = tuple(int(line.removeprefix(prefix)) for line in reversed(lines))
            found[way] = found.get(way, 0) + nbytes
    # the last of a way is the line that makes the tensor
    assert {way[:-1]: n for way, n in found.items()} == {way[:-1]: n for way, n in expected.items()}
    cells = prof.peak().cells
    lines = by_caller(recording, cells)
    assert sum(lines.values()) == prof.peak_bytes == sum(table.values())
    assert len(lines) == len(table)  # different stacks have different names
    sums: dict[str, int] = {}
    for name, nbytes in lines.items():
        sums[line_of(name)] = sums.get(line_of(name), 0) + nbytes
    assert sums == prof.at_peak("line").as_dict()


def test_names_hold_only_the_callers_that_tell_stacks_apart():
    owners = [
        Owner("", "op", "other", "a:1", ("b:1", "c:1", "d:1")),
        Owner("", "op", "other", "a:1", ("b:1", "c:2", "d:1")),
        Owner("", "op", "other", "a:1", ("b:2", "c:1")),
        Owner("", "op", "other", "a:1", ()),
        Owner("", "op", "other", "z:1", ("b:1", "c:1")),
    ]
    assert list(parted(owners, {"a:1": "A"}).values()) == [
        "A from b:1 from c:1",
        "A from b:1 from c:2",
        "A from b:2",
        "A",
        "z:1",
    ]


def test_callers_survive_json_and_files_without_them_are_read(tmp_path):
    space = program("def f():\n    kept.append(lt.ones(3))\ndef g():\n    f()\n")
    with MemoryProfiler() as prof:
        space["f"]()
        space["g"]()
    prof.to_json(tmp_path / "run.json")
    again = MemoryProfiler.from_json(tmp_path / "run.json")
    assert again.recording.owners == prof.recording.owners
    assert again.report() == prof.report()
    data = prof.to_dict()
    del data["stacks"], data["callers"]
    assert [o.callers for o in from_dict(data).owners] == [()] * len(prof.recording.owners)
    damaged = {**prof.to_dict(), "callers": [0]}
    with pytest.raises(ValueError, match="damaged"):
        from_dict(damaged)
