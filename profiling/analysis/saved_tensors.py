"""List the tensors that the graph of a function's result saves for backward.

The function is run for real, once, with the arguments given: so it may be any Python, and what is
listed is what the graph holds, not what a rule says it would. With arguments (and a model) on
``meta`` nothing is computed and no memory is taken, and the list is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from ...framework.attribution import scopes
from ...framework.attribution.call_stacks import UNKNOWN
from ...framework.autograd.node import Node
from ...framework.devices import live_backends, on_new_backend
from ...framework.dtypes import dtype
from ...framework.memory.events import observe
from ...framework.memory.ledger import ROLES, format_bytes
from ...framework.tensor import Tensor
from ..record.variable_names import called
from .tables import NO_LINE, OUTSIDE, WIDTH, Table, cut


class SavedTensor(NamedTuple):
    """One value saved for backward by one graph node.

    Attributes:
        label: Which value of which op, such as ``mul.other``.
        shape: Its shape.
        dtype: Its dtype.
        nbytes: Bytes of the value.
        kept_bytes: Bytes that are alive because of it: those of its whole storage, unless an
            earlier value of the list has the same one, or it was there before the function ran.
        role: What its storage is for.
        module: Path of the module that saves it.
        line: ``file:line`` of the op that saves it.
    """

    label: str
    shape: tuple[int, ...]
    dtype: dtype
    nbytes: int
    kept_bytes: int
    role: str
    module: str
    line: str


class SavedTensors(list[SavedTensor]):
    """A list of saved tensors, in the order in which they were saved.

    Attributes:
        total_bytes: What they keep alive together.
    """

    @property
    def total_bytes(self) -> int:
        """The sum of ``kept_bytes``."""
        return sum(s.kept_bytes for s in self)

    def by(self, key: str = "line") -> Table:
        """Sum ``kept_bytes`` by ``line``, ``module``, ``label`` or ``role``."""
        if key not in ("line", "module", "label", "role"):
            raise ValueError(f"by is one of line, module, label, role; got {key!r}.")
        empty = {"line": NO_LINE, "module": OUTSIDE}.get(key, "")
        sums: dict[str, int] = {}
        for s in self:
            name = getattr(s, key) or empty
            sums[name] = sums.get(name, 0) + s.kept_bytes
        return Table("saved for backward", key, {n: b for n, b in sums.items() if b})

    def to_dict(self) -> list[dict[str, Any]]:
        """Convert to plain containers that JSON can hold."""
        return [{**s._asdict(), "shape": list(s.shape), "dtype": str(s.dtype)} for s in self]

    def __str__(self) -> str:
        cells = [("bytes kept", "value", "shape", "role", "module", "line")]
        for s in self:
            shape = f"{str(s.dtype).rpartition('.')[2]}{list(s.shape)}"
            cells.append((f"{s.kept_bytes:,}", s.label, shape, s.role, s.module, s.line))
        widths = [max(len(c[k]) for c in cells) for k in range(6)]
        room = WIDTH - sum(widths[:4]) - 10  # for module and line, whose ends tell most
        if widths[4] + widths[5] > room:
            widths[4] = min(widths[4], max(room // 2, room - widths[5]))
            widths[5] = min(widths[5], room - widths[4])
            cells = [(*c[:4], cut(c[4], widths[4]), cut(c[5], widths[5])) for c in cells]
        lines = [
            "  ".join([f"{c[0]:>{widths[0]}}", *(f"{c[k]:<{widths[k]}}" for k in range(1, 6))])
            for c in cells
        ]
        lines.append(f"{len(self)} values keep {format_bytes(self.total_bytes)} alive")
        return "\n".join(line.rstrip() for line in lines)


def saved_tensors(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> SavedTensors:
    """List the tensors saved for backward by ``fn(*args, **kwargs)``.

    It runs ``fn`` once, with all its effects (a generator moves on, running statistics change),
    and lets the result go. Nothing is computed if the tensors it works on are on meta.

    Args:
        fn: Returns tensors: one, or lists, tuples and dicts of them.
        *args: For ``fn``.
        **kwargs: For ``fn``.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> kept = lt.profiling.saved_tensors(lambda x: (x.exp() * 2.0).sum(), x)
        >>> kept.total_bytes, [s.label for s in kept]
        (4000, ['exp.out'])
    """
    born: set[tuple[str, int]] = set()

    def observer(event: str, device: str, nbytes: int, role: int, address: int, old: int) -> None:
        if not nbytes:  # empty storages have the address of whatever lies first
            return
        if event == "alloc":
            born.add((device, address))
        elif event == "free":
            born.discard((device, address))

    def watch(be: Any) -> None:
        stack.enter_context(observe(be.ledger, observer))

    with ExitStack() as stack:
        for be in live_backends():
            watch(be)
        on_new_backend.append(watch)
        stack.callback(on_new_backend.remove, watch)
        scopes.listen(True, called=called)
        try:
            result = fn(*args, **kwargs)
        finally:
            scopes.unlisten(True, called=called)
    return SavedTensors(_list(result, born))


def _list(result: Any, born: set[tuple[str, int]]) -> Iterator[SavedTensor]:
    met: set[tuple[str, int]] = set()
    for node in _nodes(result):
        handles = getattr(node, "handles", None) or getattr(node, "_handles", None) or ()
        rules = getattr(node, "rules", None)
        module, stack = getattr(node, "_site", ("", UNKNOWN))
        for k, handle in enumerate(handles):
            if not hasattr(handle, "unpack"):
                continue
            label = rules.labels[k].lstrip("_") if rules is not None else f"{node.name()}.{k}"
            storage = getattr(handle, "storage", None)
            if storage is None and isinstance(getattr(handle, "packed", None), Tensor):
                storage = handle.packed._storage
            kept, role = 0, "packed"
            if storage is not None:
                role = ROLES[storage.role]
                ledger = storage.ledger
                place = (ledger.name if ledger is not None else "", storage.address)
                if place in born and place not in met:
                    kept = storage.nbytes
                if storage.nbytes:
                    met.add(place)
            spec = handle.spec
            yield SavedTensor(
                label, tuple(spec.shape), spec.dtype, spec.nbytes, kept, role, module, stack.line
            )


def _nodes(result: Any) -> list[Node]:
    # The graph behind all tensors of a result, in the order of recording.
    found: set[Node] = set()
    pending = [t._node for t in _tensors(result) if t._node is not None]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [target for target, _ in node.edges if target._is_node]
    return sorted(found, key=lambda n: n.seq)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)
