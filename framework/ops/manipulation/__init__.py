"""Joining, repeating, padding and slice_scatter ops."""
