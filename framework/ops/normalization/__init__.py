"""Normalization: batch, layer, group, instance, RMS."""
