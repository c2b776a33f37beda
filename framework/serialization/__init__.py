"""Saving and loading: one safetensors file, others' files, training checkpoints."""

from __future__ import annotations

from .archive import load as load
from .archive import save as save
from .checkpoints import CheckpointDirectory as CheckpointDirectory
