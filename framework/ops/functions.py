"""The functions that users call, built from declarations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .dispatch import dispatch, dispatch_pair
from .inplace import dispatch_inplace, dispatch_out

if TYPE_CHECKING:
    from .registry import Op


def make_functions(op: Op, allow_out: bool) -> tuple[Any, Any]:
    """The public function of an op, and its in-place twin if it declares one.

    Both are built from a template, as dataclasses build ``__init__``: so that the call has the
    op's own argument names and defaults at the cost of one plain call.
    """
    empty = inspect.Parameter.empty
    head = []
    for n in op.inputs:
        if n == op.variadic:
            head.append(f"*{n}")
        else:
            head.append(n if op.input_defaults[n] is empty else f"{n}=_d_{n}")
    tail = [n if d is empty else f"{n}=_d_{n}" for n, d in op.attributes.items()]
    defaults = {f"_d_{n}": d for n, d in (op.attributes | op.input_defaults).items()}
    if op.variadic is None:  # a required attribute may not follow a defaulted input
        required_after = any("=" in h for h in head) and any("=" not in t for t in tail)
        if required_after:
            tail = ["*", *tail]
    star = any(p.startswith("*") for p in (*head, *tail))
    call_inputs = ", ".join(f"*{n}" if n == op.variadic else n for n in op.inputs)
    inputs = f"({call_inputs},)" if op.inputs else "()"
    attrs = f"({', '.join(op.attributes)},)" if op.attributes else "()"
    out = [] if not allow_out else (["out=None"] if star else ["*", "out=None"])
    check = f"    if out is not None: return dispatch_out(op, {inputs}, {attrs}, out)\n"
    name = op.name if op.name.isidentifier() else "call"
    source = (
        f"def {name}({', '.join((*head, *tail, *out))}):\n"
        + (check if allow_out else "")
        + (
            f"    return dispatch_pair(op, {call_inputs})\n"
            if len(op.inputs) == 2 and not (op.attributes or op.variadic or op.view)
            else f"    return dispatch(op, {inputs}, {attrs})\n"
        )
    )
    if op.inplace:
        source += (
            f"def _inplace({', '.join((*head, *tail))}):\n"
            f"    return dispatch_inplace(op, {inputs}, {attrs})\n"
        )
    scope = {
        "op": op,
        "dispatch": dispatch,
        "dispatch_pair": dispatch_pair,
        "dispatch_out": dispatch_out,
        "dispatch_inplace": dispatch_inplace,
        **defaults,
    }
    exec(compile(source, f"<op {op.name}>", "exec"), scope)
    function = scope[name]
    in_place: Any = scope.get("_inplace")
    for f, n in ((function, op.name), (in_place, op.inplace or "")):
        if f is not None:
            f.__name__ = f.__qualname__ = n
            f.__module__ = op.plain.__module__
            f.__doc__ = (
                op.doc if f is function else f"In-place twin of ``{op.display_name}``.\n\n{op.doc}"
            )
    return function, in_place
