"""``functional_call``: a module as a function of its parameters and buffers.

The given tensors stand in the dicts of the module and of its submodules while it runs, so whatever
``forward`` does sees them. With a transform around it (``transforms.py``), they are arguments to
differentiate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
        args: Argument of the call, or a tuple of them.
        kwargs: Keyword arguments of the call.
        tie_weights: Replace all names of a shared parameter along with the one given.
        strict: Raise unless every parameter and buffer is given, and nothing else.

    Returns:
        What the module returns. Its own tensors are back in place, also after an error.

    Raises:
        RuntimeError: ``strict``, and keys are missing or unexpected.
    """
    if isinstance(parameter_and_buffer_dicts, dict):
        given = dict(parameter_and_buffer_dicts)
    else:
        given = {}
        for d in parameter_and_buffer_dicts:
            repeated = sorted(given.keys() & d.keys())
            if repeated:
                raise ValueError(f"functional_call: keys {repeated} appear in two dictionaries.")
            given.update(d)
    own = _named_tensors(module)
    if strict:
        missing, extra = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
        if missing or extra:
            raise RuntimeError(
                "functional_call in strict mode needs every parameter and buffer and nothing "
                f"else: Missing key(s): {missing}. Unexpected key(s): {extra}."
            )
    if tie_weights:
        by_tensor = {id(own[name]): t for name, t in given.items() if name in own}
        for name, tensor in own.items():
            if name not in given and id(tensor) in by_tensor:
                given[name] = by_tensor[id(tensor)]
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    with _swapped(module, given):
        return module(*args, **(kwargs or {}))


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
            if last not in place:
                raise KeyError(
                    f"functional_call: {type(module).__name__} has no parameter or buffer {name!r}."
                )
            undo.append((place, last, place[last]))
            place[last] = tensor
        yield
    finally:
        for place, last, tensor in reversed(undo):
            place[last] = tensor


def _place(module: Any, path: str, last: str) -> Any:
    """Return the dict that holds a tensor of a submodule."""
    for part in path.split(".") if path else ():
        children = getattr(module, "_modules", None)
        module = children[part] if children and part in children else getattr(module, part)
    for kind in ("_parameters", "_buffers"):
        held = getattr(module, kind, None)
        if held is not None and last in held:
            return held
    return vars(module)
