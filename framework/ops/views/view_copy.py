"""PyTorch's copies of views: ``select_copy`` is ``select(...).clone()``, and so on.

PyTorch's own compiler needs them. They are made from the view functions in one loop, so arguments,
errors and gradients are those of the view.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

from ...tensor import Tensor
from ..inplace import as_outs, into
from ..registry import FUNCTIONS, function

_VIEWS = (
    "as_strided", "detach", "diagonal", "expand", "permute", "select", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
    "view_as_complex", "view_as_real",
)  # fmt: skip


def _copying(name: str) -> Any:
    make = FUNCTIONS.get(name) or Tensor.__dict__[name]

    @wraps(make)
    def copied(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if isinstance(made, tuple):
            parts = tuple([x.clone() for x in made])
            if out is None:
                return parts
            outs = as_outs(f"{name}_copy", out, len(parts), RuntimeError)
            return [into(o, x) for o, x in zip(outs, parts, strict=True)]
        return made.clone() if out is None else into(out, made)

    of_view = inspect.signature(make)
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    copied.__signature__ = of_view.replace(parameters=[*of_view.parameters.values(), out])  # type: ignore[attr-defined]
    copied.__name__ = copied.__qualname__ = f"{name}_copy"
    copied.__module__ = __name__
    copied.__doc__ = f"A copy of what ``{name}`` gives, in separate memory."
    return copied


_SPLIT = {"input": "tensor", "split_size": "split_size_or_sections"}
for _name in _VIEWS:
    function(names=_SPLIT if _name == "split" else None)(_copying(_name))


@function()
def alias_copy(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """A copy of the tensor, in separate memory."""
    return input.clone() if out is None else into(out, input)


@function()
def slice_copy(
    input: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Copy a range of one dim, in steps."""
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    limit = input.ndim
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got "
            f"{dim}): slice_copy."
        )
    part = input[(*(slice(None),) * (dim % limit), slice(start, end, step))]
    return part.clone() if out is None else into(out, part)
