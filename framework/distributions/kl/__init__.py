"""Kullback-Leibler divergences, by pairs of classes."""
