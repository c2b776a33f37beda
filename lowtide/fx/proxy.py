"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.proxy import Attribute as Attribute
from lowtide.modules.fx.proxy import ParameterProxy as ParameterProxy
from lowtide.modules.fx.proxy import Proxy as Proxy
from lowtide.modules.fx.proxy import TraceError as TraceError
