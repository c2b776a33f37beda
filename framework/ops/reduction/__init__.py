"""Reductions, scans, sorts."""
