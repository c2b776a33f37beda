"""Modules: what ``lowtide.nn`` re-exports."""

from . import functional as functional
from . import init as init
from .activation import GELU as GELU
from .activation import ReLU as ReLU
from .activation import Sigmoid as Sigmoid
from .activation import Tanh as Tanh
from .container import ModuleList as ModuleList
from .container import Sequential as Sequential
from .linear import Identity as Identity
from .linear import Linear as Linear
from .loss import CrossEntropyLoss as CrossEntropyLoss
from .loss import MSELoss as MSELoss
from .module import Module as Module
from .parameter import Parameter as Parameter
