"""Modules whose parameters, gradients and optimizer states are shared out among ranks."""
