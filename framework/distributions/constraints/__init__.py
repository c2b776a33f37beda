"""Constraints: the regions that parameters and samples lie in."""
