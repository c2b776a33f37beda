"""Activations that draw random numbers: the Gumbel softmax, and leaky units of random slope."""

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


@function(public=False)
def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """Multiply negative elements by a random slope in training, by the mean slope otherwise.

    Args:
        input: Values of any shape, floating point.
        lower: The least slope.
        upper: The largest slope.
        training: Draw a slope for each element.
        inplace: Write into ``input``.

    Returns:
        Tensor of the shape of ``input``.

    Raises:
        RuntimeError: ``lower`` is above ``upper``.
    """
    from . import empty_like, where
    from .activation import leaky_relu

    if lower > upper:
        raise RuntimeError(
            "rrelu: Lower bound should be less than or equal to the upper bound; got "
            f"{lower} and {upper}."
        )
    if inplace and not training:
        return input._leaky_relu_((lower + upper) / 2)
    if training:
        slope = empty_like(input.detach()).uniform_(lower, upper)
        out = where(input < 0, input * slope, input)
    else:
        out = leaky_relu(input, (lower + upper) / 2)
    return input.copy_(out) if inplace else out
