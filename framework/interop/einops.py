"""Support for ``einops``, without importing it.

einops asks the subclasses of its ``AbstractBackend`` whose tensor it was given. So ours must exist
once einops is there, and einops may be imported before lowtide, after it, or never. A finder on
``sys.meta_path`` waits for the import of the module that holds that class, lets Python load it,
adds the subclass, and has removed itself by then.

``einops.layers.torch`` imports PyTorch; the same layers for lowtide are in ``lowtide.nn.einops``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ..ops.creation.from_data import from_numpy
from ..ops.creation.ranges import arange
from ..ops.linalg.einsum import einsum
from ..ops.manipulation.cat import cat, stack
from ..tensor import Tensor

HOME = "einops._backends"  # the module of AbstractBackend


class _Backend:
    """The einops backend for lowtide's tensors."""

    framework_name = "lowtide"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Any:
        return from_numpy(x)

    def to_numpy(self, x: Any) -> Any:
        return x.detach().cpu().numpy()

    def arange(self, start: int, stop: int) -> Any:
        return arange(start, stop)

    def shape(self, x: Any) -> Any:
        return x.shape

    def reshape(self, x: Any, shape: Any) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, axes: Any) -> Any:
        return x.permute(axes)

    def reduce(self, x: Any, operation: str, axes: Any) -> Any:
        if operation in ("min", "max"):  # several places may hold the same: all of them get a share
            return getattr(x, f"a{operation}")(dim=axes)
        if operation in ("sum", "mean"):
            return getattr(x, operation)(dim=axes)
        for axis in sorted(axes, reverse=True):  # prod, any, all take one dimension at a time
            x = getattr(x, operation)(dim=axis)
        return x

    def stack_on_zeroth_dimension(self, tensors: Any) -> Any:
        return stack(list(tensors))

    def add_axis(self, x: Any, new_position: int) -> Any:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Any:
        sizes = [-1] * n_axes
        for position, size in pos2len.items():
            x = x.unsqueeze(position)
            sizes[position] = size
        return x.expand(sizes)  # a view: nothing is repeated in memory

    def tile(self, x: Any, repeats: Any) -> Any:
        return x.repeat(repeats)

    def concat(self, tensors: Any, axis: int) -> Any:
        return cat(list(tensors), axis)

    def is_float_type(self, x: Any) -> bool:
        return bool(x.dtype.is_floating_point)

    def einsum(self, pattern: str, *x: Any) -> Any:
        return einsum(pattern, *x)


class _ImportHook:
    """An import hook that notices the import of :data:`HOME` (a finder)."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != HOME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # its class's own from here on
            load(module)
            _register(module)

        loader.exec_module = exec_module
        return spec


def _register(module: Any) -> None:
    module.LowtideBackend = type("LowtideBackend", (_Backend, module.AbstractBackend), {})


def register_backend() -> None:
    """Register the einops backend, now or when einops is imported."""
    if HOME in sys.modules:
        _register(sys.modules[HOME])
    else:
        sys.meta_path.insert(0, _ImportHook())
