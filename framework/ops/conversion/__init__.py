"""Copies, conversions of dtype and device, access to storage."""
