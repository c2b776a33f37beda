"""PyTorch's own reader of memory snapshots accepts ours and finds the same bytes in it."""

from __future__ import annotations

import pickle

import pytest

from lowtide.profiling.exports import to_pytorch_snapshot
from tests.profiling.recordings import gpt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


@pytest.fixture
def shot(tmp_path):
    path = tmp_path / "run.pickle"
    to_pytorch_snapshot(gpt(), path)
    return pickle.loads(path.read_bytes())


def test_plots_are_made(shot):
    from torch.cuda import _memory_viz as viz

    for html in (
        viz.trace_plot(shot),
        viz.trace_plot(shot, plot_segments=True),
        viz.segment_plot(shot),
    ):
        assert "snapshot.pickle" in html


def test_segments_add_up(shot):
    from torch.cuda import _memory_viz as viz

    text = viz.segsum(shot)  # raises if blocks and segment disagree
    assert "segments: 1" in text


def test_stacks_hold_the_bytes_alive_at_the_end(shot):
    from torch.cuda import _memory_viz as viz

    lines = viz.memory(shot, format_flamegraph=str).splitlines()
    held = [line for line in lines if ";active_allocated;" in line and "<gaps>" not in line]
    assert sum(int(line.rpartition(" ")[2]) for line in held) == gpt().marks[-1].live[0]
    assert any("blocks.0.mlp.up" in line for line in held)


def test_the_trace_reads_as_a_program(shot):
    from torch.cuda import _memory_viz as viz

    events = shot["device_traces"][0]
    text = viz.trace(shot)
    assert text.startswith(f"Device 0 ----------------\n{len(events)} entries\n")
    assert text.count("# free completed for") == sum(
        e["action"] == "free_completed" for e in events
    )


def test_what_is_never_freed_is_left_when_pairs_are_taken_out(shot):
    from torch.cuda import _memory_viz as viz

    left = viz.filter_alloc_free_pairs(shot)["device_traces"][0]
    assert sum(e["size"] for e in left if e["action"] == "alloc") == gpt().marks[-1].live[0]
    assert not [e for e in left if e["action"].startswith("free")]
