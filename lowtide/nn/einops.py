"""The layers of ``einops.layers.torch``, on lowtide's modules; importing this imports einops.

``from lowtide.nn.einops import Rearrange`` replaces ``from einops.layers.torch import Rearrange``.
"""

from lowtide.modules.einops_layers import EinMix as EinMix
from lowtide.modules.einops_layers import Rearrange as Rearrange
from lowtide.modules.einops_layers import Reduce as Reduce
