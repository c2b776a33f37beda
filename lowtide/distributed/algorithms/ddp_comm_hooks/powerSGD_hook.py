"""PowerSGD: gradients travel as two thin matrices."""

from lowtide.framework.distributed.power_sgd import PowerSGDState as PowerSGDState
from lowtide.framework.distributed.power_sgd import batched_powerSGD_hook as batched_powerSGD_hook
from lowtide.framework.distributed.power_sgd import powerSGD_hook as powerSGD_hook
