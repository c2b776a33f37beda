"""The module ``torch``: lowtide's names, the private ones that libraries ask for, a version.

It is no alias of the module ``lowtide`` because the two differ in a few names (``__version__``,
``__file__``, ``version``), and because what libraries expect of torch alone stays out of lowtide.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import lowtide
from lowtide import _torch_homes as homes
from lowtide.as_torch.torch_version import __version__


class Torch(ModuleType):
    """The module that ``import torch`` gives: what lowtide has, and what only torch has."""

    def __init__(self, list_of_absent: str, home_of: Callable[[str], ModuleType | None]) -> None:
        super().__init__("torch", f"lowtide {lowtide.__version__}, under the name of PyTorch.")
        self.__dict__.update(
            {
                n: vars(lowtide)[n]
                for n in lowtide.__all__
                if n in vars(lowtide) and n != "version" and n not in homes.PRIVATE[""]
            },
            __version__=__version__,
            __file__=lowtide.__file__,
            __path__=[],  # what lies beside lowtide's file would be found a second time
            __all__=[name for name in lowtide.__all__ if name not in homes.NOT_TORCH],
            _list_of_absent=list_of_absent,
            _home_of=home_of,
        )

    def __getattr__(self, name: str) -> Any:
        """Look up what is imported when it is first asked for.

        Raises:
            AttributeError: lowtide does not have it; the message says where the list is.
        """
        found = self._look_up(name)
        self.__dict__[name] = found
        return found

    def _look_up(self, name: str) -> Any:
        if name in homes.PRIVATE[""]:
            home, colon, attribute = homes.PRIVATE[""][name].partition(":")
            found: Any = import_module(home)
            return getattr(found, attribute or name) if colon else found
        for home in homes.TABLES:  # modules of functions, of which torch alone has the names
            found = getattr(import_module(home), "FUNCTIONS", {}).get(name)
            if found is not None:
                return found
        if not name.startswith("__") or name in ("__config__", "__future__"):
            module = self._home_of(name)
            if module is not None:
                return module
            if name not in homes.HIDDEN and not name.startswith("_") and hasattr(lowtide, name):
                return getattr(lowtide, name)
        raise AttributeError(
            f"module 'torch' has no attribute {name!r}: here torch is lowtide "
            f"{lowtide.__version__}, which does not have it. {self._list_of_absent}.",
            name=name,
            obj=self,
        )

    def __dir__(self) -> list[str]:
        known = {n for n in self.__dict__ if n not in ("_list_of_absent", "_home_of")}
        known |= set(homes.PRIVATE[""])
        for home in homes.TABLES:
            known |= set(import_module(home).FUNCTIONS)
        return sorted(known)


def version_module() -> ModuleType:
    """Make ``torch.version``: the version as PyTorch's, CUDA's of the CuPy that is installed."""
    module = ModuleType("torch.version", "Versions, as PyTorch has them.")
    own = lowtide.version
    module.__dict__.update(
        __version__=__version__,
        debug=False,
        git_version="unknown",
        hip=None,
        rocm=None,
        xpu=None,
        __path__=[],
        __getattr__=own.__getattr__,  # cuda, when first asked for
    )
    return module
