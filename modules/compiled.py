"""Compiled modules: what ``compile(module)`` returns.

A compiled module's forward is recorded and replayed, and so is the backward of its results
(``framework/capture``). Parameters, buffers and modes are those of the module itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..framework.capture.call import depends_on
from ..framework.capture.compiled import CompiledFunction
from ..framework.capture.compiling import compiled_function, module_compilers
from .hooks import EVERYWHERE
from .module import Module


class OptimizedModule(Module):
    """A module whose calls are recorded and replayed; PyTorch's name.

    All attributes but its own are those of the module inside, ``_orig_mod``, under which the state
    dict has the parameters, as in PyTorch.

    Args:
        mod: The module.
        fullgraph: Raise where a call cannot be recorded.
        check: Every so many replays run both ways, and are compared.
    """

    _orig_mod: Module
    _compiled: CompiledFunction

    def __init__(self, mod: Module, fullgraph: bool = False, check: int = 0) -> None:
        super().__init__()
        self.__dict__.pop("training")
        self._modules["_orig_mod"] = mod
        self.__dict__["_compiled"] = compiled_function(partial(_call, mod), fullgraph, check, mod)

    @property
    def training(self) -> bool:
        """The mode of the module inside."""
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._orig_mod.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module inside: replay it if a recording holds."""
        return self._compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = ("training", "__class__", "__dict__")  # of the wrapper, never of the module inside
        if name in own or name in self.__dict__ or name in self._modules:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __getitem__(self, key: Any) -> Any:
        inside: Any = self._orig_mod
        return inside[key]

    def __iter__(self) -> Any:
        return iter(self._orig_mod)


def _call(module: Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


module_compilers.append((Module, OptimizedModule))
depends_on(lambda: tuple(EVERYWHERE.functions()))
