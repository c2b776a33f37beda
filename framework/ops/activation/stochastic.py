"""Random activations: Gumbel softmax and randomized leaky ReLU."""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...kernels.common.layout import contiguous, tiles
from ...kernels.formula.bits import bits
from ...kernels.runtime import thresholds
from ...random import philox
from ...random.generator import draw
from ...random.philox import Rng
from ...spec import Spec
from ..creation.fill import empty_like, zeros_like
from ..elementwise.bitmask import bitmask_spec, compute_bits, work_specs
from ..registry import function, op
from ..signatures import per_element
from .relu import leaky_relu, need_float
from .softmax import softmax


@function(public=False)
def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """Sample from the Gumbel-softmax distribution: a differentiable categorical draw.

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
    plain = logits.detach()
    noise = -empty_like(plain).exponential_().log()
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    bitmask_vjp = soft.detach().argmax(dim, keepdim=True)
    return zeros_like(plain).scatter(dim, bitmask_vjp, 1.0) - soft.detach() + soft


@bits
def _sloped_bits(slope, input):
    above = not input <= 0
    return input if above else slope * input, above


@bits
def _sloped_gradient_bits(slope, grad, above: bool):
    return grad if above else slope * grad


def _rrelu_infer(input, rng, **_):
    need_float("rrelu", input)
    return input, bitmask_spec(input), *work_specs(_sloped_bits, input), _words_of(input)


def _words_of(input):
    return Spec((min(input.numel, thresholds.tile_elements(input.on_host)),), int32)


def _rrelus(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), Rng(3, 5)), {"lower": 0.1, "upper": 0.3}
    yield (make(2, 3), Rng(3, 5)), {"lower": 0.2, "upper": 0.7}


@op(
    infer=_rrelu_infer,
    returns=("out", "bitmask"),
    scratch=("bools", "numbers", "words"),
    layout=contiguous,
    flops=per_element(3),
    samples=_rrelus,
)
def _rrelu(xp, out, bitmask, bools, numbers, words, input, rng, *, lower, upper):
    """Randomized leaky ReLU, and the bitmask of elements above 0."""
    _draw_slopes(xp, out, words, rng, lower, upper)
    compute_bits(xp, _sloped_bits, out, [bitmask], bools, numbers, [out, input])


def _draw_slopes(xp, out, words, rng, lower, upper):
    # A slope is a function of (seed, offset) and the number of its element, in every dtype.
    flat, random = out.reshape(-1), words.view(xp.uint32)
    for here in tiles(flat.size, thresholds.tile_elements(xp is np)):
        tile = flat[here]
        philox.bits(xp, random[: tile.size], rng, here.start)
        xp.multiply(random[: tile.size], (upper - lower) * 2.0**-32, out=tile)
    xp.add(out, lower, out=out)


@_rrelu.vjp("input")
def _(g_out, bitmask, rng, lower, upper):
    return None if g_out is None else _rrelu_backward(g_out, bitmask.detach(), rng, lower, upper)


def _slope_samples(make):
    for (input, rng), options in _rrelus(make):
        bitmask = _rrelu(input.detach(), rng, **options)[1]
        yield (input, bitmask, rng), options


@op(
    scratch=("bools", "numbers", "words"),
    infer=lambda grad, *_, **__: (grad, *work_specs(_sloped_gradient_bits, grad), _words_of(grad)),
    layout=contiguous,
    flops=per_element(3),
    samples=_slope_samples,
)
def _rrelu_backward(xp, out, bools, numbers, words, grad, bitmask, rng, *, lower, upper):
    """Backward of rrelu: ``grad`` times the slope drawn for each element not above 0."""
    _draw_slopes(xp, out, words, rng, lower, upper)
    compute_bits(xp, _sloped_gradient_bits, out, [], bools, numbers, [out, grad, bitmask])


@_rrelu_backward.vjp("grad")
def _(g, bitmask, rng, lower, upper):
    return _rrelu_backward(g, bitmask, rng, lower, upper)


@function(public=False)
def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """Apply randomized leaky ReLU: random negative slopes in training, their mean otherwise.

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

    Memory:
        Keeps one bit an element in training: backward draws the slopes again.
    """
    if lower > upper:
        raise RuntimeError(
            "rrelu: Lower bound should be less than or equal to the upper bound; got "
            f"{lower} and {upper}."
        )
    if inplace and not training:
        return input._leaky_relu_((lower + upper) / 2)
    if training:
        need_float("rrelu", input)
        rng = draw(input.numel(), input.device)
        out = _rrelu(input, rng, float(lower), float(upper))[0]
    else:
        out = leaky_relu(input, (lower + upper) / 2)
    return input.copy_(out) if inplace else out
