"""Nodes that are alive at the end of a step, by source line and creation step.

In a graph that is held from outside, something other than the graph must hold an *end*: a node
that nothing of its own step uses. Ends of old steps are where the search for a holder begins. If
nodes of the next step use them, the graph leads from step to step: it is *carried*.
"""

from __future__ import annotations

from typing import Any

from .findings import Size
from .node_tracker import NodeTracker, Site, held_bytes, saved_bytes, tensors_of
from .referrers import ReferrerPath, find_referrers

SIGN = 3  # steps with living nodes of one line
SOURCES = 24  # nodes to walk from at once
OLD, SIDE_BY_SIDE = 5, 4  # steps to walk from for each line, and nodes of each


class LiveNodes:
    """The nodes alive at the end of a step, by source line and creation step."""

    def __init__(self, notes: NodeTracker, alive: list[Any]) -> None:
        self.alive = alive
        self.now = notes.step
        self.steps: list[int] = []
        self.sites: list[Site] = []
        self.by_site: dict[Site, dict[int, list[int]]] = {}
        self._place = {id(node): k for k, node in enumerate(alive)}
        for k, node in enumerate(alive):
            made = notes.note(node)
            assert made is not None
            site = Site(made.line, node.name())
            self.steps.append(made.step)
            self.sites.append(site)
            self.by_site.setdefault(site, {}).setdefault(made.step, []).append(k)
        self.below: dict[int, list[int]] = {}
        self.above: dict[int, list[int]] = {}

    def _connect(self) -> None:
        if self.below:
            return
        for k, node in enumerate(self.alive):
            found = [self._place[id(t)] for t, _ in node.edges if id(t) in self._place]
            self.below[k] = found
            for b in found:
                self.above.setdefault(b, []).append(k)

    def nodes_at(self, sites: set[Site], newest: bool) -> list[int]:
        """Return the nodes of some lines; those of the current step only with ``newest``."""
        return [
            k
            for s in sites
            for step, ks in self.by_site.get(s, {}).items()
            if newest or step != self.now
            for k in ks
        ]

    def newest(self, site: Site) -> list[int]:
        """Return the nodes of a line from the last step that has any."""
        steps = self.by_site[site]
        return steps[max(steps)]

    def measure(self, tops: list[int]) -> tuple[Size, Size]:
        """Return the size of a subgraph, and of its part from the last step before."""
        self._connect()
        every, pending = set(tops), list(tops)
        while pending:
            for b in self.below[pending.pop()]:
                if b not in every:
                    every.add(b)
                    pending.append(b)
        tensors = tensors_of([self.alive[k] for k in tops])
        last = max((self.steps[k] for k in every if self.steps[k] < self.now), default=0)
        part = [k for k in every if self.steps[k] == last]
        of_last = [t for t in tensors if self.steps[self._place[id(t._node)]] == last]
        return (
            Size(held_bytes((self.alive[k] for k in every), tensors), len(every)),
            Size(held_bytes((self.alive[k] for k in part), of_last), len(part)),
        )

    def find_referrers(
        self, which: list[int], known: frozenset[int] = frozenset()
    ) -> list[ReferrerPath | None]:
        """Find what keeps some nodes alive, beside containers that are known."""
        edges = set()
        for node in self.alive:
            edges.add(id(node.edges))
            edges.add(id(getattr(node, "handles", None)))
            edges.update(map(id, node.edges))
        edges.discard(id(None))
        return find_referrers([self.alive[k] for k in which], [self.alive], edges, known)

    def ends(self, suspicious: set[Site]) -> tuple[list[int], list[int]]:
        """Return (nodes of old graphs that are held from outside, nodes carried step to step)."""
        self._connect()
        held: dict[Site, list[int]] = {}
        pending = []
        for s in suspicious:
            newest = max(self.by_site[s])
            for step, ks in sorted(self.by_site[s].items()):
                pending += ks if step != newest else []
                for k in ks:
                    users = [self.steps[u] for u in self.above.get(k, ())]
                    if not users or (step != newest and all(u > step for u in users)):
                        held.setdefault(s, []).append(k)
        crossing: set[Site] = set()
        seen = set(pending)
        while pending:  # whatever keeps them, from step to step
            k = pending.pop()
            for u in self.above.get(k, ()):
                if self.steps[u] > self.steps[k]:
                    crossing.add(self.sites[k])
                if u not in seen:
                    seen.add(u)
                    pending.append(u)
        carried = []
        for s in crossing:
            newest = max(self.by_site[s])
            for top in reversed(self.by_site[s][newest]):  # a name holds the last one
                if self._leads_to(top, s, newest):
                    carried.append(top)
                    held.pop(s, None)
                    break
        carried.sort(reverse=True)
        found = []
        for s in sorted(held, key=lambda s: -max(held[s])):
            ks = held[s]
            ks = [*ks, max(self.by_site[s][max(self.by_site[s])])]
            by_step: dict[int, list[int]] = {}
            for k in sorted(ks):
                by_step.setdefault(self.steps[k], []).append(k)
            # Old ones from several steps (a dict may hold two by right, see `detect._held`), and of
            # each step several: one line may fill several containers.
            chosen = list(by_step)
            for step in [*chosen[:OLD], *chosen[OLD:][-1:]]:
                found += by_step[step][-SIDE_BY_SIDE:]
        return found[:SOURCES], carried[:SOURCES]

    def _leads_to(self, top: int, site: Site, newest: int) -> bool:
        seen, pending = {top}, [top]
        while pending:
            for b in self.below[pending.pop()]:
                if self.sites[b] == site and self.steps[b] < newest:
                    return True
                if b not in seen:
                    seen.add(b)
                    pending.append(b)
        return False

    def idle_tops(self) -> list[int]:
        """Return root nodes of old graphs that hold saved tensors and are no longer used."""
        old = [k for k, step in enumerate(self.steps) if step <= self.now - 2]
        if not old:
            return []
        holding = {k for k in old if saved_bytes([self.alive[k]])}
        if not holding:
            return []
        self._connect()
        used: set[int] = set()
        pending = [k for k, step in enumerate(self.steps) if step > self.now - 2]
        while pending:
            for b in self.below[pending.pop()]:
                if b not in used:
                    used.add(b)
                    pending.append(b)
        tops = []
        for k in old:
            if k in used or self.above.get(k):
                continue
            seen, pending = {k}, [k]
            while pending:
                for b in self.below[pending.pop()]:
                    if b not in seen:
                        seen.add(b)
                        pending.append(b)
            if seen & holding:
                tops.append(k)
        return tops
