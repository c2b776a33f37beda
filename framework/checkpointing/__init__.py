"""Activation checkpointing: what becomes of the values that backward will want.

The mechanism is in the autograd core (``autograd/remat/replay.py``): values of a region are made
again by running their kernels, not the user's Python. Here is what decides about them.
"""
