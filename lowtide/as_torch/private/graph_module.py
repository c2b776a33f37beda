"""``torch.fx.graph_module``: private parts that extractors of features are written with."""

from __future__ import annotations

from typing import Any

import lowtide as _lt

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


class _CodeOnlyModule(_lt.nn.Module):
    """A module of attributes alone, around which a graph module is rebuilt."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    """Put what lies at a path of one module to the same path of another."""
    *outer, last = target.split(".")
    for name in outer:
        following = getattr(to_module, name, None)
        if following is None:
            following = _lt.nn.Module()
            setattr(to_module, name, following)
        from_module, to_module = getattr(from_module, name), following
    found = getattr(from_module, last)
    if isinstance(found, _lt.Tensor) and not isinstance(found, _lt.nn.Parameter):
        to_module.register_buffer(last, found)
    else:
        setattr(to_module, last, found)
