"""Attention: scaled dot product, multi-head."""
