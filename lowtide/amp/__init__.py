"""Automatic mixed precision, under PyTorch's names."""

from lowtide.framework.amp import autocast as autocast
from lowtide.framework.amp import is_autocast_available as is_autocast_available
from lowtide.framework.amp_functions import custom_bwd as custom_bwd
from lowtide.framework.amp_functions import custom_fwd as custom_fwd
from lowtide.optim.grad_scaler import GradScaler as GradScaler
