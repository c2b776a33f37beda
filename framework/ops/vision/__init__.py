"""Resampling of images: interpolate, grid_sample."""
