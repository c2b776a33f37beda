"""Sparse tensors: COO and compressed layouts, and the ops that take them."""
