"""Copies, dtype and device conversions, storage access."""
