"""The code of a change, as a user would paste it behind the lines that make model and optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from .targets import Models

NARROW = """\
{0}.to(lowtide.bfloat16)
{0}.register_forward_pre_hook(narrow)"""
NARROW_HOOK = """\
def narrow(module, args):
    floats = [lowtide.is_tensor(a) and a.is_floating_point() for a in args]
    return tuple(a.bfloat16() if f else a for a, f in zip(args, floats))

"""
WIDEN = "{0}.register_forward_hook(lambda module, args, result: result.float())"


def expression(roots: Models, module: Any) -> str:
    """Return a module as the program would write it: ``net.blocks[3].mlp``."""
    for name, root in roots.items():
        for path, m in root.named_modules():
            if m is module:
                return name.partition("#")[0] + _accessors(root, path)
    return "model"


def _accessors(root: Any, path: str) -> str:
    text, holder = "", root
    for part in path.split(".") if path else ():
        inner = holder.get_submodule(part)
        if part.isidentifier():
            text += f".{part}"
        elif part.isdigit() and hasattr(holder, "__getitem__") and hasattr(holder, "__len__"):
            text += f"[{part}]"
        else:
            text += f".get_submodule({part!r})"
        holder = inner
    return text


def _each(roots: Models, modules: list[Any], lines: str) -> str:
    # The lines for each module, in a loop if these are all items of one container.
    for root in roots.values():
        for _, container in root.named_modules():
            items = list(container.children())
            same = len(items) == len(modules) > 1 and hasattr(container, "__iter__")
            if same and all(a is b for a, b in zip(items, modules, strict=True)):
                body = lines.format("part").replace("\n", "\n    ")
                return f"for part in {expression(roots, container)}:\n    {body}"
    return "\n".join(lines.format(expression(roots, m)) for m in modules)


def checkpoint(roots: Models, parts: list[list[Any]]) -> str:
    """Return the code of activation checkpointing, a region for each module of each part."""
    return "\n".join(_each(roots, modules, "{0}.set_checkpointing()") for modules in parts)


def no_grad(roots: Models, modules: list[Any]) -> str:
    """Return the code of ``forward`` under ``no_grad``."""
    return _each(roots, modules, "{0}.forward = lowtide.no_grad()({0}.forward)")


def narrower(roots: Models, modules: list[Any]) -> str:
    """Return the code of modules in bfloat16; parts give on what they were given."""
    whole = all(any(m is root for root in roots.values()) for m in modules)
    return NARROW_HOOK + _each(roots, modules, NARROW if whole else f"{NARROW}\n{WIDEN}")


def budget(limit: int, device: str) -> str:
    """Return the code of a byte budget around the training loop."""
    where = "" if device == "cpu" else f", {device!r}"
    return (
        f"with lowtide.memory_budget({_size(limit)}{where}):  # around the training loop\n    ..."
    )


def planned_budget(call: str, limit: int, device: str, in_backward: list[str]) -> str:
    """Return the code of a plan: of a step, within a limit, with optimizers in backward."""
    where = "" if device == "cpu" else f", device={device!r}"
    if in_backward:
        names = ", ".join(in_backward)
        where += f", in_backward={names if len(in_backward) == 1 else f'[{names}]'}"
    return (
        f"plan = lowtide.fit({call}, budget={_size(limit)}{where})\n"
        "with plan:  # around the training loop\n    ..."
    )


def call(step: Any, args: Any, kwargs: Any) -> str:
    """Return the arguments of ``fit`` that make it call a step: ``step, x, y=y``.

    Arguments are named as the step's own parameters: the caller's names are not known.
    """
    name = getattr(step, "__name__", "step")
    name = name if name.isidentifier() else "step"  # a lambda
    try:
        known = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        known = {}.values()
    given = [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    positional = given[: len(args)] if len(given) >= len(args) else ["..."]
    return ", ".join([name, *positional, *(f"{key}={key}" for key in kwargs)])


def _size(limit: int) -> str:
    return f'"{limit >> 20}MiB"' if limit and limit % (1 << 20) == 0 else f"{limit}"


def batch(named: Iterable[str], size: int, n: int, drawn: bool) -> str:
    """Return the code of another number of rows."""
    names = list(named)
    if n < size and not drawn and names and all(name.isidentifier() for name in names):
        cut = ", ".join(f"{name}[:{n}].clone()" for name in names)
        return f"{', '.join(names)} = {cut}"
    return f"batch_size = {n}  # instead of {size}: {', '.join(names)}"
