"""What tables print: within 100 columns, with the ends of names, instants as they were."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.analysis.tables import cut

LONG = "/home/somebody/projects/a_rather_long_name_of_a_project/experiments/train_the_model_once.py"


def long_names():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.ModuleDict({"a_layer_with_a_long_name": nn.Linear(8, 8)})
            self.encoder_of_the_first_kind = nn.ModuleList([block] * 1)
            self.other = nn.Linear(8, 8)

        def forward(self, x):
            block = self.encoder_of_the_first_kind[0]["a_layer_with_a_long_name"]
            return self.other(block(x).tanh())

    space = {"model": Model(), "x": lt.randn(4, 8)}
    with MemoryProfiler() as prof:
        exec(compile("loss = (model(x) * x).sum()", LONG, "exec"), space)
        prof.mark("half")
        exec(compile("loss.backward()", LONG, "exec"), space)
        saved = lt.profiling.saved_tensors(eval(compile("lambda: model(x)", LONG, "eval"), space))
    return prof, saved


def test_what_is_printed_fits_100_columns_and_what_is_stored_is_whole():
    prof, saved = long_names()
    everything = ("role", "module", "op", "phase", "line")
    tables = [prof.at_peak(everything), prof.saved(("module", "line")), prof.at_peak("line")]
    texts = [*map(str, tables), prof.report(), str(prof.timeline("module")), str(saved)]
    for text in texts:
        assert max(map(len, text.splitlines())) <= 100
    assert f"{LONG}:1" in tables[2].as_dict()
    assert any(name.endswith("train_the_model_once.py:1") for name in tables[2].text().split())
    assert tables[2].text(width=200).count(LONG) == 1


def test_cut_leaves_the_ends_and_what_is_short():
    assert cut("abc", 3) == "abc"
    assert cut("0123456789abcdef", 10) == "...9abcdef"
    name = cut("saved · blocks.0.attention.projection · matmul · some/folder/file.py:12", 50)
    assert len(name) == 50
    assert name.startswith("saved · ...")
    assert " · matmul · ..." in name
    assert name.endswith("file.py:12")


def test_the_timeline_prints_instants_as_they_were():
    x = lt.randn(1000, requires_grad=True)
    with MemoryProfiler() as prof:
        for _ in range(30):
            y = x.exp().sin()
            prof.mark("half")
            y.sum().backward()
        line = prof.timeline()
    lines = line.text(rows=8).splitlines()
    assert len(lines) <= 2 + 8 + 2
    assert lines[0].startswith(f"{prof.device} by role, in ")
    head = lines[1].split()
    assert head[:3] == ["time", "phase", "live"]
    assert sum("peak" in row for row in lines[2:]) == 1
    unit = {"KiB": 1024, "MiB": 1024**2}[lines[0].split("in ")[1][:3]]
    (row,) = (row.split() for row in lines if "peak" in row)
    assert f"{prof.peak_bytes / unit:.2f}" in row
