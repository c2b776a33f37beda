"""``torch.ops``: operators by namespace and name, as libraries with a compiled part call theirs.

``torch.ops.aten.add`` is the function of lowtide; ``torch.ops.mine.thing`` one that was declared
with ``torch.library.custom_op("mine::thing")``. Operators of a library's compiled part are absent:
it is compiled against PyTorch, and cannot be loaded.
"""

from __future__ import annotations

from typing import Any, ClassVar

import lowtide as _lt
from lowtide import library as _library
from lowtide.as_torch.private import aten as _aten
from lowtide.as_torch.private import foreach as _foreach


class _Packet:
    # Its overloads are one: a function looks at its arguments.
    def __init__(self, name: str, function: Any) -> None:
        self.__name__ = name
        self._function = function
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def overloads(self) -> list[str]:
        return ["default"]


def _refusal(name: str) -> Any:
    # For tables of what a dispatcher shall call, which nothing here asks.
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torch.ops.aten.{name}: lowtide has no operator of this name; see docs/operators.md."
        )

    return refuse


class _Namespace:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = _library._ops.get(f"{self._name}::{name}")
        if found is None and self._name in ("aten", "prims"):
            tables = {**_foreach.FUNCTIONS, **_aten.FUNCTIONS}
            found = tables.get(name) or getattr(_lt, name, None)
            found = found or getattr(_lt.nn.functional, name, None) or _refusal(name)
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self._name}' object has no attribute '{name}': lowtide has no "
                "such operator. Those of a library's compiled part are PyTorch's alone; one in "
                "Python is declared with torch.library.custom_op."
            )
        packet = _Packet(f"{self._name}.{name}", found)
        setattr(self, name, packet)
        return packet


class _Ops:
    loaded_libraries: ClassVar[set[str]] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Namespace(name)
        setattr(self, name, found)
        return found

    def load_library(self, path: str) -> None:
        """Not supported: a compiled part is PyTorch's.

        Raises:
            OSError: Always.
        """
        raise OSError(
            f"torch.ops.load_library({path!r}): lowtide cannot load operators that are compiled "
            "against PyTorch. Use the library's path in Python, if it has one."
        )

    import_module = load_library


class _Classes:
    loaded_libraries: ClassVar[set[str]] = set()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.classes.{name}: lowtide has no classes of TorchScript.")


ops, classes = _Ops(), _Classes()
OpOverload = OpOverloadPacket = _Packet
