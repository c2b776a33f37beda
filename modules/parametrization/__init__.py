"""Parameters that are computed from others: parametrizations, norms of weights, pruning."""
