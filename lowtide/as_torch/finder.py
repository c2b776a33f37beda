"""The finder behind ``import torch``: PyTorch's dotted names lead to lowtide's modules.

Python asks each finder of ``sys.meta_path`` in turn. The first is ours and answers for ``torch``
and all below it; so PyTorch's own files, if there are any, are never reached. The loader runs
nothing: it hands over a module that is there. A last finder of ours answers for ``lowtide.x`` where
only PyTorch has a module of this name, because ``from torch.nn import x`` asks for
``lowtide.nn.x``: the name that the module itself bears.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module, metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import lowtide
from lowtide import _torch_homes as homes
from lowtide._torch_paths import HandsOver, collected
from lowtide.as_torch.distribution import TorchDistribution
from lowtide.as_torch.facade import Torch, version_module
from lowtide.as_torch.function_overrides import watch_classes

LIST_OF_ABSENT = "docs/from_pytorch.md lists what is absent, docs/operators.md the functions"

_speaking: dict[ModuleType, str] = {}  # -> PyTorch's dotted name, without "torch."
_made: dict[str, ModuleType] = {}  # PyTorch's dotted name, without "torch." -> module


def install() -> None:
    """Let ``import torch`` mean lowtide, in this process from now on.

    Raises:
        ImportError: PyTorch itself was imported before.
    """
    found = sys.modules.get("torch")
    if found is not None and not isinstance(found, Torch):
        raise ImportError(
            "lowtide.as_torch lets `import torch` mean lowtide, but PyTorch itself was imported "
            f"before ({getattr(found, '__file__', None) or 'without a file'}). Import "
            "lowtide.as_torch first, or start the program with `lowtide run-as-torch`."
        )
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder("torch"))
        sys.meta_path.append(Finder("lowtide"))
        watch_classes()
        for kind in (lowtide.dtype, lowtide.layout, lowtide.memory_format, lowtide.Size):
            kind.home = "torch"  # programs compare what is printed
        for path in homes.ALSO_FUNCTIONS:  # to import them would put the module in their place
            sys.modules[f"torch.{path}"] = import_module(f"lowtide.{homes.HOMES[path]}")


def home_of(path: str) -> ModuleType | None:
    """Return the module that PyTorch's ``torch.<path>`` is here; None if there is none.

    Raises:
        ImportError: It is there, and needs a package that is not installed.
    """
    found = _made.get(path)
    if found is None:
        found = _found(path)
        if found is not None:
            _made[path] = found
    return found


def _found(path: str) -> ModuleType | None:
    if path == "":
        for name, value in vars(lowtide).items():
            ours = isinstance(value, ModuleType) and sys.modules.get(f"lowtide.{name}") is value
            if ours and name not in homes.HIDDEN:
                _speaks_of_absence(value, name)
        return Torch(list_of_absent=LIST_OF_ABSENT, home_of=home_of)
    if path == "version":
        return version_module()
    if path in homes.COLLECTIONS:
        module = collected(path)
        _speaks_of_absence(module, path)
        return module
    first = path.partition(".")[0]
    home = homes.home(path)
    if home is None and (first in homes.HIDDEN or first.endswith("_command")):
        return None
    name = f"lowtide.{home or path}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        return None
    _speaks_of_absence(module, path)
    return module


def _speaks_of_absence(module: ModuleType, path: str) -> None:
    # An absent name says whose it is, and where the list is; a private one is looked up. So too in
    # the modules below, which may be reached as attributes.
    if module in _speaking:
        return
    _speaking[module] = path
    for name, value in list(vars(module).items()):
        inner = f"{path}.{name}" if path else name
        ours = isinstance(value, ModuleType) and sys.modules.get(f"lowtide.{inner}") is value
        if ours and name not in homes.HIDDEN:
            _speaks_of_absence(value, inner)
    if not hasattr(module, "__path__"):
        module.__path__ = []  # so that Python asks us about `from torch.x import name`
    before: Callable[[str], Any] | None = module.__dict__.get("__getattr__")
    private = homes.PRIVATE.get(path, {})

    def missing(name: str) -> Any:
        if before is not None:
            try:
                return before(name)
            except AttributeError:
                pass
        inner = f"{path}.{name}"
        if name in private:
            home, _, attribute = private[name].partition(":")
            found: Any = import_module(home)
            return getattr(found, attribute) if attribute else found
        below = None if name.startswith("__") else home_of(inner)  # a module not imported yet
        if below is not None:
            return below
        raise AttributeError(absent(f"torch.{path}", name), name=name, obj=module)

    module.__dict__["__getattr__"] = missing


def absent(module: str, name: str) -> str:
    """The words for a name that lowtide does not have."""
    return (
        f"module {module!r} has no attribute {name!r}: here torch is lowtide {lowtide.__version__},"
        f" which does not have it. {LIST_OF_ABSENT}."
    )


class Finder(MetaPathFinder):
    """Finds the modules below one root: ``torch``, or what only PyTorch has below ``lowtide``."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None if it is not ours, or not there.

        Raises:
            ImportError: The module or the name, asked for by an import statement, is absent; the
                message says so in lowtide's name.
        """
        root, _, rest = fullname.partition(".")
        if root != self.root:
            return None
        listed = homes.home(rest) is not None or rest in homes.COLLECTIONS
        module = home_of(rest) if root == "torch" or listed else None
        if module is not None:
            spec = ModuleSpec(fullname, HandsOver(module), is_package=True)
            spec.origin = getattr(module, "__file__", None)
            return spec
        self._explain_missing(fullname)
        return None

    def _explain_missing(self, fullname: str) -> None:
        # In words of ours if a statement imports it; find_spec() is told None, as everywhere.
        asking = []
        frame = sys._getframe(2)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            asking.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        parent, _, name = fullname.rpartition(".")
        if "_handle_fromlist" in asking:
            path = _speaking.get(sys.modules[parent], parent.partition(".")[2])
            raise ImportError(absent(f"torch.{path}".rstrip("."), name), name=fullname)
        if self.root == "torch" and "_find_and_load" in asking:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: here torch is lowtide {lowtide.__version__}, which "
                f"does not have it. {LIST_OF_ABSENT}.",
                name=fullname,
            )

    def find_distributions(self, context: Any = None) -> Iterable[metadata.Distribution]:
        """Yield the package "torch", which ``importlib.metadata`` looks for."""
        name = getattr(context, "name", None)
        if self.root == "torch" and (name is None or name.lower() == "torch"):
            yield TorchDistribution()
