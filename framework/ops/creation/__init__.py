"""Ops that make tensors: filled, ranges, from data."""
