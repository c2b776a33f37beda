"""Findings of leak detection, their report, and warnings of them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...framework.memory.ledger import format_bytes
from .node_tracker import Site
from .ownership import Owned, Root
from .referrers import ReferrerPath

_warned: dict[Any, Any] = {}  # of the interpreter's own "once a line"


@dataclass(frozen=True)
class Finding:
    """A graph that outlives its step, or tensors without a graph that pile up.

    Attributes:
        kind: What holds it: ``list``, ``dict``, ``running sum``, ``carried state``, ``attribute``,
            ``module attribute``, ``closure``, ``hook``, ``exception``, ``generator``, ``cache``,
            ``default argument``, ``global``, ``local variable``, ``gradient graph``,
            ``retain_graph``, ``input gradient``, ``cycle`` or ``unseen``; ``shared`` is what
            several others hold together.
        root: Where it is held, in words.
        line: ``file:line`` of the op that made the surviving value, or of the backward call.
        kept_at: ``file:line`` of the statement that put it there, if only one can have.
        bytes: Bytes that dropping it alone would free, when last looked at; of a sum or state that
            is carried from step to step, those of its chain.
        growth_bytes_per_step: By how much they grow with each step.
        nodes: Nodes of the graph that are kept, the memory of which Python has, not the ledger.
        growth_nodes_per_step: By how many they grow.
        steps: From how many steps something was alive.
        fix: What to write instead.
        graph: False for tensors without a graph.
    """

    kind: str
    root: str
    line: str
    kept_at: str | None
    bytes: int
    growth_bytes_per_step: int
    nodes: int
    growth_nodes_per_step: int
    steps: int
    fix: str
    graph: bool = True

    def __str__(self) -> str:
        kept = f", kept at {self.kept_at}" if self.kept_at else ""
        if not self.graph:
            made = f", made at {self.line}" if self.line else ""
            return (
                f"{self.kind}: {self.root} holds {format_bytes(self.bytes)} of tensors without a "
                f"graph{made}{kept}; each step adds {format_bytes(self.growth_bytes_per_step)}. "
                f"{self.fix}"
            )
        return (
            f"{self.kind}: {self.root} holds {format_bytes(self.bytes)} and {self.nodes} nodes "
            f"of the graph made at {self.line}{kept}; each step adds "
            f"{format_bytes(self.growth_bytes_per_step)} and {self.growth_nodes_per_step} nodes. "
            f"{self.fix}"
        )


class Size(NamedTuple):
    """The size of a retained graph: bytes of the ledger, and nodes."""

    bytes: int
    nodes: int


NOTHING = Size(0, 0)


@dataclass
class FindingRecord:
    """A finding that is updated at the end of each step."""

    kind: str
    root: str
    line: str
    kept_at: str | None
    fix: str
    began: int  # at the end of which step it was found
    first: Size = NOTHING  # when it was found
    size: Size = NOTHING
    growth: Size = NOTHING
    steps: int = 0
    seen: int = 1  # step ends at which it was there
    sites: set[Site] = field(default_factory=set)
    carried: bool = False
    newest: bool = False  # the present step's graph is held too
    root_object: Root | None = None  # what a user would drop
    gone: bool = False  # that object is no more
    counted: bool = False  # its bytes are those that dropping it alone would free
    graph: bool = True
    enough: bool = True  # it holds values of enough steps

    def told(self, step: int, base: int, over: bool) -> bool:
        """Return whether it is a finding by now: a graph that outlives its step always is."""
        return True

    def weigh(self, owned: Owned, step: int, ends: int) -> None:
        """Update it from what dropping it would free.

        Args:
            owned: That.
            step: The present step.
            ends: Steps that have ended.
        """
        size = Size(owned.bytes, owned.nodes)
        if self.counted:
            self.grow(size, ends)
            return
        self.counted, self.first, self.size = True, size, size
        last = max((s for s in owned.by_step if s < step), default=0)
        if self.sites:  # else it is one old graph, which may never have a second
            self.growth = Size(owned.by_step.get(last, 0), self.growth.nodes)

    def grow(self, size: Size, ends: int) -> None:
        """Update its size, and its growth since it was found."""
        self.size = size
        passed = ends - self.began
        if passed > 0:
            more, nodes = size.bytes - self.first.bytes, size.nodes - self.first.nodes
            self.growth = Size(max(more, 0) // passed, max(nodes, 0) // passed)

    def finding(self) -> Finding:
        """Return the finding in its current state."""
        return Finding(
            self.kind,
            self.root,
            self.line,
            self.kept_at,
            self.size.bytes,
            self.growth.bytes,
            self.size.nodes,
            self.growth.nodes,
            self.steps,
            self.fix,
            self.graph,
        )


def page(found: list[Finding], ends: int) -> str:
    """Format findings as text.

    Args:
        found: Them.
        ends: How many steps were watched.
    """
    if not found:
        return f"No graph survives its step, and no tensors pile up ({ends} steps watched).\n"
    rows = [("kind", "bytes", "per step", "nodes", "per step", "made at")]
    rows += [
        (
            f.kind,
            format_bytes(f.bytes),
            f"+{format_bytes(f.growth_bytes_per_step)}",
            str(f.nodes) if f.graph else "-",
            f"+{f.growth_nodes_per_step}" if f.graph else "-",
            f.line,
        )
        for f in found
    ]
    widths = [max(len(r[k]) for r in rows) for k in range(6)]
    out = [f"{summary(found)} ({ends} steps watched)", ""]
    for k, row in enumerate(rows):
        cells = [
            c.ljust(w) if i in (0, 5) else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
        if k:
            f = found[k - 1]
            out.append(f"    held by {f.root}")
            if f.kept_at:
                out.append(f"    kept at {f.kept_at}")
            out.append(f"    fix: {f.fix}")
    return "\n".join(out) + "\n"


def summary(found: list[Finding]) -> str:
    """Say in words how many graphs survive, and in how many places tensors pile up."""
    graphs = sum(f.graph and f.kind != "shared" for f in found)
    places = sum(not f.graph for f in found)
    words = []
    if graphs:
        words.append(
            "1 graph survives its step" if graphs == 1 else f"{graphs} graphs survive their step"
        )
    if places:
        words.append(
            f"tensors without a graph pile up in {places} place{'s' if places > 1 else ''}"
        )
    text = ", and ".join(words)
    return text[:1].upper() + text[1:]


def shared_finding(nbytes: int, steps: int) -> Finding:
    """Return what several findings hold together, as one more of them."""
    text = "several of these together"
    way = "Each holds it as well: mend all of them."
    return Finding("shared", text, "", None, nbytes, 0, 0, 0, steps, way)


NOT_COUNTED = (
    "\nThey lead to more than a million objects, too many to count references: bytes and nodes are "
    "those of all their graphs, also of what something else holds.\n"
)


def elsewhere(nbytes: int) -> str:
    """Say how much of the graphs something else holds, too; nothing if that is nothing."""
    if not nbytes:
        return ""
    return (
        f"\n{format_bytes(nbytes)} of their graphs are held elsewhere, too (a variable of the last "
        "step, data), and stay when these go.\n"
    )


def fix(kind: str, path: ReferrerPath) -> str:
    """Return the suggested fix for a finding."""
    one = path.numel == 1
    value = ".item()" if one else ".detach()"
    name = path.name or "it"
    if kind == "closure" and name in ("args", "keywords"):
        return f"Give the partial {value} instead of the tensor."
    if kind == "local variable" and f"`{name}`" not in path.text:  # a part of what it names
        return f"Keep {value} instead of the tensor in {name}."
    if kind == "running sum":
        return f"Add the value without its graph: {name} += x{value}."
    if kind == "carried state" and f"{name}[" in path.text:
        return f"Cut the graph between steps: detach() what {name} holds; or run under no_grad()."
    if kind == "carried state":
        return f"Cut the graph between steps: {name} = {name}.detach(); or run under no_grad()."
    return {
        "gradient graph": "Call zero_grad(set_to_none=True) before the next backward, or use "
        "autograd.grad(..., create_graph=True), which leaves nothing in .grad.",
        "retain_graph": "Leave retain_graph=True out: no second backward came through this graph.",
        "input gradient": "Make the data without requires_grad, or .detach() the batch.",
        "exception": "Drop the exception, or keep str(error): its traceback holds the frame's "
        "tensors (traceback.clear_frames(error.__traceback__) lets them go).",
        "hook": f"Close over {name}{value} in the hook, and remove it with handle.remove().",
        "closure": f"Close over {name}{value} instead of the tensor.",
        "cache": "Return .detach() from the cached function, or call cache_clear() every step.",
        "generator": "Exhaust or close() the generator, and keep .detach() in its variables.",
        "default argument": f"Keep {value} in it, or give None as the default.",
        "cycle": "Break the cycle (set one of its references to None); until then gc.collect() "
        "frees it.",
        "unseen": f"Keep {value} where the tensor is kept.",
        "local variable": f"Compute it under no_grad(), or del {name} when it is used up.",
    }.get(kind, f"Keep {value} instead of the tensor in {name}.")


def fix_growing(path: ReferrerPath, part: bool, device: str) -> str:
    """Return what to write instead of keeping tensors that have no graph.

    Args:
        path: What keeps them.
        part: Each is a small part of what it keeps alive.
        device: The type of their device.
    """
    name = path.name or "it"
    if path.kind == "exception":
        return fix("exception", path)
    if part:
        return (
            "Keep a copy of the part: .clone(), or .copy() of an array. A view keeps all of what "
            "it is a part of."
        )
    if path.kind == "cache":
        return "Bound the cache (maxsize=), or call cache_clear() every step."
    if path.kind == "hook":
        return f"Clear {name} every step, or remove the hook with handle.remove()."
    host = "" if device == "cpu" else ", keep .cpu() of it"
    return (
        f"Keep a number (.item()) or a running sum instead of the tensor{host}, clear {name} when "
        "it has been used, or bound it: deque(maxlen=...)."
    )


def warn_at(line: str, category: type[Warning], message: str) -> None:
    """Warn at a line whose frame is no longer on the stack: ``file.py:3``, ``cell [2], line 3``."""
    file, mark, number = line.rpartition(":")
    if not mark:
        file, _, number = line.rpartition(", line ")
    if not number.isdigit():
        file, number = line or "<unknown>", "1"
    path = os.path.abspath(file)
    warnings.warn_explicit(
        message, category, path if os.path.exists(path) else file, int(number), registry=_warned
    )
