"""The functions that users call: built from an op's declaration, or around a composition."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from ..modes import local
from ..tensor import Tensor
from .dispatch import dispatch, dispatch_pair
from .inplace import dispatch_inplace, dispatch_out, write_out
from .old_calls import old_call
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
    if op.old:
        names |= {"old_call": old_call, "_numbers": op.old}
        on = ", ".join(f"{p.name}={p.name}" for p in [*parameters, *out] if p.kind in _BY_NAME)
        given = f"({call_inputs}, *_old)"
        body = f"if _old: return old_call({op.name}, _numbers, {given}, {on})\n{body}"
    origin = f"<op {op.name}>"
    name = op.name if op.name.isidentifier() else "call"
    function = compiled(name, [*parameters, *out], body, names, origin)
    _name(function, op, op.name, op.doc)
    hide_old(function)
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
    old = [_Parameter("_old", _Parameter.VAR_POSITIONAL)] if op.old else []
    by_name = bool(op.variadic or op.old) or (
        any(p.default is not empty for p in given) and empty in op.attributes.values()
    )
    kind = _Parameter.KEYWORD_ONLY if by_name else _Parameter.POSITIONAL_OR_KEYWORD
    return [*given, *old, *[_Parameter(n, kind, default=d) for n, d in op.attributes.items()]]


def _name(function: Any, op: Op, name: str, doc: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = op.plain.__module__
    function.__doc__ = doc


def in_place_twin(f: Any, name: str) -> Any:
    """Make the in-place twin of a composition: it computes the result and copies it in."""
    first = parameter_names(f)[0]  # PyTorch's functions take it by its name
    taken = [
        _Parameter(first, _Parameter.POSITIONAL_OR_KEYWORD),
        _Parameter("args", _Parameter.VAR_POSITIONAL),
        _Parameter("kwargs", _Parameter.VAR_KEYWORD),
    ]
    body = (  # backward may want the value that is about to go
        f"source = {first}.clone() if recorded({first}, *args, *kwargs.values()) else {first}\n"
        f"return {first}.copy_(f(source, *args, **kwargs))"
    )
    twin = compiled(name, taken, body, {"f": f, "recorded": recorded}, f"<function {name}>")
    twin.__qualname__, twin.__module__ = name, f.__module__
    twin.__doc__ = f"In-place twin of ``{f.__name__}``."
    return twin


def recorded(*inputs: Any) -> bool:
    """Tell whether a call with these inputs is recorded for backward."""
    return local.state.grad and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


def hide_old(f: Any) -> None:
    """Leave ``*_old``, the arguments of PyTorch's old calls, out of the signature that is shown."""
    code = f.__code__
    if code.co_flags & inspect.CO_VARARGS and "_old" in code.co_varnames:
        shown = inspect.signature(f)
        taken = [p for p in shown.parameters.values() if p.name != "_old"]
        f.__signature__ = shown.replace(parameters=taken)


_BY_NAME = (_Parameter.KEYWORD_ONLY,)
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
_NAMED = {_Parameter.POSITIONAL_OR_KEYWORD, _Parameter.KEYWORD_ONLY}
_MISSING: Any = object()


def with_short_traceback(f: Any) -> Any:
    """Wrap a function so that out-of-memory errors which leave it are cut to few frames of ours."""
    parameters = inspect.signature(f).parameters.values()
    body = f"return f({passed(parameters)})"
    return wraps(f)(compiled("call", parameters, body, {"f": f}, f"<function {f.__name__}>"))


def other_names(f: Any, names: dict[str, str], out: bool = False) -> Any:
    """Let a function take arguments by further names, as PyTorch's overloads do, and ``out``.

    Args:
        f: A function; one of ``dim`` takes NumPy's ``axis`` and ``keepdims`` without being asked.
        names: Its own name for each further one.
        out: It also takes ``out=``, and its results are written there.
    """
    own = parameter_names(f)
    if not names and not out and "dim" not in own:
        return f
    parameters = inspect.signature(f).parameters
    named = {p.kind for p in parameters.values()} <= _NAMED
    if "dim" in own and "axis" not in parameters and named:
        names = names | {a: n for a, n in _NUMPY_NAMES.items() if n in parameters}
    if not names and not out:
        return f
    if not (named and {*names.values()} <= {*parameters} and not {*names} & {*parameters}):
        raise TypeError(
            f"{f.__name__}: further names {names} stand for parameters of a function that takes "
            f"all of them by name; got {inspect.signature(f)}."
        )
    taken: list[inspect.Parameter] = []
    required = None  # the last parameter that must be given, from the first with two names on
    renamed = False
    for n, p in parameters.items():
        renamed = renamed or n in names.values()
        if p.default is p.empty and renamed:
            required = n
            p = p.replace(default=_MISSING)
        taken.append(p)
    odd = [f"{a} is not _missing" for a in names]
    if required is not None:
        odd.append(f"{required} is _missing")
    if out:
        odd.append("out is not None")
    body = (
        f"if {' or '.join(odd)}: return _renamed(f, _names, locals(){', True' if out else ''})\n"
        f"return f({passed(parameters.values())})"
    )
    extra = [_Parameter(a, _Parameter.KEYWORD_ONLY, default=_MISSING) for a in names]
    if out:
        extra.append(_Parameter("out", _Parameter.KEYWORD_ONLY, default=None))
    known = {"f": f, "_missing": _MISSING, "_names": names, "_renamed": _renamed}
    call = compiled("call", [*taken, *extra], body, known, f"<function {f.__name__}>")
    call = wraps(f)(call)
    vars(call).pop("__signature__", None)  # what it shows is f's, by way of __wrapped__
    if out:
        shown = inspect.signature(f).replace(parameters=[*parameters.values(), extra[-1]])
        call.__signature__ = shown  # type: ignore[attr-defined]
    return call


def _renamed(f: Any, names: dict[str, str], given: dict[str, Any], writes: bool = False) -> Any:
    # With a further name, or out, or too few arguments: then f itself says so.
    out = given.pop("out", None) if writes else None
    arguments = {n: v for n, v in given.items() if v is not _MISSING}
    for other, name in names.items():
        if other in arguments:
            value = arguments.pop(other)
            default = inspect.signature(f).parameters[name].default
            if name in arguments and arguments[name] is not default:
                raise TypeError(f"{f.__name__}() got both '{name}' and '{other}'. Pass one.")
            arguments[name] = value
    if out is None:
        return f(**arguments)
    return write_out(f.__name__, partial(f, **arguments), (*arguments.values(),), out)
