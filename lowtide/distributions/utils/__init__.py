"""What distributions of one's own are written with: broadcasting, logits, lazy properties."""

from lowtide.framework.distributions.parameters import broadcast_all as broadcast_all
from lowtide.framework.distributions.parameters import clamp_probs as clamp_probs
from lowtide.framework.distributions.parameters import lazy_property as lazy_property
from lowtide.framework.distributions.parameters import logits_to_probs as logits_to_probs
from lowtide.framework.distributions.parameters import probs_to_logits as probs_to_logits
from lowtide.framework.distributions.parameters import tril_matrix_to_vec as tril_matrix_to_vec
from lowtide.framework.distributions.parameters import vec_to_tril_matrix as vec_to_tril_matrix

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
    "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]
