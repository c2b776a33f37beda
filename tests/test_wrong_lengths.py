"""Arguments of a wrong length: the error says what the rule is, and never speaks of ``zip()``.

Each row is a call with lists of n values, where ``right`` are needed; wrong n are drawn.
"""

from __future__ import annotations

import random

import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import autograd, func, nn, optim
from lowtide.autograd import functional
from lowtide.utils import data
from lowtide.utils.checkpoint import set_device_states

VALUE = lt.ones(4)
MATRIX = lt.rand(4, 4)
IMAGE = lt.rand(2, 3, 8, 8)


def leaf():
    return nn.Parameter(lt.zeros(2))


def several(n, value=VALUE):
    return tuple(value.clone() for _ in range(n))


def pooled():
    return F.max_pool2d(IMAGE, 2, return_indices=True)


def cotangents(n):
    x = lt.ones(4, requires_grad=True)
    return autograd.grad([x * 2, x * 3], [x], grad_outputs=list(several(n)))


def of_function(n):
    class Product(autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * b

        @staticmethod
        def backward(ctx, g):
            return several(n)

    x = lt.ones(4, requires_grad=True)
    Product.apply(x, x).sum().backward()


def hooked(n):
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, given, found: several(n, lt.ones(1, 2)))
    layer(lt.ones(1, 2, requires_grad=True)).sum().backward()


def loaded(n):
    groups = [{"params": [leaf()]} for _ in range(n)]
    saved = optim.SGD(groups or [leaf(), leaf()]).state_dict()
    optim.SGD([{"params": [leaf()]}, {"params": [leaf()]}]).load_state_dict(saved)


def averaged(n):
    model = optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    model.update_parameters(nn.Sequential(*[nn.Linear(2, 2) for _ in range(n)]))


def averaged_buffers(n):
    def norms(count):
        layers = [nn.BatchNorm1d(2, affine=False) for _ in range(count)]
        return nn.Sequential(nn.Linear(1, 1), *layers)

    optim.swa_utils.AveragedModel(norms(2)).update_parameters(norms(n))


def schedule(make):
    def call(n):
        optimizer = optim.SGD([{"params": [leaf()]}, {"params": [leaf()]}], lr=1.0, momentum=0.9)
        make(optimizer, n)

    return call


S = optim.lr_scheduler
CALLS = {  # name: (the right length, the call)
    "as_strided": (2, lambda n: MATRIX.as_strided((2, 2), (1,) * n)),
    "as_strided_": (2, lambda n: MATRIX.clone().as_strided_((2, 2), (1,) * n)),
    "as_strided size": (2, lambda n: MATRIX.as_strided((2,) * n, (1, 1))),
    "as_strided_copy": (2, lambda n: lt.as_strided_copy(MATRIX, (2, 2), (1,) * n)),
    "as_strided_scatter": (2, lambda n: lt.as_strided_scatter(MATRIX, MATRIX, (2, 2), (1,) * n)),
    "empty_strided": (2, lambda n: lt.empty_strided((2, 2), (1,) * n)),
    "permute": (2, lambda n: MATRIX.permute(tuple(range(n)))),
    "movedim": (2, lambda n: MATRIX.movedim((0, 1), tuple(range(n)))),
    "roll": (2, lambda n: MATRIX.roll((1, 1), (0,) * n or 5)),
    "einsum": (2, lambda n: lt.einsum("ij,jk->ik", *[MATRIX] * n)),
    "split_with_sizes": (2, lambda n: MATRIX.split((2,) * n)),
    "fftn": (2, lambda n: lt.fft.fftn(MATRIX, s=(2, 2), dim=tuple(range(n)))),
    "gradient": (2, lambda n: lt.gradient(MATRIX, spacing=(1.0, 1.0), dim=tuple(range(n)))),
    "histogramdd": (4, lambda n: lt.histogramdd(MATRIX, bins=[2] * n)),
    "conv2d stride": (2, lambda n: F.conv2d(IMAGE, lt.ones(3, 3, 1, 1), stride=(1,) * n)),
    "conv2d padding": (2, lambda n: F.conv2d(IMAGE, lt.ones(3, 3, 1, 1), padding=(1,) * n)),
    "conv2d dilation": (2, lambda n: F.conv2d(IMAGE, lt.ones(3, 3, 1, 1), dilation=(1,) * n)),
    "max_pool2d": (2, lambda n: F.max_pool2d(IMAGE, (2,) * n)),
    "avg_pool2d": (2, lambda n: F.avg_pool2d(IMAGE, 2, stride=(2,) * n)),
    "max_unpool2d": (2, lambda n: F.max_unpool2d(*pooled(), (2,) * n)),
    "adaptive_avg_pool2d": (2, lambda n: F.adaptive_avg_pool2d(IMAGE, (2,) * n)),
    "fractional_max_pool2d": (2, lambda n: F.fractional_max_pool2d(IMAGE, 2, (2,) * n)),
    "unfold": (2, lambda n: F.unfold(IMAGE, (2,) * n)),
    "fold": (2, lambda n: F.fold(lt.ones(1, 4, 9), (4,) * n, 2)),
    "interpolate": (2, lambda n: F.interpolate(IMAGE, size=(2,) * n)),
    "pad": (2, lambda n: F.pad(VALUE, (1,) * n)),
    "ConstantPad2d": (4, lambda n: nn.ConstantPad2d((1,) * n, 0.0)(IMAGE)),
    "LSTM": (2, lambda n: nn.LSTM(2, 2)(lt.ones(3, 1, 2), several(n, lt.ones(1, 1, 2)))),
    "LSTMCell": (2, lambda n: nn.LSTMCell(2, 2)(lt.ones(1, 2), several(n, lt.ones(1, 2)))),
    "unpad_sequence": (2, lambda n: nn.utils.rnn.unpad_sequence(lt.ones(3, 2), lt.ones(n).long())),
    "pack_padded": (2, lambda n: nn.utils.rnn.pack_padded_sequence(lt.ones(3, 2), [3] * n)),
    "vector_to_parameters": (
        9,
        lambda n: nn.utils.vector_to_parameters(lt.ones(n if n < 9 else n % 9), [leaf()] * 5),
    ),
    "grad_outputs": (2, cotangents),
    "backward": (1, lambda n: autograd.backward([lt.ones(4, requires_grad=True) * 2], several(n))),
    "Function": (2, of_function),
    "backward hook": (1, hooked),
    "jvp": (2, lambda n: func.jvp(lambda a, b: a * b, several(2), several(n))),
    "vjp": (2, lambda n: func.vjp(lambda a: (a, a), VALUE)[1](several(n))),
    "linearize": (2, lambda n: func.linearize(lambda a, b: a * b, *several(2))[1](*several(n))),
    "in_dims": (2, lambda n: func.vmap(lambda a, b: a * b, (0,) * n)(VALUE, VALUE)),
    "out_dims": (2, lambda n: func.vmap(lambda a: (a, a), 0, (0,) * n)(VALUE)),
    "functional.jvp": (2, lambda n: functional.jvp(lambda a, b: a * b, several(2), several(n))),
    "functional.vjp": (2, lambda n: functional.vjp(lambda a: (a, a), VALUE, several(n))),
    "functional.hvp": (
        2,
        lambda n: functional.hvp(lambda a, b: (a * b).sum(), several(2), several(n)),
    ),
    "random_split": (2, lambda n: data.random_split(range(4), [2] * n)),
    "collate": (2, lambda n: data.default_collate([(1, 2), (1,) * n])),
    "TensorDataset": (2, lambda n: data.TensorDataset(lt.ones(2), lt.ones(n))),
    "StackDataset": (2, lambda n: data.StackDataset(range(2), range(n))),
    "Adam betas": (2, lambda n: optim.Adam([leaf()], betas=(0.9,) * n)),
    "NAdam betas": (2, lambda n: optim.NAdam([leaf()], betas=(0.9,) * n)),
    "Rprop etas": (2, lambda n: optim.Rprop([leaf()], etas=(0.5, 1.2, 1.2, 1.2, 1.2, 1.2)[:n])),
    "Rprop step_sizes": (2, lambda n: optim.Rprop([leaf()], step_sizes=(1.0,) * n)),
    "Adafactor eps": (2, lambda n: optim.Adafactor([leaf()], eps=(1e-3,) * n)),
    "load_state_dict": (2, loaded),
    "AveragedModel": (2, averaged),
    "AveragedModel buffers": (2, averaged_buffers),
    "LambdaLR": (2, schedule(lambda o, n: S.LambdaLR(o, [lambda step: 1.0] * n))),
    "CyclicLR": (2, schedule(lambda o, n: S.CyclicLR(o, [0.1] * n, 1.0))),
    "OneCycleLR": (2, schedule(lambda o, n: S.OneCycleLR(o, [0.1] * n, 9))),
    "ReduceLROnPlateau": (2, schedule(lambda o, n: S.ReduceLROnPlateau(o, min_lr=[0.1] * n))),
    "SWALR": (2, schedule(lambda o, n: optim.swa_utils.SWALR(o, [0.1] * n))),
    "parallel_apply": (
        2,
        lambda n: nn.parallel.parallel_apply([nn.Linear(2, 2)] * 2, [lt.ones(1, 2)] * n),
    ),
    "set_device_states": (2, lambda n: set_device_states([0, 1], [None] * n)),
    "sparse values": (2, lambda n: lt.sparse_coo_tensor([[0, 1]], [1.0] * n)),
    "tree_unflatten": (
        2,
        lambda n: lt.utils._pytree.tree_unflatten(
            [1] * n, lt.utils._pytree.tree_flatten([1, 2])[1]
        ),
    ),
    "unbind_copy out": (4, lambda n: lt.unbind_copy(MATRIX, out=list(several(n)))),
    "split_copy out": (2, lambda n: lt.split_copy(MATRIX, 2, out=list(several(n)))),
}
OUT = {  # functions of several results: out= is a tuple of as many
    "max": lambda out: lt.max(MATRIX, 0, out=out),
    "min": lambda out: lt.min(MATRIX, 0, out=out),
    "aminmax": lambda out: lt.aminmax(MATRIX, dim=0, out=out),
    "median": lambda out: lt.median(MATRIX, 0, out=out),
    "nanmedian": lambda out: lt.nanmedian(MATRIX, 0, out=out),
    "mode": lambda out: lt.mode(MATRIX, 0, out=out),
    "kthvalue": lambda out: lt.kthvalue(MATRIX, 1, 0, out=out),
    "topk": lambda out: lt.topk(MATRIX, 2, out=out),
    "sort": lambda out: lt.sort(MATRIX, out=out),
    "cummax": lambda out: lt.cummax(MATRIX, 0, out=out),
    "cummin": lambda out: lt.cummin(MATRIX, 0, out=out),
    "frexp": lambda out: lt.frexp(MATRIX, out=out),
    "geqrf": lambda out: lt.geqrf(MATRIX, out=out),
    "histogram": lambda out: lt.histogram(MATRIX, 3, out=out),
    "linalg.qr": lambda out: lt.linalg.qr(MATRIX, out=out),
    "linalg.eigh": lambda out: lt.linalg.eigh(MATRIX, out=out),
    "linalg.slogdet": lambda out: lt.linalg.slogdet(MATRIX, out=out),
    "linalg.lu_factor": lambda out: lt.linalg.lu_factor(MATRIX, out=out),
    "linalg.inv_ex": lambda out: lt.linalg.inv_ex(MATRIX, out=out),
    "triangular_solve": lambda out: lt.triangular_solve(MATRIX, MATRIX, out=out),
}
CALLS |= {
    f"{name} out": (2, lambda n, call=call: call(several(n, lt.empty(0))))
    for name, call in OUT.items()
}
ACCEPTED = {("avg_pool2d", 0), ("pad", 0)}  # no stride is the kernel's size, no padding none


def explained(error):
    """Whether an error is one of ours, and not one from inside a call that went too far."""
    inside = isinstance(error, AttributeError | NameError) or "__new__" in str(error)
    return not inside and "zip()" not in str(error) and len(str(error)) > 20


def drawn(right, seed):
    wrong = [n for n in range(7) if n != right]
    return random.Random(seed).choice(wrong)


def takes(name, n):
    """Whether a length is not wrong after all: one value stands for all dimensions."""
    shaped = ("conv2d", "max_", "avg_pool2d", "fractional", "unfold", "fold", "ConstantPad2d")
    return (name, n) in ACCEPTED or (n == 1 and name.startswith(shaped))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_length_is_explained(name, seed):
    right, call = CALLS[name]
    n = drawn(right, seed)
    if takes(name, n):
        call(n)
        return
    with pytest.raises(Exception) as found:  # noqa: PT011  # of several classes
        call(n)
    assert explained(found.value), found.value


@pytest.mark.parametrize("n", [1, 3])
def test_averages_of_the_users_own_lists(n):
    update = optim.swa_utils.get_ema_multi_avg_fn()
    with pytest.raises(ValueError, match=f"the average has 2 tensors, the model {n}"):
        update(list(several(2)), list(several(n)), 0)


@pytest.mark.parametrize("hx", [5, "no", 1.0])
@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_a_state_that_is_no_tensor(make, hx):
    x = lt.ones(1, 2) if "Cell" in make.__name__ else lt.ones(3, 1, 2)
    with pytest.raises(TypeError, match=f"{make.__name__}: .* got {type(hx).__name__}"):
        make(2, 2)(x, hx)
