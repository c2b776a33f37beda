"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.interpreter import Interpreter as Interpreter
from lowtide.modules.fx.interpreter import Transformer as Transformer
