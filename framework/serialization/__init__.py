"""Serialization: save and load, safetensors, PyTorch files, training checkpoints."""

from __future__ import annotations

from .checkpoint_directory import CheckpointDirectory as CheckpointDirectory
from .save_load import load as load
from .save_load import save as save
