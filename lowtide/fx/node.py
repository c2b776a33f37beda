"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.node import Argument as Argument
from lowtide.modules.fx.node import Node as Node
from lowtide.modules.fx.node import Target as Target
from lowtide.modules.fx.node import map_aggregate as map_aggregate
from lowtide.modules.fx.node import map_arg as map_arg
