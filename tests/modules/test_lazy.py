"""Lazy layers: sizes from the first input, or from a state dict."""

from __future__ import annotations

import copy

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.memory.ledger import BUFFER, PARAMETER

# A lazy layer, the layer it becomes, and an input.
PAIRS = [
    (lambda: nn.LazyLinear(4), lambda: nn.Linear(5, 4), (2, 5)),
    (lambda: nn.LazyLinear(4, False), lambda: nn.Linear(5, 4, False), (2, 5)),
    (lambda: nn.LazyConv1d(4, 3, 2), lambda: nn.Conv1d(6, 4, 3, 2), (2, 6, 9)),
    (
        lambda: nn.LazyConv2d(4, 3, 1, 1, 1, 2, False, "circular"),
        lambda: nn.Conv2d(6, 4, 3, 1, 1, 1, 2, False, "circular"),
        (6, 7, 8),
    ),
    (lambda: nn.LazyConv3d(4, 2, groups=2), lambda: nn.Conv3d(2, 4, 2, groups=2), (1, 2, 3, 4, 3)),
    (lambda: nn.LazyConvTranspose1d(4, 3), lambda: nn.ConvTranspose1d(6, 4, 3), (2, 6, 5)),
    (
        lambda: nn.LazyConvTranspose2d(4, 3, 2, 1, 1, 2, False, 1),
        lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, 2, False, 1),
        (2, 6, 4, 5),
    ),
    (lambda: nn.LazyConvTranspose3d(4, 2), lambda: nn.ConvTranspose3d(2, 4, 2), (1, 2, 3, 2, 3)),
    (lambda: nn.LazyBatchNorm1d(), lambda: nn.BatchNorm1d(5), (4, 5)),
    (lambda: nn.LazyBatchNorm2d(bias=False), lambda: nn.BatchNorm2d(3, bias=False), (2, 3, 4, 4)),
    (
        lambda: nn.LazyBatchNorm3d(1e-3, None, False),
        lambda: nn.BatchNorm3d(3, 1e-3, None, False),
        (2, 3, 2, 2, 2),
    ),
    (
        lambda: nn.LazyInstanceNorm1d(track_running_stats=False),
        lambda: nn.InstanceNorm1d(3, affine=True),
        (3, 5),
    ),
    (
        lambda: nn.LazyInstanceNorm2d(),
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        (2, 3, 4, 4),
    ),
    (
        lambda: nn.LazyInstanceNorm3d(affine=False, track_running_stats=False),
        lambda: nn.InstanceNorm3d(3),
        (2, 3, 2, 2, 2),
    ),
]
by_pair = pytest.mark.parametrize(("lazy", "plain", "shape"), PAIRS)


@by_pair
def test_the_first_input_makes_it_the_plain_layer(lazy, plain, shape):
    x = lt.randn(shape)
    layer = lazy()
    named = [id(p) for p in layer.parameters()]
    lt.manual_seed(7)
    out = layer(x)
    lt.manual_seed(7)
    expected = plain()
    assert type(layer) is type(expected)
    assert repr(layer) == repr(expected)
    assert [id(p) for p in layer.parameters()] == named  # an optimizer still has them
    assert out.tolist() == expected(x).tolist()  # the same draws
    assert list(layer.state_dict()) == list(expected.state_dict())
    assert {p._storage.role for p in layer.parameters()} <= {PARAMETER}
    assert {b._storage.role for b in layer.buffers()} <= {BUFFER}
    assert layer(x).shape == out.shape  # no hook is left


@by_pair
def test_a_state_dict_gives_the_sizes_too(lazy, plain, shape):
    layer, source = lazy(), plain()
    layer.load_state_dict(source.state_dict())
    x = lt.randn(shape)
    assert layer(x).tolist() == source(x).tolist()
    assert repr(layer) == repr(source)


def test_a_placeholder_has_no_shape_and_follows_its_module():
    layer = nn.LazyBatchNorm1d().double()
    for value in (layer.weight, layer.running_mean):
        with pytest.raises(RuntimeError, match="shape of an uninitialized parameter"):
            value.shape  # noqa: B018
        assert nn.parameter.is_lazy(value)
        assert repr(value).startswith("<Uninitialized")
    assert copy.deepcopy(layer)(lt.randn(3, 2, dtype=lt.float64)).dtype is lt.float64
    assert layer.has_uninitialized_params()  # the copy was called, not this one


def test_sizes_that_do_not_fit_are_refused_and_leave_the_layer_lazy():
    layer = nn.LazyConv2d(4, 3, groups=2)
    with pytest.raises(ValueError, match="in_channels must be divisible by groups; got 3 and 2"):
        layer(lt.zeros(1, 3, 5, 5))
    with pytest.raises(RuntimeError, match=r"3D \(unbatched\) or 4D"):
        layer(lt.zeros(5, 5))
    assert layer(lt.zeros(1, 6, 5, 5)).shape == (1, 4, 3, 3)


def test_an_own_lazy_module_says_how_it_gets_its_sizes():
    class Scale(nn.modules.lazy.LazyModuleMixin, nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.parameter.UninitializedParameter()

        def initialize_parameters(self, x):
            self.factor.materialize(x.shape[-1:])
            nn.init.ones_(self.factor)

        def forward(self, x):
            return x * self.factor

    layer = Scale()
    assert layer(lt.tensor([[2.0, 3.0]])).tolist() == [[2.0, 3.0]]
    assert not layer.has_uninitialized_params()
