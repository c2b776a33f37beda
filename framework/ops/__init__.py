"""Every op, by family. Importing this installs them as functions here and as Tensor methods."""

from . import arithmetic as arithmetic
from . import copying as copying
from . import creation as creation
from . import reduction as reduction
from . import shaping as shaping
from .registry import FUNCTIONS as _functions

globals().update(_functions)
__all__ = sorted(_functions)
