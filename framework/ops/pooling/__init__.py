"""Pooling: max, average, adaptive, fractional, unpooling."""
