"""Indexing: getitem, index_put, gather, scatter, where, nonzero."""
