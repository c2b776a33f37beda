"""Ops that draw: samples of distributions, dropout."""
