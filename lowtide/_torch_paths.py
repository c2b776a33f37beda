"""PyTorch's dotted names below lowtide: ``lowtide.cuda.memory`` is a module, as in PyTorch.

lowtide keeps many of PyTorch's modules in one. A finder after all others answers for the paths that
``_torch_homes`` lists, with the module that has their names. What only ``import torch`` has under
``lowtide.as_torch``, stand-ins for private machinery of PyTorch, stays there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from lowtide import _torch_homes as homes

_collected: dict[str, ModuleType] = {}


def collected(path: str) -> ModuleType:
    """Return the module of names that lowtide keeps elsewhere, made once."""
    module = _collected.get(path)
    if module is None:
        module = ModuleType(f"lowtide.{path}", f"The names of PyTorch's torch.{path}.")
        sources = []
        for home, names in homes.COLLECTIONS[path].items():
            source: Any = import_module(f"lowtide.{home}" if home else "lowtide")
            sources.append(source)
            for name in names.split():
                outer, _, inner = name.partition("=")
                setattr(module, outer, getattr(source, inner or outer))
        module.__path__ = []  # so that Python asks for modules below it
        module.__dict__["__getattr__"] = _from(path, sources)
        _collected[path] = module
    return module


def _from(path: str, sources: list[Any]) -> Any:
    # Programs also take from a file of PyTorch's what that file has imported.
    def missing(name: str) -> Any:
        for source in () if name.startswith("__") else sources:
            if hasattr(source, name):
                return getattr(source, name)
        raise AttributeError(f"module 'lowtide.{path}' has no attribute {name!r}")

    return missing


def is_offered(path: str) -> bool:
    """Whether a path of PyTorch's is one of lowtide's only by the tables."""
    home = homes.home(path)
    return path in homes.COLLECTIONS or (home is not None and not home.startswith("as_torch."))


class PathFinder(MetaPathFinder):
    """Finds ``lowtide.x.y`` where lowtide has the names of ``torch.x.y`` in another module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None if it is not ours."""
        root, _, rest = fullname.partition(".")
        if root != "lowtide" or not is_offered(rest):
            return None
        if rest in homes.COLLECTIONS:
            module = collected(rest)
        else:
            module = import_module(f"lowtide.{homes.home(rest)}")
        return ModuleSpec(fullname, HandsOver(module), is_package=hasattr(module, "__path__"))


class HandsOver(Loader):
    """A loader of a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__dict__.get("__spec__")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing; give the module back the spec that Python has replaced."""
        if self.spec is not None:
            module.__spec__ = self.spec


def install() -> None:
    """Answer for these paths from now on."""
    sys.meta_path.append(PathFinder())
    for path in homes.ALSO_FUNCTIONS:  # to import them would put the module in their place
        sys.modules[f"lowtide.{path}"] = import_module(f"lowtide.{homes.home(path)}")
