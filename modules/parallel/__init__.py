"""Modules over several devices and processes."""
