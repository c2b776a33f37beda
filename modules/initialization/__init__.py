"""Initialization of parameters."""
