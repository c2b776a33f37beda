"""Loggers: scalars and memory of a training loop to CSV, JSON lines and TensorBoard."""
