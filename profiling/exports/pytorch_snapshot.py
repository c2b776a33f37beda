"""Memory snapshot export for PyTorch's memory viewer (pytorch.org/memory_viz).

A pickled dict of ``segments`` (what the allocator holds at the end) and ``device_traces`` (what it
did), as ``torch.cuda.memory._dump_snapshot`` writes it. What we put where:

- Every storage is one block, alive from its birth to its death. Blocks that lived before the
  profiler are allocated at the start of the trace, so that they are drawn and named.
- Frames are, innermost first: the op, the user's line; then the module path, part by part.
- The viewer colors blocks by ``category``: the last role that a block had, other than temporary.
- A recording has no addresses. The requests are put to a fresh pool (``framework/memory/pool.py``),
  what lived before first, and it places them as it does in a run; one segment a device.
- Devices are numbered in the order of the recording: the CPU can be device 0. The frame of its
  segment says its name.

The viewer reads pickles of protocol 4 at most, with plain containers, strings and numbers in
them, and fails if categories are used and none is called ``unknown``. So each trace begins with a
``snapshot`` event, which the viewer lists and does not draw, of that category.

Source: ``torch/cuda/_memory_viz.py`` and ``torch/utils/viz/MemoryViz.js`` of PyTorch 2.13, for the
keys and their meaning.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field
from typing import Any

from ...framework.memory.ledger import ROLES, TEMPORARY
from ...framework.memory.pool import ALIGNMENT, Pool
from ...framework.serialization.atomic_files import replacing
from ..analysis.snapshots import need_timeline
from ..record.recording import ALLOC, FREE, Owner, Recording
from .module_frames import modules_of

BASE = 1 << 32  # where a device's segment begins; any address but 0 will do
PROTOCOL = 4


def to_pytorch_snapshot(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a memory snapshot of all devices.

    Args:
        recording: What a profiler noted, with its timeline.
        path: The file, conventionally ``.pickle``.

    Raises:
        RuntimeError: It was made without a timeline.
    """
    need_timeline(recording)
    data = pickle.dumps(snapshot(recording), protocol=PROTOCOL)
    with replacing(path) as out:
        out.write(data)


def snapshot(recording: Recording) -> dict[str, Any]:
    """Build the snapshot as plain containers."""
    segments, traces = [], []
    for device in range(len(recording.devices)):
        segment, trace = _device(recording, device)
        traces.append(trace)
        if segment["total_size"]:
            segments.append(segment)
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}}


@dataclass
class _Block:
    nbytes: int
    role: int
    owner: int
    address: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _device(recording: Recording, device: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    blocks, before = _blocks(recording, device)
    pool, known = Pool(1 << 60), _Frames(recording.owners)
    alive: dict[int, _Block] = {}
    drawn: list[dict[str, Any]] = []
    start = round(recording.start * 1e6)

    def note(action: str, key: int, time: int) -> None:
        block = blocks[key]
        drawn.append(
            {
                "action": action,
                "addr": block.address,
                "size": block.nbytes,
                "stream": 0,
                "time_us": start + time // 1000,
                "frames": block.frames,
                "category": ROLES[block.role],
            }
        )

    def born(key: int, time: int) -> None:
        block = blocks[key]
        block.address = BASE + pool.take(_rounded(block.nbytes))
        block.frames = known.of(block.owner)
        alive[key] = block
        note("alloc", key, time)

    for key in before:
        born(key, 0)
    e = recording.events
    nameless = (key for key in before if key < 0)
    for time, kind, d, number, nbytes in zip(
        e.time, e.kind, e.device, e.block, e.nbytes, strict=True
    ):
        if d != device or not nbytes:
            continue
        if kind == ALLOC:
            born(number, time)
        elif kind == FREE:
            key = number or next(nameless)
            note("free_requested", key, time)
            note("free_completed", key, time)
            block = alive.pop(key)
            pool.give(block.address - BASE, _rounded(block.nbytes))
    size = pool.peak
    segment = _segment(device, size, alive)
    segment["frames"] = [_frame(f"pool of {recording.devices[device]}", "lowtide", "")]
    opening = {"stream": 0, "time_us": start, "frames": segment["frames"]}
    trace = [
        {"action": "snapshot", "addr": 0, "size": 0, "category": "unknown", **opening},
        {"action": "segment_alloc", "addr": BASE, "size": size, **opening},
    ]
    return segment, [*trace, *drawn] if drawn else []


def _blocks(recording: Recording, device: int) -> tuple[dict[int, _Block], list[int]]:
    # Every block with its last telling role and owner; and those that lived before, in order.
    # Nameless ones, which were there before and only died, have negative numbers.
    blocks: dict[int, _Block] = {}
    before: list[int] = []
    first = recording.marks[0].roles if recording.marks else []
    left = list(first[device]) if device < len(first) else [0] * len(ROLES)
    for _, kind, d, number, nbytes, role, owner in recording.events.rows():
        if d != device or not nbytes:
            continue
        if kind == ALLOC:
            blocks[number] = _Block(nbytes, role, owner)
            continue
        if number not in blocks:
            number = number or -1 - len(before)
            blocks[number] = _Block(nbytes, role, 0)
            before.append(number)
            left[role] -= nbytes
        block = blocks[number]
        if role != TEMPORARY:
            block.role = role
        if kind not in (ALLOC, FREE) and owner > 0 and ROLES[role] != "saved":
            block.owner = owner
    for role, nbytes in enumerate(left):  # what was there and of which nothing was heard
        if nbytes > 0:
            number = -1 - len(before)
            blocks[number] = _Block(nbytes, role, 0)
            before.append(number)
    return blocks, before


class _Frames:
    """Stack frames of owners; equal ones are one object, which the pickle stores once."""

    def __init__(self, owners: list[Owner]) -> None:
        self.owners = owners
        self.made: dict[int, list[dict[str, Any]]] = {}

    def of(self, number: int) -> list[dict[str, Any]]:
        if number not in self.made:
            owner = self.owners[number]
            file, _, line = owner.line.rpartition(":")
            frames = [_frame(f"{owner.op} ({owner.phase})", file or owner.line, line)]
            frames += [_frame(label, path, "0") for label, path in modules_of(owner.module)[::-1]]
            for caller in owner.callers:
                file, _, line = caller.rpartition(":")
                frames.append(_frame("called from", file or caller, line))
            self.made[number] = frames
        return self.made[number]


def _frame(name: str, filename: str, line: str) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": int(line) if line.isdecimal() else 0}


def _segment(device: int, size: int, alive: dict[int, _Block]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = BASE

    def gap(to: int) -> None:
        if to > at:
            blocks.append(
                {"address": at, "size": to - at, "requested_size": 0, "state": "inactive"}
                | {"frames": []}
            )

    for block in sorted(alive.values(), key=lambda b: b.address):
        gap(block.address)
        at = block.address + _rounded(block.nbytes)
        blocks.append(
            {
                "address": block.address,
                "size": at - block.address,
                "requested_size": block.nbytes,
                "state": "active_allocated",
                "frames": block.frames,
            }
        )
    gap(BASE + size)
    held = sum(_rounded(block.nbytes) for block in alive.values())
    return {
        "device": device,
        "address": BASE,
        "total_size": size,
        "allocated_size": held,
        "active_size": held,
        "requested_size": sum(block.nbytes for block in alive.values()),
        "stream": 0,
        "segment_type": "large",
        "frames": [],
        "blocks": blocks,
    }
