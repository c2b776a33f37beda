"""Leak detection: graphs that outlive their step, and who holds them."""
