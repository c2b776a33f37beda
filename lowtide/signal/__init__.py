"""Signal processing, under PyTorch's name for it."""

from lowtide.signal import windows as windows
