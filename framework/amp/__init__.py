"""Automatic mixed precision: ``autocast``, and custom functions within it."""
