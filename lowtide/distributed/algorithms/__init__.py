"""Algorithms of communication, under PyTorch's names."""
