"""Probability distributions: log densities, samples with gradients, divergences, bijections."""
