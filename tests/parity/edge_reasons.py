"""Why numbers at edge values differ from PyTorch's, by op, and by order and kind where it matters.

A word is an op, or ``op:order.kind`` with wildcards. Each difference needs a reason, and each word
a difference.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    "PyTorch's formula passes through infinity times 0, or infinity over infinity, on its way to "
    "a finite result; lowtide's does not": """
        asinh atanh erf erfc logaddexp nn.functional.softsign special.ndtr nn.functional.mish
        nn.functional.layer_norm nn.functional.rms_norm nn.functional.soft_margin_loss
        nn.functional.cosine_similarity:first.* nn.functional.cosine_similarity:second.*
        nn.functional.gaussian_nll_loss special.log_ndtr special.zeta float_power pow:second.nan
        ldexp frexp complex_abs:second.* logit nanmean nn.functional.grid_sample:second.nan
    """,
    "PyTorch's second gradient of a norm at 0 is NaN; lowtide's is 0, as the first one": """
        dist norm:second.nan nn.functional.normalize nn.functional.pairwise_distance
        nn.functional.triplet_margin_loss
    """,
    "PyTorch's second gradient at 0 is NaN; lowtide's is the second derivative": """
        sinc:second.nan copysign:second.nan
    """,
    "PyTorch rounds a constant of double precision to float32": """
        nn.functional.hardsigmoid nn.functional.celu large_activations
        nn.functional.cosine_embedding_loss
    """,
    "SciPy and PyTorch's own library disagree at poles, infinity and subnormal numbers; lowtide's "
    "values are SciPy's": """
        digamma lgamma mvlgamma polygamma igamma igammac special.airy_ai special.bessel_j0
        special.bessel_j1 special.bessel_y0 special.bessel_y1 special.modified_bessel_k1
        special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 pow:value.* pow:first.*
    """,
    "PyTorch's derivative of NaN is that of 0": "i0 special.i1 special.i1e",
    "PyTorch's vector code divides and loses what a subnormal divisor leaves": """
        fmod remainder
    """,
    "Equal elements, or elements that cannot be ordered: which of them is taken is left open": """
        kthvalue median nanmedian mode
    """,
    "PyTorch's result requires grad though its backward is not that of a function; lowtide's does "
    "not": "nextafter",
    "PyTorch rounds once, in a fused multiplication and addition": "lerp addcmul",
    "A degree must be an integer: lowtide refuses NaN and infinity": """
        special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v
        special.chebyshev_polynomial_w special.hermite_polynomial_h special.hermite_polynomial_he
        special.laguerre_polynomial_l special.legendre_polynomial_p
        special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
        special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
    """,
    "PyTorch's gradients of a product divide by elements, or add infinity times 0; lowtide's "
    "second ones are products of the others": """
        prod:second.* cumprod:first.* cumprod:second.*
    """,
    "Beside the largest numbers the logarithm of a running sum is lost, and PyTorch's gradient has "
    "more such logarithms": "logcumsumexp:first.number logcumsumexp:second.number",
    "Sums and products in another order, or wider, reach infinity or NaN at other places": """
        cumsum cumprod:value.* var std var_mean addcdiv nn.functional.cross_entropy:second.*
        nn.functional.cosine_similarity:value.*
    """,
}
# lowtide's own shortcomings, which are open.
OPEN: dict[str, str] = {
    "A gradient that can be differentiated again adds 0 times infinity": """
        prod:first.nan logcumsumexp:second.nan
    """,
}
