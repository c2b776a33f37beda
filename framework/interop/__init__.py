"""Interoperation with other libraries: array protocols, einops."""
