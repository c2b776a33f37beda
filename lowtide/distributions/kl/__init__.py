"""The Kullback-Leibler divergence of a pair of distributions."""

from lowtide.framework.distributions.kl.registry import kl_divergence as kl_divergence
from lowtide.framework.distributions.kl.registry import register_kl as register_kl

__all__ = [
    "kl_divergence",
    "register_kl",
]
