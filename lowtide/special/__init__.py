"""Special functions, under the names of PyTorch and SciPy."""

from lowtide.framework.ops.binary import xlogy as xlogy
from lowtide.framework.ops.moments import logsumexp as logsumexp
from lowtide.framework.ops.pointwise import digamma as digamma
from lowtide.framework.ops.pointwise import digamma as psi
from lowtide.framework.ops.pointwise import erf as erf
from lowtide.framework.ops.pointwise import erfc as erfc
from lowtide.framework.ops.pointwise import erfinv as erfinv
from lowtide.framework.ops.pointwise import exp2 as exp2
from lowtide.framework.ops.pointwise import expm1 as expm1
from lowtide.framework.ops.pointwise import lgamma as gammaln
from lowtide.framework.ops.pointwise import log1p as log1p
from lowtide.framework.ops.pointwise import logit as logit
from lowtide.framework.ops.pointwise import polygamma as polygamma
from lowtide.framework.ops.pointwise import round as round
from lowtide.framework.ops.pointwise import sigmoid as expit
from lowtide.framework.ops.pointwise import sinc as sinc
from lowtide.framework.ops.softmax import log_softmax as log_softmax
from lowtide.framework.ops.softmax import softmax as softmax
from lowtide.framework.ops.special import bessel_j0 as bessel_j0
from lowtide.framework.ops.special import bessel_j1 as bessel_j1
from lowtide.framework.ops.special import bessel_y0 as bessel_y0
from lowtide.framework.ops.special import bessel_y1 as bessel_y1
from lowtide.framework.ops.special import entr as entr
from lowtide.framework.ops.special import erfcx as erfcx
from lowtide.framework.ops.special import i0 as i0
from lowtide.framework.ops.special import i0 as modified_bessel_i0
from lowtide.framework.ops.special import i0e as i0e
from lowtide.framework.ops.special import i1 as i1
from lowtide.framework.ops.special import i1 as modified_bessel_i1
from lowtide.framework.ops.special import i1e as i1e
from lowtide.framework.ops.special import igamma as gammainc
from lowtide.framework.ops.special import igammac as gammaincc
from lowtide.framework.ops.special import log_ndtr as log_ndtr
from lowtide.framework.ops.special import mvlgamma as multigammaln
from lowtide.framework.ops.special import ndtr as ndtr
from lowtide.framework.ops.special import ndtri as ndtri
from lowtide.framework.ops.special import xlog1py as xlog1py
from lowtide.framework.ops.special import zeta as zeta

__all__ = [
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
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
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]
