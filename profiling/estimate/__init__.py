"""Estimates of a step that is not computed, and what a change would save."""
