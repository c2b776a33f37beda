"""``functional_call``: a module as a function of its parameters and buffers.

The given tensors stand in the dicts of the module and of its submodules while it runs, so whatever
``forward`` does sees them. With a transform around it (``transforms.py``), they are arguments to
differentiate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from ..tensor import Tensor


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with other tensors in place of its parameters and buffers.

    Args:
        module: Has ``named_parameters`` and ``named_buffers``.
        parameter_and_buffer_dicts: A dict from names to tensors, or several with distinct keys.
            None takes the place of a tensor that the module may lack, such as a bias.
        args: Argument of the call, or a tuple of them.
        kwargs: Keyword arguments of the call.
        tie_weights: Replace all names of a shared parameter or buffer along with the one given.
        strict: Raise unless every parameter and buffer is given, and nothing else. With
            ``tie_weights`` one name of a shared tensor gives all its names.

    Returns:
        What the module returns. Its own tensors are back in place, also after an error.

    Raises:
        ValueError: A key is in two dictionaries, the names of one shared tensor have several
            values, or the second argument is no dict.
        TypeError: A value is no tensor.
        KeyError: The module has no tensor of that name.
        RuntimeError: ``strict``, and keys are missing or unexpected.
    """
    given = _merged(parameter_and_buffer_dicts)
    own = _named_tensors(module)
    if tie_weights:
        given = _with_tied_names(own, given)
    if strict:
        missing = [name for name in own if name not in given]
        extra = [name for name in given if name not in own]
        if missing or extra:
            raise RuntimeError(
                f"functional_call of {type(module).__name__} in strict mode needs every parameter "
                f"and buffer and nothing else: Missing key(s): {missing}. Unexpected key(s): "
                f"{extra}. Add and remove these, or pass strict=False."
            )
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"functional_call: the value of {name!r} must be a Tensor; got "
                f"{type(value).__name__}. Make one with lowtide.tensor()."
            )
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    with _swapped(module, given):
        return module(*args, **(kwargs or {}))


def _merged(dicts: Any) -> dict[str, Any]:
    """Return the given dictionaries as one."""
    if not isinstance(dicts, dict | list | tuple):
        raise ValueError(
            "functional_call: parameter_and_buffer_dicts must be a dict, or a list or tuple of "
            f"dicts; got {type(dicts).__name__}."
        )
    given: dict[str, Any] = {}
    for k, d in enumerate([dicts] if isinstance(dicts, dict) else dicts):
        if not isinstance(d, dict):
            raise ValueError(
                "functional_call: all elements of parameter_and_buffer_dicts must be dictionaries; "
                f"element {k} is {type(d).__name__}. Pass a dict of names to tensors."
            )
        repeated = sorted(given.keys() & d.keys())
        if repeated:
            raise ValueError(
                f"functional_call: keys {repeated} appear in two dictionaries. Give each once."
            )
        given.update(d)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(
                f"functional_call: keys must be the names of tensors; got {name!r} of type "
                f"{type(name).__name__}. Take them from named_parameters()."
            )
    return given


def _with_tied_names(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Add the other names of each given tensor that the module has under several names.

    Raises:
        ValueError: Two names of one tensor are given different values.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    every = dict(given)
    for tied in names.values():
        values = {id(given[name]): given[name] for name in tied if name in given}
        if len(values) > 1:
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(tied)}, which are tied: one "
                "tensor of the module. Give one of these names, or the same tensor under each, or "
                "pass tie_weights=False to replace each name by its own."
            )
        for value in values.values():
            every.update(dict.fromkeys(tied, value))
    return every


def _named_tensors(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for names in (module.named_parameters, module.named_buffers):
        try:
            found.update(names(remove_duplicate=False))
        except TypeError:
            found.update(names())
    return found


@contextmanager
def _swapped(module: Any, tensors: dict[str, Any]) -> Iterator[None]:
    undo: list[tuple[Any, str, Any]] = []
    try:
        for name, tensor in tensors.items():
            path, _, last = name.rpartition(".")
            place = _place(module, path, last)
            if place is None or last not in place:
                raise KeyError(
                    f"functional_call: {type(module).__name__} has no parameter or buffer {name!r}."
                    f" It has {_listed(_named_tensors(module))}."
                )
            if not (place[last] is None or isinstance(place[last], Tensor)):
                raise TypeError(
                    f"functional_call: {name!r} of {type(module).__name__} is no tensor but "
                    f"{type(place[last]).__name__}. Give parameters and buffers only."
                )
            undo.append((place, last, place[last]))
            place[last] = tensor
        yield
    finally:
        for place, last, tensor in reversed(undo):
            place[last] = tensor


def _listed(names: Iterable[str]) -> str:
    first = list(islice(names, 9))
    more = ", and more: see named_parameters() and named_buffers()" if len(first) == 9 else ""
    return ", ".join(first[:8]) + more if first else "none"


def _place(module: Any, path: str, last: str) -> Any:
    """Return the dict that holds a tensor of a submodule, None where there is no such submodule."""
    for part in path.split(".") if path else ():
        children = getattr(module, "_modules", None)
        module = children[part] if children and part in children else getattr(module, part, None)
    for kind in ("_parameters", "_buffers"):
        held = getattr(module, kind, None)
        if held is not None and last in held:
            return held
    return getattr(module, "__dict__", None)
