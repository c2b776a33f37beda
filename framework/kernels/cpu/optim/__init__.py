"""Compiled steps of optimizers."""
