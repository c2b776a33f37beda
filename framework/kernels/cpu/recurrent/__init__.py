"""Compiled loops of recurrent layers: single steps, and whole sequences."""
