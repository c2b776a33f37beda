"""Data sets, samplers, collation, and the loader with its workers."""
