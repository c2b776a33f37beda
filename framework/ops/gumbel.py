"""The Gumbel softmax: a draw from a categorical distribution that a gradient passes through."""

from __future__ import annotations

from .registry import function
from .softmax import softmax


@function(public=False)
def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """Draw from a categorical distribution, differentiably.

    Args:
        logits: Logarithms of unnormalized probabilities.
        tau: Temperature: towards 0 the draws become one-hot.
        hard: One-hot in value, with the gradient of the soft draw.
        eps: Accepted and ignored.
        dim: The dimension of the classes.

    Returns:
        Tensor of the shape of ``logits``.

    Source:
        Jang, Gu, Poole: "Categorical Reparameterization with Gumbel-Softmax", 2017; Maddison, Mnih,
        Teh: "The Concrete Distribution", 2017.
    """
    from . import empty_like, zeros_like

    plain = logits.detach()
    noise = -empty_like(plain).exponential_().log()
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    chosen = soft.detach().argmax(dim, keepdim=True)
    return zeros_like(plain).scatter(dim, chosen, 1.0) - soft.detach() + soft
