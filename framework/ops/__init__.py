"""Every op, by family. Importing this installs them as functions here and as Tensor methods."""

from .. import interop as _interop  # noqa: F401 - installs methods, as the families do
from .. import printing as _printing  # noqa: F401
from . import activation as activation
from . import adaptive_pooling as adaptive_pooling
from . import added_products as added_products
from . import algebra as algebra
from . import arithmetic as arithmetic
from . import arrays as arrays
from . import attention as attention
from . import attention_blocks as attention_blocks
from . import attention_gradient as attention_gradient
from . import bags as bags
from . import becoming as becoming
from . import bessel as bessel
from . import binary as binary
from . import calculus as calculus
from . import comparison as comparison
from . import complex_parts as complex_parts
from . import conversion as conversion
from . import convolution as convolution
from . import copying as copying
from . import correlation as correlation
from . import counting as counting
from . import creation as creation
from . import cumulative as cumulative
from . import decompositions as decompositions
from . import distances as distances
from . import distributions as distributions
from . import dropout as dropout
from . import einsum as einsum
from . import elimination as elimination
from . import elus as elus
from . import embedding as embedding
from . import expanding as expanding
from . import extremes as extremes
from . import fourier as fourier
from . import fractional_pooling as fractional_pooling
from . import gathering as gathering
from . import gating as gating
from . import gru as gru
from . import histograms as histograms
from . import householder as householder
from . import indexing as indexing
from . import joining as joining
from . import least_squares as least_squares
from . import legacy as legacy
from . import linear_maps as linear_maps
from . import locating as locating
from . import loss as loss
from . import lstm as lstm
from . import matmul as matmul
from . import matrix as matrix
from . import matrix_checks as matrix_checks
from . import matrix_norms as matrix_norms
from . import moments as moments
from . import multihead as multihead
from . import noisy as noisy
from . import normalization as normalization
from . import normalizers as normalizers
from . import padding as padding
from . import pairwise as pairwise
from . import patches as patches
from . import patching as patching
from . import permuting as permuting
from . import picking as picking
from . import places as places
from . import pointwise as pointwise
from . import pointwise_loss as pointwise_loss
from . import polynomials as polynomials
from . import pooling as pooling
from . import pools as pools
from . import powers as powers
from . import products as products
from . import random as random
from . import recurrent as recurrent
from . import reduction as reduction
from . import repeating as repeating
from . import resampling as resampling
from . import rounding as rounding
from . import sampling as sampling
from . import scattering as scattering
from . import selecting as selecting
from . import sequence_loss as sequence_loss
from . import shaping as shaping
from . import sharing as sharing
from . import shrinking as shrinking
from . import slicing as slicing
from . import softmax as softmax
from . import solving as solving
from . import sorting as sorting
from . import special as special
from . import spectral as spectral
from . import statistics as statistics
from . import stft as stft
from . import striding as striding
from . import ternary as ternary
from . import unpooling as unpooling
from . import view_copies as view_copies
from . import windows as windows
from .registry import FUNCTIONS as _functions

globals().update(_functions)
# Here for nn.functional; lowtide itself has them no more than PyTorch does.
for _family in (activation, elus, gating, shrinking):
    globals().update({name: getattr(_family, name) for name in _family.__all__})
__all__ = sorted(_functions)
