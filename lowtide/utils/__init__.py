"""Utilities, under PyTorch's names: checkpointing, data, model summaries."""
