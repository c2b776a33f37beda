"""Data-dependent decisions, and their fallback where a tensor has no values.

That is under an executor that computes nothing: an estimate's (``execution.py``).
The framework itself seldom looks at values. Where it does, an estimate would go another way than
the real step. So such a place takes a hint of what is usual (:func:`value_or_hint`), or
refuses where a shape depends on values (:func:`require_values`). Outside of estimates both only
read.
"""

from __future__ import annotations

from typing import Any

from . import execution


def value_or_hint(value: Any, usual: Any) -> Any:
    """Return the only element of a tensor as a Python scalar; ``usual`` if it has no value.

    Args:
        value: A tensor of one element, or a number, which is returned as it is.
        usual: What it is in an ordinary step.
    """
    if not hasattr(value, "item"):
        return value
    if not execution.current.knows(value):
        return usual
    return value.item()


def require_values(name: str, value: Any) -> Any:
    """Return a tensor whose values determine a shape; raise an error if it has none.

    Args:
        name: The op, for the message.
        value: The tensor; returned.

    Raises:
        NotImplementedError: It has no values.
    """
    if not execution.current.knows(value):
        raise NotImplementedError(
            f"{name}: the shape of its result depends on values, and an estimate has none for "
            "what the step computes. Compute it before the step from real values, or use an op "
            "whose shape is known (where, a mask, topk)."
        )
    return value


__all__ = ["require_values", "value_or_hint"]
