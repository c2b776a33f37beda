"""The functions that users call: built from an op's declaration, or around a composition."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

from .dispatch import dispatch, dispatch_pair
from .inplace import dispatch_inplace, dispatch_out
from .templates import compiled, parameter_names, passed

if TYPE_CHECKING:
    from .registry import Op

_Parameter = inspect.Parameter


def make_functions(op: Op, allow_out: bool) -> tuple[Any, Any]:
    """The public function of an op, and its in-place twin if it declares one.

    A call has the op's own argument names and defaults at the cost of one plain call.
    """
    parameters = _parameters(op)
    call_inputs = passed(p for p in parameters if p.name in op.inputs)
    inputs = f"({call_inputs},)" if op.inputs else "()"
    attributes = f"({', '.join(op.attributes)},)" if op.attributes else "()"
    names = {
        "op": op,
        "dispatch": dispatch,
        "dispatch_pair": dispatch_pair,
        "dispatch_out": dispatch_out,
        "dispatch_inplace": dispatch_inplace,
    }
    if len(op.inputs) == 2 and not (op.attributes or op.variadic or op.view):
        body = f"return dispatch_pair(op, {call_inputs})"
    else:
        body = f"return dispatch(op, {inputs}, {attributes})"
    out = []
    if allow_out:
        out.append(_Parameter("out", _Parameter.KEYWORD_ONLY, default=None))
        check = f"if out is not None: return dispatch_out(op, {inputs}, {attributes}, out)"
        body = f"{check}\n{body}"
    origin = f"<op {op.name}>"
    name = op.name if op.name.isidentifier() else "call"
    function = compiled(name, [*parameters, *out], body, names, origin)
    _name(function, op, op.name, op.doc)
    if not op.inplace:
        return function, None
    body = f"return dispatch_inplace(op, {inputs}, {attributes})"
    in_place = compiled("_inplace", parameters, body, names, origin)
    _name(in_place, op, op.inplace, f"In-place twin of ``{op.display_name}``.\n\n{op.doc}")
    return function, in_place


def _parameters(op: Op) -> list[inspect.Parameter]:
    empty = _Parameter.empty
    given = [
        _Parameter(n, _Parameter.VAR_POSITIONAL)
        if n == op.variadic
        else _Parameter(n, _Parameter.POSITIONAL_OR_KEYWORD, default=op.input_defaults[n])
        for n in op.inputs
    ]
    # A required attribute may not follow a defaulted input
    by_name = op.variadic is not None or (
        any(p.default is not empty for p in given) and empty in op.attributes.values()
    )
    kind = _Parameter.KEYWORD_ONLY if by_name else _Parameter.POSITIONAL_OR_KEYWORD
    return [*given, *[_Parameter(n, kind, default=d) for n, d in op.attributes.items()]]


def _name(function: Any, op: Op, name: str, doc: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = op.plain.__module__
    function.__doc__ = doc


_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
_NAMED = {_Parameter.POSITIONAL_OR_KEYWORD, _Parameter.KEYWORD_ONLY}
_MISSING: Any = object()


def with_short_traceback(f: Any) -> Any:
    """Wrap a function so that out-of-memory errors which leave it are cut to few frames of ours."""
    parameters = inspect.signature(f).parameters.values()
    body = f"return f({passed(parameters)})"
    return wraps(f)(compiled("call", parameters, body, {"f": f}, f"<function {f.__name__}>"))


def numpy_names(f: Any) -> Any:
    """Let a function of ``dim`` take NumPy's ``axis`` and ``keepdims`` too, as PyTorch does."""
    if "dim" not in parameter_names(f):
        return f
    parameters = inspect.signature(f).parameters
    kinds = {p.kind for p in parameters.values()}
    if "axis" in parameters or not kinds <= _NAMED:
        return f
    taken: list[inspect.Parameter] = []
    required = None  # the last parameter that must be given, from dim on
    for n, p in parameters.items():
        if p.default is p.empty and (required is not None or n == "dim"):
            required = n
            p = p.replace(default=_MISSING)
        taken.append(p)
    others = [a for a, n in _NUMPY_NAMES.items() if n in parameters]
    odd = [f"{a} is not _missing" for a in others]
    if required is not None:
        odd.append(f"{required} is _missing")
    body = (
        f"if {' or '.join(odd)}: return _renamed(f, locals())\n"
        f"return f({passed(parameters.values())})"
    )
    extra = [_Parameter(a, _Parameter.KEYWORD_ONLY, default=_MISSING) for a in others]
    names = {"f": f, "_missing": _MISSING, "_renamed": _renamed}
    call = compiled("call", [*taken, *extra], body, names, f"<function {f.__name__}>")
    return wraps(f)(call)


def _renamed(f: Any, given: dict[str, Any]) -> Any:
    # With NumPy's names, or too few arguments: then f itself says so.
    arguments = {n: v for n, v in given.items() if v is not _MISSING}
    for other, name in _NUMPY_NAMES.items():
        if other in arguments:
            value = arguments.pop(other)
            default = inspect.signature(f).parameters[name].default
            if name in arguments and arguments[name] is not default:
                raise TypeError(f"{f.__name__}() got both '{name}' and '{other}'. Pass one.")
            arguments[name] = value
    return f(**arguments)
