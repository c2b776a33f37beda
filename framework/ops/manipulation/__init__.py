"""Tensors put together and written into: cat, repeat, pad, slice_scatter."""
