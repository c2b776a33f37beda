"""Estimates of a step's memory and FLOPs without running it, and of changes to it."""
