"""Recipes: runnable training scripts on real data, started with ``lowtide run NAME``."""
