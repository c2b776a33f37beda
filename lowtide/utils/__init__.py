"""Utilities, under PyTorch's names: checkpointing, data, model summaries."""

from lowtide.framework.serialization import CheckpointDirectory as CheckpointDirectory
from lowtide.utils import data as data
