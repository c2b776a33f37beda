"""Tensors meet other libraries: array protocols, einops."""
