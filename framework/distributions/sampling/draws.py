"""Random draws from gamma, Dirichlet, binomial and von Mises distributions, element by element.

Each is an op of its parameters and of a place in the generator's stream, so a seed gives equal
values on every device: they are drawn on the host, by NumPy's generator, from Philox words that
start at that place. Rejection takes a varying number of words; so many are set aside that the
next draw starts beyond them.

The ops have no gradient. ``implicit_gradients.py`` gives one to gamma and Dirichlet draws; the
others are drawn without (``sample``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import FLOAT
from ...ops.registry import op
from ...random.generator import Generator, draw
from ...random.philox import Rng
from ...spec import Spec
from ...tensor import Tensor

_WORDS = 16  # 32-bit words of the stream for each element: as many 64-bit words of NumPy's Philox


def place_for(x: Tensor, generator: Generator | None = None) -> Rng:
    """Reserve a stretch of a stream, enough for a draw for each element of ``x``."""
    return draw(_WORDS * x.numel() + 4 * _WORDS, x.device, generator)


def on_host(xp: Any, x: Any) -> Any:
    """Return an array of any device as a float64 one of NumPy's."""
    return np.asarray(x if xp is np else x.get(), dtype=np.float64)


def _stream(rng: Rng) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=rng.seed, counter=rng.offset))


def _of_floats(name: str) -> Any:
    def infer(input: Spec, *others: Any) -> Spec:
        if input.dtype.category != FLOAT:
            raise NotImplementedError(
                f'"{name}" not implemented for {input.dtype}: parameters need a floating dtype. '
                "Convert with .to(lowtide.float32)."
            )
        return input

    return infer


def _log_gamma(draws: np.random.Generator, shapes: Any) -> Any:
    # The logarithm of gamma variables. Below shape 1 they are those of one shape more times
    # U ** (1 / shape) (Marsaglia and Tsang 2000, section 6), which as logarithms do not vanish.
    small = shapes < 1
    found = draws.standard_gamma(np.where(small, shapes + 1, shapes))
    np.log(found, out=found)
    below = np.log1p(-draws.random(shapes.shape))
    return found + np.where(small, below / shapes, 0.0)


def _tiny(dtype: Any) -> float:
    return float(np.finfo(dtype if dtype.kind == "f" else np.float32).tiny)


def _shapes(make: Any) -> Any:
    for shape in ((3, 5), (1,), (0, 2)):
        yield (make(*shape, low=0.3, high=3.0), Rng(3, 5)), {}


@op(adopt=True, infer=_of_floats("standard_gamma"), samples=_shapes)
def _standard_gamma(xp: Any, concentration: Any, rng: Any) -> Any:
    """Draw from gamma distributions of rate 1 with the shape parameter in each element.

    Never below the least normal number of the dtype, so that the logarithm is finite.
    """
    shapes = on_host(xp, concentration)
    with np.errstate(all="ignore"):
        found = np.exp(_log_gamma(_stream(rng), shapes))
        np.maximum(found, _tiny(concentration.dtype), out=found)
    return xp.asarray(found.astype(concentration.dtype))


@op(adopt=True, infer=_of_floats("dirichlet"), samples=_shapes)
def _sample_dirichlet(xp: Any, concentration: Any, rng: Any) -> Any:
    """Draw from Dirichlet distributions: gamma variables over their sum, along the last axis.

    Divided as logarithms, so that small concentrations do not end in 0 / 0. Never 0 or 1.
    """
    shapes = on_host(xp, concentration)
    with np.errstate(all="ignore"):
        found = _log_gamma(_stream(rng), shapes)
        found -= found.max(-1, keepdims=True, initial=-np.inf)
        np.exp(found, out=found)
        found /= found.sum(-1, keepdims=True)
    kind = concentration.dtype if concentration.dtype.kind == "f" else np.dtype(np.float32)
    most = float(np.nextafter(kind.type(1), kind.type(0)))
    np.clip(found, _tiny(kind), most, out=found)
    return xp.asarray(found.astype(concentration.dtype))


def _counts(make: Any) -> Any:
    for shape in ((3, 5), (1,), (0, 2)):
        counts = make(*shape, low=1.0, high=9.0).floor()
        yield (counts, make(*shape, low=0.1, high=0.9), Rng(3, 5)), {}


def _binomial_infer(count: Spec, prob: Spec, rng: Any) -> Spec:
    if count.shape != prob.shape or count.dtype is not prob.dtype:
        raise RuntimeError(
            f"binomial: count and prob must be alike; got {count.shape}, {count.dtype} and "
            f"{prob.shape}, {prob.dtype}. Broadcast and convert them."
        )
    return _of_floats("binomial")(count)


@op(adopt=True, half="exact", infer=_binomial_infer, samples=_counts)
def _binomial(xp: Any, count: Any, prob: Any, rng: Any) -> Any:
    """Draw the number of successes in ``count`` trials of probability ``prob``."""
    n, p = on_host(xp, count), on_host(xp, prob)
    if not (n >= 0).all() or not ((p >= 0) & (p <= 1)).all():
        raise RuntimeError(
            "binomial: counts are integers of at least 0 and probabilities lie in [0, 1]; got "
            "others. Keep validate_args=True to see which."
        )
    found = _stream(rng).binomial(n.astype(np.int64), p)
    return xp.asarray(found.astype(count.dtype))


@op(adopt=True, infer=_of_floats("von_mises"), samples=_shapes)
def _von_mises(xp: Any, concentration: Any, rng: Any) -> Any:
    """Draw angles around 0, in [-pi, pi], of von Mises distributions.

    Source:
        Best and Fisher: "Efficient simulation of the von Mises distribution", Applied Statistics
        28, 1979; the loop is NumPy's.
    """
    found = _stream(rng).vonmises(0.0, on_host(xp, concentration))
    return xp.asarray(found.astype(concentration.dtype))
