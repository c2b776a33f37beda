"""Sobol sequences: points that fill the unit cube evenly. SciPy draws them."""

from __future__ import annotations

import warnings
from typing import Any

import lowtide as _lt


class SobolEngine:
    """Generator of a Sobol sequence, the same as PyTorch's where it is not scrambled.

    Args:
        dimension: Of the points, 1 to 21201.
        scramble: Scramble the points at random; SciPy's scrambling, so not PyTorch's points.
        seed: Of the scrambling; None draws one.

    Attributes:
        num_generated: How many points were drawn.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: ``dimension`` is too small or too large.
    """

    MAXDIM = 21201
    MAXBIT = 30

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ValueError(f"SobolEngine: dimension is from 1 to {self.MAXDIM}; got {dimension}.")
        try:
            from scipy.stats import qmc
        except ImportError as error:
            raise ImportError(
                "SobolEngine: SciPy draws the points and is not installed. Install it with: "
                "pip install scipy"
            ) from error
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        if scramble and seed is None:
            seed = int(_lt.randint(0, 2**31 - 1, ()).item())
        self._points = qmc.Sobol(dimension, scramble=scramble, bits=self.MAXBIT, rng=seed)
        self.num_generated = 0

    def draw(self, n: int = 1, out: Any = None, dtype: Any = None) -> Any:
        """Return the next points.

        Args:
            n: How many.
            out: Tensor to write them to.
            dtype: A floating one; the default dtype if None.

        Returns:
            (n, dimension), in [0, 1).

        Raises:
            ValueError: ``n`` is negative.
            TypeError: ``dtype`` is not a floating one, which would make every point 0.
        """
        if n < 0:
            raise ValueError(f"SobolEngine.draw: n is 0 or more; got {n}.")
        dtype = dtype or _lt.get_default_dtype()
        if not dtype.is_floating_point:
            raise TypeError(
                f"SobolEngine.draw: points lie in [0, 1), so dtype must be a floating one; got"
                f" {dtype}. Draw floats, scale them, and convert those."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that n is no power of two
            values = self._points.random(n)
        self.num_generated += n
        made = _lt.tensor(values, dtype=dtype)
        if out is None:
            return made
        return out.resize_(made.shape).copy_(made)

    def draw_base2(self, m: int, out: Any = None, dtype: Any = None) -> Any:
        """Return the next 2**m points.

        Raises:
            ValueError: With those before they are no power of two, so they would not be balanced.
        """
        total = self.num_generated + 2**m
        if total & (total - 1):
            raise ValueError(
                f"SobolEngine.draw_base2: {self.num_generated} points were drawn and 2**{m} more "
                f"make {total}, which is no power of two. Call draw, or reset first."
            )
        return self.draw(2**m, out, dtype)

    def reset(self) -> SobolEngine:
        """Go back to the first point."""
        self._points.reset()
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leave out the next ``n`` points.

        Raises:
            ValueError: ``n`` is negative.
        """
        if n < 0:
            raise ValueError(
                f"SobolEngine.fast_forward: n is 0 or more; got {n}. Go back with reset()."
            )
        if n:
            self._points.fast_forward(n)
            self.num_generated += n
        return self

    def __repr__(self) -> str:
        return (
            f"SobolEngine(dimension={self.dimension}"
            + (", scramble=True" if self.scramble else "")
            + (f", seed={self.seed}" if self.seed is not None else "")
            + ")"
        )
