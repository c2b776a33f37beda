"""Targets of a change: modules, parameters and variables, looked up by name.

A step is any function. The modules it reaches are those among its arguments, in its closure and
globals, in ``self``, in the functions of the user's that it calls, and in lists, dicts and objects
of the user's found there. A part of them is meant by the module itself, by its path (with ``*``
and ``?`` for any of a segment), or by the variable that holds it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from ...framework.attribution.scopes import optimizers
from ...framework.tensor import Tensor
from ..record.variable_names import MOST, _inside

DEEP = 2  # steps from a variable of the step's to a module: ``trainer.models.encoder``
SHOWN = 12  # names of modules in a message


class Models(dict[str, Any]):
    """The outermost modules that a step reaches, by name.

    Attributes:
        variables: All modules that the step could name, by name.
        tensors: Tensors that it could name.
    """

    def __init__(self, models: dict[str, Any]) -> None:
        super().__init__(models)
        self.variables: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}


def parts_of(given: Any) -> list[Any]:
    """Return an argument as a list: none, one or several targets."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple | set) else [given]


def is_module(value: Any) -> bool:
    """True for an object with the attributes of a module."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("named_modules", "forward", "parameters")
    )


def models_of(step: Any, args: Any, kwargs: Any, model: Any) -> Models:
    """Return the models meant by ``model``, or those that the step reaches."""
    if isinstance(model, dict):
        return Models(model)
    if model is not None:
        return Models({"model": model})
    return models_among(values_of(step, args, kwargs, set()), getattr(step, "__globals__", {}))


def models_among(values: Iterator[tuple[str, Any]], around: dict[str, Any]) -> Models:
    """Return the outermost modules among values, and in what these hold.

    Args:
        values: With their names.
        around: Variables that may name a part of one.
    """
    found: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in _with_insides(values):
        if isinstance(value, Tensor):
            tensors.setdefault(name, value)
        elif is_module(value) and id(value) not in seen:
            seen.add(id(value))
            found[name if name not in found else f"{name}#{len(found)}"] = value
    inner = {id(m) for root in found.values() for n, m in root.named_modules() if n}
    roots = Models({name: root for name, root in found.items() if id(root) not in inner})
    variables = {n: m for n, m in around.items() if is_module(m) and id(m) in inner}
    roots.variables, roots.tensors = {**variables, **found}, tensors
    return roots


def optimizers_of(step: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the optimizers that a step reaches, by name."""
    return optimizers_among(values_of(step, args, kwargs, set()))


def optimizers_among(values: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Return the optimizers among values and what these hold, by name."""
    known = {id(o) for o in list(optimizers)}
    found: dict[int, tuple[str, Any]] = {}
    for name, value in _with_insides(values):
        if id(value) in known:
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _with_insides(values: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    # And what lists, dicts and objects of the user's hold; what is nearer first.
    pending = [(name, value, 0) for name, value in values]
    met: set[int] = set()
    for name, value, depth in pending:
        yield name, value
        plain = isinstance(value, Tensor | type) or inspect.isroutine(value) or is_module(value)
        if depth < DEEP and not plain and id(value) not in met and len(pending) < MOST:
            met.add(id(value))
            if not str(type(value).__module__).startswith(("lowtide.", "numpy")):
                below = _inside(value, depth)
                pending += [(f"{name}.{k}", v, depth + 1) for k, v in below.items()]


def values_of(f: Any, args: Any, kwargs: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Collect the values that a call can reach, with their variable names."""
    yield from ((f"args[{k}]", a) for k, a in enumerate(args))
    yield from kwargs.items()
    if isinstance(f, functools.partial):
        yield from values_of(f.func, f.args, f.keywords, seen)
        return
    if id(f) in seen:
        return
    seen.add(id(f))
    owner = getattr(f, "__self__", None)
    if owner is not None:
        yield "self", owner
        yield from getattr(owner, "__dict__", {}).items()
    f = inspect.unwrap(getattr(f, "__func__", f))
    code = getattr(f, "__code__", None)
    if code is None:
        call = inspect.getattr_static(type(f), "__call__", None)
        if is_module(f):
            yield type(f).__name__, f
        elif inspect.isfunction(call):  # an object that can be called
            yield from values_of(call.__get__(f), (), {}, seen)
        return
    parameters = code.co_varnames[: code.co_argcount]
    defaults = getattr(f, "__defaults__", None) or ()
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (getattr(f, "__kwdefaults__", None) or {}).items()
    cells = inspect.getclosurevars(f)
    values = {**cells.globals, **cells.nonlocals}
    for inner in _codes(code):
        values.update({n: f.__globals__[n] for n in inner.co_names if n in f.__globals__})
    for name, value in values.items():
        yield name, value
        if inspect.isfunction(value) and not (value.__module__ or "").startswith("lowtide."):
            yield from values_of(value, (), {}, seen)


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _codes(inner)


def only(roots: Models, argument: str) -> dict[str, Any]:
    """Return the model if there is exactly one.

    Raises:
        ValueError: There is none, or several.
    """
    if len(roots) != 1:
        have = ", ".join(roots) or "none"
        raise ValueError(
            f"compare({argument}=...) needs to know the model; the step reaches: {have}. Pass "
            "model=, or name the part."
        )
    return roots


def parameters_of(roots: Models) -> Iterator[tuple[str, Any]]:
    """Return names and parameters of all models, prefixed with the model's name if several."""
    for name, root in roots.items():
        for path, p in root.named_parameters():
            yield (path if len(roots) == 1 else f"{name}.{path}"), p


def modules_of(part: Any, roots: Models) -> list[tuple[str, Any]]:
    """Return (path, module) of each module that a target names.

    Raises:
        ValueError: A name without ``*`` and ``?`` means several.
        TypeError: It is no name and no module.
    """
    if is_module(part):
        names = [n for root in roots.values() for n, m in root.named_modules() if m is part]
        names += [n for n, root in roots.items() if root is part]
        return [(next((n for n in names if n), type(part).__name__), part)]
    if not isinstance(part, str):
        raise TypeError(
            f"compare: a part is a module, its path or a tensor; got {type(part).__name__}."
        )
    if set(part) & set("*?"):
        return _matching(part, roots)
    found: dict[int, Any] = {}
    for name, root in roots.items():
        for path, m in root.named_modules():
            if part in _names(name, path):
                found[id(m)] = m
    if not found:
        for name, variable in roots.variables.items():
            for path, m in variable.named_modules():
                if part == (f"{name}.{path}" if path else name):
                    found[id(m)] = m
    if len(found) > 1:
        raise ValueError(
            f"compare: {part!r} is a module of {len(found)} models ({', '.join(roots)}). Put the "
            "model's name before it, or pass model=."
        )
    return [(part, m) for m in found.values()]


def _names(name: str, path: str) -> set[str]:
    # What a module may be called: of ``trainer.net``, ``net`` will do.
    last = name.rpartition(".")[2]
    if not path:
        return {name, last}
    return {path, f"{name}.{path}", f"{last}.{path}"}


def _matching(pattern: str, roots: Models) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for name, root in [*roots.items(), *roots.variables.items()]:
        for path, m in root.named_modules():
            names = _names(name, path) if name in roots else {f"{name}.{path}"}
            if any(matches(pattern, called) for called in names):
                found.setdefault(id(m), (path or name, m))
    return list(found.values())


def matches(pattern: str, path: str) -> bool:
    """Match a path against a pattern; ``*`` stands for one segment or a part of it."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(map(fnmatchcase, given, wanted))


def tensor_of(name: str, roots: Models) -> Tensor | None:
    """Return the parameter, buffer or variable of a given name, or None."""
    for known, module in [*roots.items(), *roots.variables.items()]:
        for path, t in [*module.named_parameters(), *module.named_buffers()]:
            own = known in roots
            if name in (_names(known, path) if own else {f"{known}.{path}"}):
                return t  # type: ignore[no-any-return]
    return roots.tensors.get(name)


def needed(part: Any, found: list[Any], roots: Models) -> list[Any]:
    """Raise an error unless something was found.

    Raises:
        ValueError: It is nothing; the message names what is there.
    """
    if not found:
        raise ValueError(
            f"compare: the step reaches no module {part!r}. {described(part, roots)} Pass the "
            "module itself, or model=."
        )
    return found


def described(part: Any, roots: Models) -> str:
    """Describe the available targets, and suggest what may have been meant."""
    have = []
    for name, root in roots.items():
        paths = [path for path, _ in root.named_modules() if path]
        rest = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
        have.append(f"{name}: {', '.join(paths[:SHOWN])}{rest}")
    paths = [path for root in roots.values() for path, _ in root.named_modules() if path]
    near = difflib.get_close_matches(str(part), [*paths, *roots], 3)
    meant = f" Do you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"It reaches {'; '.join(have) or 'none'}.{meant}"


def called(module: Any) -> list[Any]:
    """Return the modules that are called: items of a container without ``forward``, else itself."""
    if type(module).forward.__qualname__ != "Module.forward":
        return [module]
    return [m for child in module.children() for m in called(child)]
