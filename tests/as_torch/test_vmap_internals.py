"""``torch._vmap_internals``: the vmap of before, whose outputs may be None."""

from __future__ import annotations

from tests.as_torch.running import answers

SETUP = """
import lowtide.as_torch
import torch
from torch._vmap_internals import _vmap

x = torch.tensor([1.0, 2.0], requires_grad=True)
unused = torch.ones(2, requires_grad=True)
y = x ** 2

def rows(v):
    return torch.autograd.grad(y, (x, unused), v, retain_graph=True, allow_unused=True)
"""


def test_rows_of_a_jacobian_and_none():
    both = "[None if r is None else r.tolist() for r in _vmap(rows, 0, 0, True)(torch.eye(2))]"
    one = "_vmap(lambda v: rows(v)[0])(torch.eye(2)).tolist()"
    found = answers(SETUP, [both, one])
    assert found[one] == [[2.0, 0.0], [0.0, 4.0]]
    assert found[both] == [found[one], None]
