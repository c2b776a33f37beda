"""``torch._jit_internal``: names for a compiler of functions, which leave them as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Dict as Dict  # noqa: UP035
from typing import Final as Final
from typing import List as List  # noqa: UP035
from typing import Optional as Optional
from typing import Tuple as Tuple  # noqa: UP035
from typing import Union as Union

from lowtide.jit import export as export
from lowtide.jit import ignore as ignore
from lowtide.jit import is_scripting as is_scripting
from lowtide.jit import unused as unused
from lowtide.jit.annotations import BroadcastingList1 as BroadcastingList1
from lowtide.jit.annotations import BroadcastingList2 as BroadcastingList2
from lowtide.jit.annotations import BroadcastingList3 as BroadcastingList3

_is_tracing = is_scripting


def _copy_to_script_wrapper(fn: Any) -> Any:
    """Return the function."""
    return fn


def _overload(func: Any) -> Any:
    """Return the function: the last definition of a name is the one that runs."""
    return func


_overload_method = script_method = weak_script_method = _overload


def boolean_dispatch(
    arg_name: str,
    arg_index: int,
    default: bool,
    if_true: Callable[..., Any],
    if_false: Callable[..., Any],
    module_name: str,
    func_name: str,
) -> Callable[..., Any]:
    """Return a function that calls one of two, as an argument says.

    Args:
        arg_name: Its name.
        arg_index: Its place.
        default: What holds where it is not given.
        if_true: Called if it is true.
        if_false: Called if it is not.
        module_name: The ``__module__`` of the result.
        func_name: Its ``__name__``.
    """

    def fn(*args: Any, **kwargs: Any) -> Any:
        given = args[arg_index] if len(args) > arg_index else kwargs.get(arg_name, default)
        return (if_true if given else if_false)(*args, **kwargs)

    fn.__module__, fn.__name__, fn.__doc__ = module_name, func_name, if_true.__doc__
    return fn
