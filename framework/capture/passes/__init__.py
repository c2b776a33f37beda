"""Elementwise kernel calls that follow each other, joined into one pass over their arrays."""
