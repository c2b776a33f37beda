"""All ops. Importing this package installs them as functions and as Tensor methods.

The files in this folder show how an op works; each folder below holds one family. Whatever lies
there is imported, so that a new op needs its own file and nothing else.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules
from types import ModuleType as _ModuleType

from .. import printing as _printing  # noqa: F401
from ..autograd import methods as _methods  # noqa: F401 - installs them, as the families do
from .registry import FUNCTIONS as _functions


def _import_below(package: _ModuleType) -> None:
    for found in sorted(_iter_modules(package.__path__), key=lambda found: found.name):
        module = _import_module(f"{package.__name__}.{found.name}")
        if found.ispkg:
            _import_below(module)


_import_below(_import_module(__name__))
globals().update(_functions)
# Here for nn.functional; lowtide itself has them no more than PyTorch does.
for _name in ("relu", "elu", "glu_prelu", "gelu", "shrink"):
    _family = _import_module(f"{__name__}.activation.{_name}")
    globals().update({name: getattr(_family, name) for name in _family.__all__})
__all__ = sorted(_functions)
