"""Reports take the equal layers of repeated blocks together and name the classes of modules."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.analysis.summary import repeated_layers, summarize
from lowtide.profiling.record.json_format import from_dict
from lowtide.profiling.report.html import page


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(12)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def profiled(model, size):
    with MemoryProfiler("cpu", modules=model) as prof:
        model(lt.ones(64, size)).sum().backward()
    return prof


def test_the_report_has_one_row_for_twelve_equal_layers():
    prof = profiled(Model(), 16)
    text = prof.report()
    assert "blocks.*.mlp.1 (ReLU, 12 layers)" in text
    added = repeated_layers(prof.recording, prof.at_peak("module", op="add"))
    # The members of a ModuleList are equals; what the last of them adds is gone then.
    assert "blocks.* (Block, 11 layers)" in added.as_dict()
    assert "blocks.0.mlp" not in text
    assert "head (Linear)" in text
    table = prof.at_peak("module")
    shown = repeated_layers(prof.recording, table)
    assert shown.total == table.total == prof.peak_bytes
    relu = sum(n for path, n in table.as_dict().items() if path.endswith("mlp.1"))
    assert shown["blocks.*.mlp.1 (ReLU, 12 layers)"] == relu
    assert "blocks.0.mlp.0" in table.as_dict()  # the table itself has every layer


def test_the_members_of_a_sequential_are_no_equals_and_have_their_class():
    prof = profiled(nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 8)), 8)
    text = prof.report()
    for name in ("0 (Linear)", "1 (ReLU)", "2 (Linear)"):
        assert f"{name}\n" in text
    assert "Its largest owner is 0 (Linear)" in summarize(prof.recording, 0).sentences()[1]
    assert ">1 (ReLU)</td>" in page(prof.recording)
    again = from_dict(prof.to_dict())
    assert again.classes == prof.recording.classes


def test_a_number_that_all_share_is_no_star():
    prof = profiled(nn.Sequential(Model(), nn.ReLU()), 16)
    assert "0.blocks.*.mlp.1 (ReLU, 12 layers)" in prof.report()
    del prof.recording.classes["0.blocks.3.mlp.1"]  # one of them has another class, or none
    assert "0.blocks.*.mlp.1 (12 layers)" in prof.report()
