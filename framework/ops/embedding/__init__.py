"""Embedding and embedding bags."""
