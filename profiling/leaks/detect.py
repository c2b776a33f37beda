"""Leak detection: graphs and tensors that outlive their step, who references them, and the fix.

``detect_retained`` watches a training loop. At the end of each step it looks which lines have
living nodes from three or more steps (``node_tracker.py``), and walks from those nodes up to a name
that a user knows (``referrers.py``). Only a suspicion costs that walk; a clean loop pays for a note
on each node.

What is distinguished:

- *held*: graphs side by side, each held by a tensor in one growing container;
- *carried*: one graph that leads from step to step, as a running sum and a recurrent state do;
- *static*: one old graph with saved activations that no later step uses, as in a kept exception;
- *idle*: what ``retain_graph=True`` left, and no other backward came for;
- *fed*: data that requires grad, and so gathers a gradient for every sample;
- *cycles*: graphs that only the garbage collector frees;
- *piled up*: tensors without a graph, in one growing container (``growing_tensors.py``).

A step is a period of the loop's optimizers, or what ``watch.step()`` says; without either, a
backward that accumulates into leaves; without that, it begins where a model is called again. When
another optimizer turns up, what was taken for steps may have been parts of one, so counting begins
again and young findings are dropped.

Not optimal: the first place that is found to hold a graph is named; others show when it is mended.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ...framework.interrupts import WholeContext
from .containers import dropped_root, grouped, is_other_holder
from .findings import (
    NOT_COUNTED,
    NOTHING,
    Finding,
    FindingRecord,
    elsewhere,
    fix,
    page,
    shared_finding,
    warn_at,
)
from .growing_tensors import GrowingTensors
from .node_tracker import NodeTracker, Site
from .noted_findings import NotedFindings
from .ownership import Shares, shares
from .referrers import ReferrerPath
from .survivors import SIGN, SOURCES, LiveNodes

_RIPE = 10  # steps after which a finding is not doubted any more
HOLDERS = 4  # containers of the same graphs that are looked for
_ABSENT = 32  # steps of others after which an optimizer is not waited for


class detect_retained(WholeContext):
    """Detect what is retained from one step to the next: graphs, and tensors that pile up.

    Args:
        warn: Also warn (``UserWarning``) of each finding at the end of the step that shows it, or
            of the block.

    Attributes:
        findings: A :class:`Finding` each, the most bytes first. The bytes of a container are those
            that dropping it alone would free. What several hold together is one more, of the kind
            ``shared``; the sum is what dropping all of them would free.
        shared_bytes: Bytes that several findings hold together.
        elsewhere_bytes: Bytes of their graphs that something else holds, too, such as a variable
            of the last step: dropping the findings frees none of them.
        counted: False: what the findings hold reaches more than a million objects, too many to
            count references. ``bytes`` and ``nodes`` of a finding are then those of all its
            graphs, also of what others hold.

    Memory:
        Keeps nothing of the program alive: weak references, strings and numbers.

    Example:
        >>> import lowtide as lt
        >>> w, losses = lt.ones(3, requires_grad=True), []
        >>> with lt.profiling.detect_retained() as watch:
        ...     for _ in range(3):
        ...         losses.append((w * w).sum())
        ...         losses[-1].backward()
        >>> watch.findings[0].kind
        'list'
    """

    def __init__(self, warn: bool = False) -> None:
        self.warn = bool(warn)
        self._generations = NodeTracker(self._passed, self._optimized, self._called)
        self._tensors = GrowingTensors(self._generations)
        self._lock = threading.RLock()
        self._records: dict[tuple[str, ...], FindingRecord] = {}
        self._mode = "evaluation"
        self._ends = 0
        self._over = False
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules of this step
        self._optimizers: dict[int, list[Any]] = {}  # id -> [weak reference, stepped, missed]
        self._explained: set[Site] = set()
        self._fruitless = self._rest = 0
        self._next = self._looked = 0
        self.shared_bytes = self.elsewhere_bytes = 0
        self.counted = True
        self._old: dict[int, Any] = {}  # static graphs already told of
        self._noted = NotedFindings(self._generations)
        self._warned: set[Any] = set()  # keys of records

    def _enter(self) -> detect_retained:
        self._generations.start()
        return self

    def _leave(self) -> None:
        with self._lock:
            self._over = True
            # What the last step left behind it is new: no step ends after that. And of lines that
            # are explained, other containers may hold graphs by now.
            self._explained.clear()
            self._rest = 0
            try:
                self._look_around(only_new=self._looked == self._ends)
            finally:
                self._tensors.stop()
                self._generations.stop()
        self._old.clear()
        self._optimizers.clear()
        self._tell()

    # When a step ends

    def step(self) -> None:
        """Mark the end of a step; after the first call only these calls end steps."""
        with self._lock:
            if self._mode != "manual":
                self._mode = "manual"
                self._begin_again()
            self._end_of_step()

    def _called(self, module: Any) -> None:
        # An outermost module, which begins a step if there is no backward: an evaluation.
        if self._mode != "evaluation":
            return
        with self._lock:
            if self._generations.any_pass:
                return
            if module in self._met:
                self._met.clear()
                self._end_of_step()
            self._met.add(module)

    def _passed(self) -> None:
        if self._mode == "evaluation":
            with self._lock:
                self._mode = "backward"
                if self._ends:
                    self._begin_again()
        if self._mode == "backward":
            with self._lock:
                self._end_of_step()

    def _optimized(self, optimizer: Any) -> None:
        if self._mode == "manual":
            return
        with self._lock:
            known = self._optimizers.get(id(optimizer))
            if known is None or known[0]() is not optimizer:
                known = self._optimizers[id(optimizer)] = [weakref.ref(optimizer), True, 0]
                if self._mode in ("evaluation", "backward") or len(self._optimizers) > 1:
                    self._mode = "optimizer"
                    self._begin_again()
                    for one in self._optimizers.values():  # in the period that was one step
                        one[1] = True
            for one in self._optimizers.values():
                one[2] += 1
            known[1:] = [True, 0]
            self._optimizers = {
                key: one
                for key, one in self._optimizers.items()
                if one[0]() is not None and one[2] < _ABSENT
            }
            for group in optimizer.param_groups:
                for p in group["params"]:
                    self._generations.leaves.pop(id(p), None)
            if all(one[1] for one in self._optimizers.values()):
                for one in self._optimizers.values():
                    one[1] = False
                self._end_of_step()

    def _begin_again(self) -> None:
        self._generations.begin_again()
        self._tensors.begin_again()
        self._records = {key: case for key, case in self._records.items() if case.seen >= _RIPE}
        self._ends = self._ends if self._records else 0
        self._explained.clear()
        self._noted.begin_again()
        self._fruitless = self._rest = 0
        self._next = 0

    # What is left then

    def _end_of_step(self) -> None:
        self._ends += 1
        if self._ends >= self._next:
            self._look_around()
            # A leak grows: then it is looked at ever less often, or steps would slow down.
            grows = self._explained or any(not case.graph for case in self._records.values())
            self._next = self._ends + (self._ends // 8 or 1 if grows else 1)
        self._noted.look(self._records, self._ends)
        self._generations.step += 1
        self._tell()

    def _tell(self) -> None:
        # At the line that keeps the graph, else at that which made it: this one is of no use.
        if self.warn:
            told = self._reported()
            for key, case in told.items():
                if key not in self._warned:
                    found = case.finding()
                    warn_at(found.kept_at or found.line, UserWarning, str(found))
            self._warned |= told.keys()

    def _reported(self) -> dict[tuple[str, ...], FindingRecord]:
        step, base = self._generations.step, self._tensors.base
        return {k: c for k, c in self._records.items() if c.told(step, base, self._over)}

    def _look_around(self, only_new: bool = False) -> None:
        self._looked = self._ends
        if self._mode != "evaluation" or self._over:  # there, graphs are looked at once
            self._look_at_graphs(only_new)
        for case in self._tensors.look(self._ends, list(self._records.values()), self._over):
            self._add(case, set(), case.name)
        self._count()

    def _look_at_graphs(self, only_new: bool) -> None:
        alive = self._generations.alive()
        try:
            look = LiveNodes(self._generations, alive)
            suspicious = {s for s, steps in look.by_site.items() if len(steps) >= SIGN}
            self._explained &= suspicious
            if not only_new:
                self._update(look)
            if suspicious - self._explained:
                if self._rest:
                    self._rest -= 1
                elif self._growing(look, suspicious - self._explained):
                    self._explained |= suspicious
                    self._fruitless = 0
                else:
                    self._fruitless += 1
                    self._rest = 0 if self._fruitless < 8 else 2 ** min(self._fruitless - 8, 6)
            if not only_new:
                self._static(look, suspicious)
        finally:
            alive.clear()

    def _count(self) -> None:
        # What dropping each would free; now, while nothing of ours holds a node.
        graphs = {c.root_object.key for c in self._records.values() if c.graph and c.root_object}
        self._records = {  # of one container, its graphs tell all
            key: case
            for key, case in self._records.items()
            if case.graph or case.root_object is None or case.root_object.key not in graphs
        }
        cases = [c for c in self._records.values() if c.root_object is not None]
        growing = [c for c in cases if not c.graph]
        before = cases
        found: Shares | None = None
        if growing:
            found = self._weigh(cases, growing)
            # Those with too few steps are searched again; those not reported share nothing.
            self._records = {k: c for k, c in self._records.items() if c.graph or c.enough}
            told = [id(c) for c in self._reported().values()]
            cases = [c for c in cases if c.graph or id(c) in told]
        self._weigh(cases, cases, found if len(cases) == len(before) else None)

    def _weigh(
        self,
        cases: list[FindingRecord],
        which: list[FindingRecord],
        found: Shares | None = None,
    ) -> Shares | None:
        roots = [c.root_object for c in cases if c.root_object is not None]
        if found is None and roots:
            found = shares(roots, self._generations, self._tensors.steps_of())
            self.counted = found is not None
            if found is None:
                self.shared_bytes = self.elsewhere_bytes = 0
        if found is None:
            return None
        self.shared_bytes, self.elsewhere_bytes = found.together, found.elsewhere
        for case in which:
            owned = found.owned.get(case.root_object)  # type: ignore[arg-type]
            case.gone = owned is None
            if owned is None:
                continue
            # All that it holds belongs to others by now.
            if owned.around and not (owned.nodes or (owned.bytes and not case.graph)):
                self._records = {k: c for k, c in self._records.items() if c is not case}
                continue
            case.weigh(owned, self._generations.step, self._ends)
        return found

    def _growing(self, look: LiveNodes, suspicious: set[Site]) -> bool:
        held, carried = look.ends(suspicious)
        found = False
        if carried:
            for k, path in zip(carried, look.find_referrers(carried), strict=True):
                found |= self._carried(look, k, path)
        # One may hold what another holds, too: look again beside those that were found.
        known: frozenset[int] = frozenset()
        for _ in range(HOLDERS if held else 0):
            paths = look.find_referrers(held, known)
            if known:  # a view's tensor is no other holder
                paths = [p if p and is_other_holder(p) else None for p in paths]
            new = self._held(look, held, paths) - known
            if not new:
                break
            found, known = True, known | new
        return found

    def _carried(self, look: LiveNodes, k: int, path: ReferrerPath | None) -> bool:
        site = look.sites[k]
        adds = site.op.startswith(("Add", "Cat", "Stack")) and any(
            look.sites[below] == site for below in look.below[k]
        )
        kind = "running sum" if adds else "carried state"
        if path is None:
            path = ReferrerPath(kind, "the graph of the next step", numel=None)
        elif path.kind in ("gradient graph", "cycle"):
            kind = path.kind
        case = FindingRecord(
            kind, path.text, site.line, None, fix(kind, path), self._ends, carried=True
        )
        case.size, case.growth = look.measure(look.newest(site))
        case.steps = len(look.by_site[site])
        return self._add(case, {site}, path.name)

    def _held(
        self, look: LiveNodes, held: list[int], found: list[ReferrerPath | None]
    ) -> frozenset[Any]:
        groups, steps = grouped(held, found, [look.steps[k] for k in held])
        for container, members in groups.items():
            path = members[0][1]
            sites = {look.sites[k] for k, _ in members}
            newest = {look.sites[k]: k for k, _ in members}
            top = max(sites, key=lambda s: newest[s])
            first = next((t for k, t in members if look.sites[k] == top), path)
            newest_too = look.now in steps[container]
            case = FindingRecord(
                first.kind, first.text, top.line, first.kept_at, fix(first.kind, first), self._ends
            )
            case.newest = newest_too
            case.root_object = dropped_root(path, container)
            case.size, case.growth = look.measure(look.nodes_at(sites, newest_too))
            case.steps = len(steps[container])
            self._add(case, sites, first.name)
        return frozenset(groups)

    def _static(self, look: LiveNodes, suspicious: set[Site]) -> None:
        # Old graphs with saved values that nothing of the last two steps leads to.
        tops = []
        for k in look.idle_tops():
            node = look.alive[k]
            known = self._old.get(id(node))
            if look.sites[k] in suspicious or (known is not None and known() is node):
                continue
            tops.append(k)
        if not tops:
            return
        tops = tops[:SOURCES]
        for k, path in zip(tops, look.find_referrers(tops), strict=True):
            node = look.alive[k]
            self._old[id(node)] = weakref.ref(node)
            if path is None:
                continue
            line = look.sites[k].line
            case = FindingRecord(path.kind, path.text, line, None, fix(path.kind, path), self._ends)
            case.size, case.growth = look.measure([k])[0], NOTHING
            case.root_object = dropped_root(path)
            case.steps = 1
            self._add(case, set(), path.name)

    # Keeping book

    def _add(self, case: FindingRecord, sites: set[Site], name: str) -> bool:
        where = "" if case.root_object is None else str(case.root_object.key)
        line = case.line if case.graph and not (case.carried and name) else ""
        key = (case.kind, line, name, where)
        known = self._records.get(key)
        if known is None and where:  # the same name may hold another container by now
            same = (c for k, c in self._records.items() if k[:3] == key[:3] and c.gone)
            known = next(same, None)
            if known is not None:
                known.root_object, known.gone = case.root_object, False
        if known is None and sites and not case.carried:
            # One container, and another line of what leads to its values: the later one is nearer.
            same = (c for c in self._records.values() if c.sites and not c.carried)
            known = next((c for c in same if (c.kind, c.root) == (case.kind, case.root)), None)
            if known is not None:
                known.line, known.fix = case.line, case.fix
        if known is None:
            case.sites = set(sites)
            case.first = case.size
            self._records[key] = case
        else:
            known.sites |= sites
            known.root_object = known.root_object or case.root_object
        return True

    def _update(self, look: LiveNodes) -> None:
        # Bytes and growth of what is known.
        for case in self._records.values():
            alive = [s for s in case.sites if s in look.by_site]
            if not alive:
                continue
            case.seen += 1
            if case.counted:
                case.steps = max(len(look.by_site[s]) for s in alive)
                continue
            if case.carried:
                nodes = [k for s in alive for k in look.newest(s)]
            else:
                nodes = look.nodes_at(set(alive), case.newest)
            if nodes:
                case.grow(look.measure(nodes)[0], self._ends)
                case.steps = len({look.steps[k] for k in nodes})
                if case.carried:
                    case.steps = max(len(look.by_site[s]) for s in alive)

    # What is told

    @property
    def findings(self) -> list[Finding]:
        """Findings so far, largest first."""
        with self._lock:
            found = [case.finding() for case in self._reported().values()]
            shared = self.shared_bytes
        found.sort(key=lambda f: (-f.growth_bytes_per_step, -f.bytes, f.line))
        return [*found, shared_finding(shared, self._ends)] if shared else found

    @property
    def steps(self) -> int:
        """How many steps ended so far."""
        return self._ends

    def report(self) -> str:
        """Format the findings as text."""
        return (
            page(self.findings, self._ends)
            + elsewhere(self.elsewhere_bytes)
            + ("" if self.counted else NOT_COUNTED)
        )

    def __repr__(self) -> str:
        return f"<detect_retained: {len(self._reported())} findings in {self._ends} steps>"
