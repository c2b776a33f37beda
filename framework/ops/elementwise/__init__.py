"""Elementwise ops: arithmetic, comparison, rounding, special functions."""
