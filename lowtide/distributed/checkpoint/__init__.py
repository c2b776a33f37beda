"""Training checkpoints in parts, under PyTorch's names ``torch.distributed.checkpoint``."""

from lowtide.distributed.checkpoint import state_dict as state_dict
from lowtide.framework.distributed.checkpoint.directory import (
    CheckpointDirectory as CheckpointDirectory,
)
from lowtide.framework.distributed.checkpoint.save_load import FileSystemReader as FileSystemReader
from lowtide.framework.distributed.checkpoint.save_load import FileSystemWriter as FileSystemWriter
from lowtide.framework.distributed.checkpoint.save_load import async_save as async_save
from lowtide.framework.distributed.checkpoint.save_load import load as load
from lowtide.framework.distributed.checkpoint.save_load import save as save
