"""Creation ops: filled tensors, ranges, tensors from data."""
