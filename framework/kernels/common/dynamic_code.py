"""Numbers of eight bits whose precision follows their magnitude, for the state of optimizers.

Of the bits of a code, the leading zeros count decades, a one ends the count, and what is left cuts
that decade in equal parts: the smaller a number, the more bits its exponent takes, and the fewer
are left for its fraction. Seven decades are in reach, from 1 down to 1e-7. A number is the middle
of its part. Zero and one have separate codes.

A code is a rank in the sorted list of all numbers, so that it can be found by comparing.

Source:
    Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", sections 1.3 and 2.2:
    dynamic tree quantization for numbers with a sign, and its form for numbers without one, whose
    spare bit goes to the fraction.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

DECADES = 7
ZERO = 127  # the code of 0 among numbers with a sign; among those without one it is 0


@cache
def magnitudes(signed: bool) -> tuple[float, ...]:
    """The numbers that are not negative, ascending: 129 with a sign, 256 without."""
    found = [0.0]
    for k in range(DECADES):
        parts = 2**k if signed else 2 ** (k + 1)
        top = 10.0 ** (k + 1 - DECADES)
        found += [top * (0.1 + 0.9 * (j + 0.5) / parts) for j in range(parts)]
    return (*found, 1.0)


@cache
def numbers(signed: bool) -> tuple[float, ...]:
    """The number of each of the 256 codes. One, the largest, has no negative counterpart."""
    found = magnitudes(signed)
    return tuple(-x for x in found[ZERO:0:-1]) + found if signed else found


@cache
def limits(signed: bool) -> tuple[float, ...]:
    """Where one magnitude ends and the next begins: halfway; the halfway point rounds down."""
    found = magnitudes(signed)
    return tuple((a + b) / 2 for a, b in pairwise(found))
