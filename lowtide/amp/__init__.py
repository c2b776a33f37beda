"""Automatic mixed precision, under PyTorch's names."""

from lowtide.framework.amp.autocast import autocast as autocast
from lowtide.framework.amp.autocast import is_autocast_available as is_autocast_available
from lowtide.framework.amp.custom_function import custom_bwd as custom_bwd
from lowtide.framework.amp.custom_function import custom_fwd as custom_fwd
from lowtide.optim.grad_scaler import GradScaler as GradScaler
