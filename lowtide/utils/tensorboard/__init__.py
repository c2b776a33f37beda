"""TensorBoard's event files, under PyTorch's name; they need tensorboardX."""

from lowtide.profiling.loggers.tensorboard import SummaryWriter as SummaryWriter
