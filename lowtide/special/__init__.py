"""Special functions, under the names of PyTorch and SciPy."""

from lowtide.framework.ops.activation.softmax import log_softmax as log_softmax
from lowtide.framework.ops.activation.softmax import softmax as softmax
from lowtide.framework.ops.elementwise.bessel import airy_ai as airy_ai
from lowtide.framework.ops.elementwise.bessel import bessel_j0 as bessel_j0
from lowtide.framework.ops.elementwise.bessel import bessel_j1 as bessel_j1
from lowtide.framework.ops.elementwise.bessel import bessel_y0 as bessel_y0
from lowtide.framework.ops.elementwise.bessel import bessel_y1 as bessel_y1
from lowtide.framework.ops.elementwise.bessel import modified_bessel_k0 as modified_bessel_k0
from lowtide.framework.ops.elementwise.bessel import modified_bessel_k1 as modified_bessel_k1
from lowtide.framework.ops.elementwise.bessel import (
    scaled_modified_bessel_k0 as scaled_modified_bessel_k0,
)
from lowtide.framework.ops.elementwise.bessel import (
    scaled_modified_bessel_k1 as scaled_modified_bessel_k1,
)
from lowtide.framework.ops.elementwise.bessel import spherical_bessel_j0 as spherical_bessel_j0
from lowtide.framework.ops.elementwise.binary import xlogy as xlogy
from lowtide.framework.ops.elementwise.polynomials import (
    chebyshev_polynomial_t as chebyshev_polynomial_t,
)
from lowtide.framework.ops.elementwise.polynomials import (
    chebyshev_polynomial_u as chebyshev_polynomial_u,
)
from lowtide.framework.ops.elementwise.polynomials import (
    chebyshev_polynomial_v as chebyshev_polynomial_v,
)
from lowtide.framework.ops.elementwise.polynomials import (
    chebyshev_polynomial_w as chebyshev_polynomial_w,
)
from lowtide.framework.ops.elementwise.polynomials import (
    hermite_polynomial_h as hermite_polynomial_h,
)
from lowtide.framework.ops.elementwise.polynomials import (
    hermite_polynomial_he as hermite_polynomial_he,
)
from lowtide.framework.ops.elementwise.polynomials import (
    laguerre_polynomial_l as laguerre_polynomial_l,
)
from lowtide.framework.ops.elementwise.polynomials import (
    legendre_polynomial_p as legendre_polynomial_p,
)
from lowtide.framework.ops.elementwise.polynomials import (
    shifted_chebyshev_polynomial_t as shifted_chebyshev_polynomial_t,
)
from lowtide.framework.ops.elementwise.polynomials import (
    shifted_chebyshev_polynomial_u as shifted_chebyshev_polynomial_u,
)
from lowtide.framework.ops.elementwise.polynomials import (
    shifted_chebyshev_polynomial_v as shifted_chebyshev_polynomial_v,
)
from lowtide.framework.ops.elementwise.polynomials import (
    shifted_chebyshev_polynomial_w as shifted_chebyshev_polynomial_w,
)
from lowtide.framework.ops.elementwise.rounding import round as round
from lowtide.framework.ops.elementwise.special import entr as entr
from lowtide.framework.ops.elementwise.special import erfcx as erfcx
from lowtide.framework.ops.elementwise.special import i0 as i0
from lowtide.framework.ops.elementwise.special import i0 as modified_bessel_i0
from lowtide.framework.ops.elementwise.special import i0e as i0e
from lowtide.framework.ops.elementwise.special import i1 as i1
from lowtide.framework.ops.elementwise.special import i1 as modified_bessel_i1
from lowtide.framework.ops.elementwise.special import i1e as i1e
from lowtide.framework.ops.elementwise.special import igamma as gammainc
from lowtide.framework.ops.elementwise.special import igammac as gammaincc
from lowtide.framework.ops.elementwise.special import log_ndtr as log_ndtr
from lowtide.framework.ops.elementwise.special import mvlgamma as multigammaln
from lowtide.framework.ops.elementwise.special import ndtr as ndtr
from lowtide.framework.ops.elementwise.special import ndtri as ndtri
from lowtide.framework.ops.elementwise.special import xlog1py as xlog1py
from lowtide.framework.ops.elementwise.special import zeta as zeta
from lowtide.framework.ops.elementwise.unary import digamma as digamma
from lowtide.framework.ops.elementwise.unary import digamma as psi
from lowtide.framework.ops.elementwise.unary import erf as erf
from lowtide.framework.ops.elementwise.unary import erfc as erfc
from lowtide.framework.ops.elementwise.unary import erfinv as erfinv
from lowtide.framework.ops.elementwise.unary import exp2 as exp2
from lowtide.framework.ops.elementwise.unary import expm1 as expm1
from lowtide.framework.ops.elementwise.unary import lgamma as gammaln
from lowtide.framework.ops.elementwise.unary import log1p as log1p
from lowtide.framework.ops.elementwise.unary import logit as logit
from lowtide.framework.ops.elementwise.unary import polygamma as polygamma
from lowtide.framework.ops.elementwise.unary import sigmoid as expit
from lowtide.framework.ops.elementwise.unary import sinc as sinc
from lowtide.framework.ops.reduction.var_norm import logsumexp as logsumexp

__all__ = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammainc",
    "gammaincc",
    "gammaln",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "sinc",
    "softmax",
    "spherical_bessel_j0",
    "xlog1py",
    "xlogy",
    "zeta",
]
