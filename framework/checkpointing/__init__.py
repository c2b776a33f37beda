"""Activation checkpointing, offloading and packing of values saved for backward.

The mechanism is in the autograd core (``autograd/remat/replay.py``): values of a region are made
again by running their kernels, not the user's Python. Here is what decides about them.
"""
