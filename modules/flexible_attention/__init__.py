"""Attention whose scores a function may change, and its block masks."""
