"""Recordings in the formats of other tools: Perfetto, PyTorch's memory viewer, flame graphs."""

from .flamegraph import to_flamegraph as to_flamegraph
from .perfetto import to_perfetto as to_perfetto
from .pytorch_snapshot import to_pytorch_snapshot as to_pytorch_snapshot
