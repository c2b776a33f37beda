"""Hints in out-of-memory errors: what would free the missing bytes.

When an allocation fails, books and graph know what is kept for backward, where it was born and for
which modules. In a region of activation checkpointing what was born there and is kept for nothing
outside would not be held, less the part that comes back at a time; what flows from one part into
the next would. ``no_grad`` would hold none of it, where nothing is trained; and an optimizer that
steps within backward needs no gradient but one. The figures are of that instant. What the whole
step would take with a change, and which batch fits, :func:`~lowtide.profiling.advise` tells.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...framework.attribution import scopes
from ...framework.autograd.node import Node
from ...framework.memory.ledger import GRADIENT, INPUT, SAVED, TEMPORARY, format_bytes
from ...framework.modes import local
from .recording import LiveBytes, Recording

MOST = 3  # groups of modules that are named
WHOLE = "the model's parts"
# How much smaller, the instant cannot say: the rest of the step may need more than what failed.
SMALLER = (
    "a smaller batch: lowtide.profiling.advise(step), or `lowtide advise SCRIPT --limit BYTES`, "
    "finds the largest that fits the complete step"
)
FUSED = "optim.fuse_into_backward(optimizer), which keeps a gradient at a time,"


def remedies(
    recording: Recording, books: LiveBytes, numbers: Mapping[int, int], ledger: Any, missing: int
) -> tuple[dict[str, int], list[str]]:
    """List what would free memory at this point of the program.

    Args:
        recording: Whose owners ``books`` mean.
        books: Who owns what of the device now, by number of block.
        numbers: Of blocks, by address.
        ledger: That device's.
        missing: Bytes that are too much.

    Returns:
        Bytes by change, and the same in lines of text; changes that free nothing are left out.
    """
    grows = sum(n for (_, role), n in books.cells.items() if role in (SAVED, TEMPORARY, INPUT))
    kept: list[tuple[str, set[str], int]] = []  # module of birth, modules that save it, bytes
    readers = {numbers.get(at, 0): modules for at, modules in _readers(ledger).items()}
    saved = 0
    for number, (nbytes, role, owner, _) in books.blocks.items():
        if role == SAVED and recording.owners[owner].op != "before":  # that would live anyway
            saved += nbytes
            kept.append((recording.owners[owner].module, readers.get(number, set()), nbytes))
    groups = {_list_of(module) for module, _, _ in kept} - {""}
    found: dict[str, int] = {}
    for group in sorted(groups):
        found[group] = _freed(kept, partial(_item_in, group))
    best = sorted(found.items(), key=lambda change: -change[1])[:MOST]
    parts = _freed(kept, _item_of)
    if parts > max(found.values(), default=0):
        best.append((WHOLE, parts))
    changes = {f"activation checkpointing of each of {group}": n for group, n in best if n > 0}
    if saved and not _trains():
        changes["no_grad, where no gradient is wanted"] = saved
    if local.state.phase == "optimizer":
        gradients = [n for n, role, *_ in books.blocks.values() if role == GRADIENT]
        if len(gradients) > 1:
            changes[FUSED] = sum(gradients) - max(gradients)
    lines = [f"{what} frees {format_bytes(n)}" for what, n in changes.items() if n >= missing]
    if grows:
        lines.append(SMALLER)
    return changes, lines


def _trains() -> bool:
    # Whether what is kept for backward is for an optimizer: the pass is in backward, or in a model
    # in training mode with parameters that an optimizer steps.
    if local.state.phase in ("backward", "recompute", "optimizer"):
        return True
    owned = {
        id(p)
        for o in list(scopes.optimizers)
        for group in getattr(o, "param_groups", ())
        for p in group["params"]
    }
    top = scopes.current()
    model = None
    while top is not None:
        model = top.module() if top.module is not None else model
        top = top.outer
    if model is None:
        return bool(owned)
    return model.training and any(id(p) in owned for p in model.parameters())


def _readers(ledger: Any) -> dict[int, set[str]]:
    # By address, the modules whose nodes keep a storage for backward.
    found: dict[int, set[str]] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), Node):  # isinstance would ask a weak proxy's object
            continue
        module = getattr(thing, "_site", ("",))[0]
        for handle in getattr(thing, "handles", None) or getattr(thing, "_handles", None) or ():
            storage = getattr(handle, "storage", None)
            if storage is not None and storage.ledger is ledger:
                found.setdefault(storage.address, set()).add(module)
    return found


def _freed(kept: list[tuple[str, set[str], int]], part_of: Callable[[str], str]) -> int:
    # Bytes that regions around parts do not hold, less those of the largest, which come back.
    parts: dict[str, int] = {}
    for born, readers, nbytes in kept:
        part = part_of(born)
        if part and all(part_of(module) == part for module in readers):
            parts[part] = parts.get(part, 0) + nbytes
    return sum(parts.values()) - max(parts.values()) if len(parts) > 1 else 0


def _item_in(group: str, module: str) -> str:
    return _item_of(module) if _list_of(module) == group else ""


def _list_of(module: str) -> str:
    # The list of modules that a module is in, ``net.blocks`` of ``net.blocks.3.mlp``; or nothing.
    names = module.split(".")
    at = next((k for k, name in enumerate(names) if name.isdigit()), 0)
    return ".".join(names[:at])


def _item_of(module: str) -> str:
    # The part of the model that a module is in; of a list of modules, its item.
    names = module.split(".")
    return ".".join(names[: _list_of(module).count(".") + 2]) if _list_of(module) else names[0]


__all__ = ["remedies"]
