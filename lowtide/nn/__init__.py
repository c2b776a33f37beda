"""Neural networks, under PyTorch's name: modules, parameters, functions, initial values."""

from lowtide.modules import *  # noqa: F403

# isort: split
# The star brings the modules that these re-export; they are the ones to import.
import lowtide.nn.attention as attention  # noqa: F401
import lowtide.nn.functional as functional  # type: ignore[no-redef]  # noqa: F401
import lowtide.nn.grad as grad  # noqa: F401
import lowtide.nn.init as init  # type: ignore[no-redef]  # noqa: F401
import lowtide.nn.parallel as parallel  # noqa: F401
import lowtide.nn.parameter as parameter  # noqa: F401
from lowtide.nn import modules as modules
from lowtide.nn import utils as utils
