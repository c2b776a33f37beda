"""Compiled reductions, scans and sorts."""
