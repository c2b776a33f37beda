"""Convolution and its gradients, unfold and fold."""
