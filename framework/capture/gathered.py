"""Parameters that are gathered for one call of a module, as ``fully_shard`` does.

At each call they are other tensors in other memory. So a recording takes them as it takes
arguments: a replay binds them anew, and its backward returns their gradients. Unlike an argument, a
gathered parameter is a leaf already. Its bytes may be given up after the forward. A backward brings
back those that it reads before it runs a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..distributed.unsharded_storage import UnshardedStorage
from ..tensor import Tensor


class Gathered:
    """The gathered parameters of a module during a call.

    Args:
        module: The module, or None.

    Attributes:
        tensors: The parameters, each once, in the order of the module's.
    """

    def __init__(self, module: Any) -> None:
        self.tensors: list[Tensor] = []
        self._places: list[tuple[dict[str, Any], str, Tensor]] = []
        if module is None or not UnshardedStorage.used:
            return
        found: dict[int, Tensor] = {}
        for one in module.modules():
            for name, p in one._parameters.items():
                if p is not None and type(p._storage) is UnshardedStorage:
                    self._places.append((one._parameters, name, p))
                    found.setdefault(id(p), p)
        self.tensors = list(found.values())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module have them again for a block, with their bytes.

        Raises:
            GradientError: The shards were written since.
            DistBackendError: A rank is gone, or calls something else.
        """
        for t in self.tensors:
            t._storage.restore(t._storage.THERE)
        before = [(parameters, name, parameters[name]) for parameters, name, _ in self._places]
        try:
            for parameters, name, p in self._places:
                parameters[name] = p
            yield
        finally:
            for parameters, name, p in before:
                parameters[name] = p
