"""Shaping, joining and padding against PyTorch: values, gradients, second ones, view-ness."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def pad(m, *args, **kwargs):
    return lt.pad(*args, **kwargs) if m is lt else torch.nn.functional.pad(*args, **kwargs)


def _rot90(k):
    return lambda m, x: m.rot90(x, k, (0, 1))


# name: (function of the module and a tensor, shapes to try)
ANY = ((3, 4), (2, 3, 4), (5,), (), (0, 3), (1, 3, 1))
MATRIX = ((3, 4), (2, 3, 4), (1, 1), (0, 3))
ONE = {
    "view": (lambda m, x: x.view(-1), ANY[:4]),
    "view several": (lambda m, x: x.view(2, -1, 3), ((3, 4), (2, 3, 4))),
    "view of a permutation": (lambda m, x: x.permute(1, 0, 2).view(3, 2, 2, 2), ((2, 3, 4),)),
    "view_as": (lambda m, x: x.view_as(x.reshape(-1)), ANY[:4]),
    "reshape": (lambda m, x: x.reshape(-1), ANY[:4]),
    "reshape that copies": (lambda m, x: x.transpose(0, -1).reshape(-1), ((3, 4), (2, 3, 4))),
    "reshape to 0": (lambda m, x: x.reshape(3, 0, 2), ((0, 3),)),
    "flatten": (lambda m, x: x.flatten(), ANY),
    "flatten some": (lambda m, x: x.flatten(1, 2), ((2, 3, 4), (2, 1, 2, 3))),
    "unflatten": (lambda m, x: x.unflatten(-1, (2, -1)), ((3, 4), (4,))),
    "ravel": (lambda m, x: m.ravel(x), ANY),
    "squeeze": (lambda m, x: x.squeeze(), ANY),
    "squeeze one": (lambda m, x: x.squeeze(0), ANY[:4] + ANY[5:]),
    "squeeze several": (lambda m, x: x.squeeze((0, -1)), ANY[:2] + ANY[5:]),
    "unsqueeze": (lambda m, x: x.unsqueeze(-1), ANY),
    "unsqueeze first": (lambda m, x: x.unsqueeze(0), ANY),
    "transpose": (lambda m, x: x.transpose(0, -1), ANY),
    "swapaxes": (lambda m, x: m.swapaxes(x, 0, 1), MATRIX),
    "swapdims": (lambda m, x: x.swapdims(0, 1), MATRIX),
    "t": (lambda m, x: x.t(), ((3, 4), (3,), ())),
    "T": (lambda m, x: x.T, ((3, 4), (0, 3))),
    "mT": (lambda m, x: x.mT, MATRIX),
    "H": (lambda m, x: x.H, ((3, 4),)),
    "mH": (lambda m, x: x.mH, MATRIX),
    "adjoint": (lambda m, x: x.adjoint(), MATRIX),
    "permute": (lambda m, x: x.permute(2, 0, 1), ((2, 3, 4),)),
    "permute by negative dims": (lambda m, x: m.permute(x, (-1, 0)), ((3, 4), (0, 3))),
    "expand": (lambda m, x: x.expand(2, -1, 4), ((3, 4), (3, 1))),
    "expand a scalar": (lambda m, x: x.expand(2, 3), ((), (1,), (3,))),
    "expand_as": (lambda m, x: x.expand_as(x.unsqueeze(0).repeat(2, 1, 1)), ((3, 4),)),
    "broadcast_to": (lambda m, x: m.broadcast_to(x, (2, 3, 4)), ((3, 1), (3, 4), ())),
    "narrow": (lambda m, x: x.narrow(-1, 1, 2), ((3, 4), (2, 3, 4), (5,))),
    "narrow from the end": (lambda m, x: m.narrow(x, 0, -2, 1), ((3, 4), (5,))),
    "select": (lambda m, x: x.select(-1, -2), ((3, 4), (2, 3, 4), (5,))),
    "split": (lambda m, x: x.split(2, -1), ((3, 4), (2, 3, 4), (5,), (3, 0))),
    "split by list": (lambda m, x: m.split(x, [1, 0, 3], 1), ((3, 4),)),
    "split_with_sizes": (lambda m, x: x.split_with_sizes((1, 2)), ((3, 4), (3,))),
    "chunk": (lambda m, x: x.chunk(3), ((3, 4), (7,), (2, 3), (0, 3))),
    "tensor_split": (lambda m, x: x.tensor_split(3, -1), ((3, 4), (5,), (2, 2))),
    "tensor_split at": (lambda m, x: m.tensor_split(x, (1, 3, 9)), ((3, 4), (5,))),
    "hsplit": (lambda m, x: m.hsplit(x, 2), ((3, 4), (4,))),
    "vsplit": (lambda m, x: m.vsplit(x, (1,)), ((3, 4),)),
    "dsplit": (lambda m, x: m.dsplit(x, 2), ((2, 3, 4),)),
    "unbind": (lambda m, x: x.unbind(-1), ((3, 4), (2, 3, 4), (5,))),
    "diagonal": (lambda m, x: x.diagonal(), MATRIX),
    "diagonal above": (lambda m, x: x.diagonal(1, -1, 0), MATRIX),
    "diagonal below": (lambda m, x: m.diagonal(x, -2), MATRIX),
    "diagonal outside": (lambda m, x: x.diagonal(9), MATRIX),
    "diag_embed": (lambda m, x: m.diag_embed(x), ((3, 4), (5,), (2, 3, 4))),
    "diag_embed elsewhere": (lambda m, x: x.diag_embed(-1, 0, 2), ((3, 4), (2, 3, 4))),
    "diag": (lambda m, x: x.diag(1), ((3, 4), (5,))),
    "movedim": (lambda m, x: x.movedim(0, -1), ANY[:3]),
    "moveaxis": (lambda m, x: m.moveaxis(x, (0, 1), (2, 0)), ((2, 3, 4),)),
    "as_strided": (lambda m, x: x.as_strided((2, 2), (1, 2), 1), ((3, 4), (5,))),
    "as_strided with overlap": (lambda m, x: m.as_strided(x, (3, 2), (1, 1)), ((3, 4), (5,))),
    "as_strided of a view": (
        lambda m, x: x.transpose(0, 1)[1:].as_strided((2, 2), (2, 3), 2),
        ((3, 4),),
    ),
    "unfold": (lambda m, x: x.unfold(0, 2, 1), ((3, 4), (5,))),
    "unfold with a step": (lambda m, x: x.unfold(-1, 3, 2), ((3, 4), (2, 3, 7))),
    "contiguous": (lambda m, x: x.transpose(0, -1).contiguous(), ANY),
    "tile": (lambda m, x: m.tile(x, (2, 3)), ((3, 4), (2, 3, 4), (3,), ())),
    "repeat": (lambda m, x: x.repeat(2, 1, 3), ((3, 4), (2, 3, 4), (3,), ())),
    "repeat_interleave": (lambda m, x: x.repeat_interleave(2), ANY),
    "repeat_interleave a dim": (lambda m, x: m.repeat_interleave(x, 3, 1), MATRIX),
    "repeat_interleave by counts": (
        lambda m, x: m.repeat_interleave(x, m.tensor([2, 0, 1]), 0),
        ((3, 4), (3,)),
    ),
    "roll": (lambda m, x: x.roll(2), ANY),
    "roll dims": (lambda m, x: m.roll(x, (1, -2), (0, 1)), MATRIX),
    "flip": (lambda m, x: x.flip(0, -1), MATRIX[:3]),
    "fliplr": (lambda m, x: m.fliplr(x), MATRIX),
    "flipud": (lambda m, x: m.flipud(x), MATRIX),
    **{f"rot90 {k}": (_rot90(k), MATRIX) for k in (-1, 0, 1, 2, 3)},
    "atleast_1d": (lambda m, x: m.atleast_1d(x), ANY),
    "atleast_2d": (lambda m, x: m.atleast_2d(x), ANY),
    "atleast_3d": (lambda m, x: m.atleast_3d(x), ANY),
    "pad": (lambda m, x: pad(m, x, (1, 2)), ANY[:3]),
    "pad with value": (lambda m, x: pad(m, x, (1, 0, 2, 1), value=1.5), MATRIX),
    "pad that crops": (lambda m, x: pad(m, x, (-1, 2, 1, -1)), MATRIX[:2]),
    "pad reflect": (lambda m, x: pad(m, x, (2, 1), mode="reflect"), ((3, 4), (2, 3, 4))),
    "pad reflect 2d": (lambda m, x: pad(m, x, (2, 1, 1, 1), mode="reflect"), ((2, 3, 4),)),
    "pad replicate": (lambda m, x: pad(m, x, (2, 5), mode="replicate"), ((3, 4), (2, 3, 4))),
    "pad circular": (lambda m, x: pad(m, x, (2, 4), mode="circular"), ((3, 4), (2, 3, 4))),
}
ONE_CASES = [(name, shape) for name, (_, shapes) in ONE.items() for shape in shapes]

SEVERAL = {
    "cat": (lambda m, a, b: m.cat([a, b, a]), ((2, 3), (4, 3))),
    "cat along 1": (lambda m, a, b: m.concat((a, b), -1), ((2, 3), (2, 1))),
    "cat with an empty vector": (lambda m, a, b: m.concatenate((a, b)), ((2, 3), (0,))),
    "stack": (lambda m, a, b: m.stack([a, b, b], -1), ((2, 3), (2, 3))),
    "stack scalars": (lambda m, a, b: m.stack([a, b]), ((), ())),
    "hstack": (lambda m, a, b: m.hstack([a, b]), ((2, 3), (2, 1))),
    "hstack vectors": (lambda m, a, b: m.hstack([a, b]), ((2,), ())),
    "vstack": (lambda m, a, b: m.vstack([a, b]), ((2, 3), (3,))),
    "row_stack": (lambda m, a, b: m.row_stack([a, b]), ((3,), (3,))),
    "dstack": (lambda m, a, b: m.dstack([a, b]), ((2, 3), (2, 3))),
    "column_stack": (lambda m, a, b: m.column_stack([a, b]), ((3,), (3, 2))),
    "block_diag": (lambda m, a, b: m.block_diag(a, b), ((2, 3), (2,))),
    "meshgrid": (lambda m, a, b: m.meshgrid(a, b, indexing="ij"), ((2,), (3,))),
    "meshgrid xy": (lambda m, a, b: m.meshgrid(a, b, indexing="xy"), ((2,), (3,))),
    "broadcast_tensors": (lambda m, a, b: m.broadcast_tensors(a, b), ((2, 1), (3,))),
    "cartesian_prod": (lambda m, a, b: m.cartesian_prod(a, b), ((2,), (3,))),
}


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def as_list(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def derivatives(gradient, outputs, inputs, weights):
    """First gradients of weighted cubes, and the gradients of their weighted sum."""
    cubes = [o * o * o for o in outputs]
    first = gradient(cubes, inputs, weights, create_graph=True, allow_unused=True)
    total = sum((g * g).sum() for g in first if g is not None)
    second = gradient(total, inputs, allow_unused=True)
    return [g for g in (*first, *second) if g is not None]


def compare(f, *shapes):
    arrays = [numbers(s, k) for k, s in enumerate(shapes)]
    ours = [lt.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    results, expected = as_list(f(lt, *ours)), as_list(f(torch, *theirs))
    assert [tuple(r.shape) for r in results] == [tuple(e.shape) for e in expected]
    for r, e in zip(results, expected, strict=True):
        np.testing.assert_array_equal(r.detach().numpy(), e.detach().numpy())
    weights = [numbers(tuple(e.shape), 9 + k) for k, e in enumerate(expected)]
    got = derivatives(grad, results, ours, [lt.tensor(w) for w in weights])
    want = derivatives(torch.autograd.grad, expected, theirs, [torch.tensor(w) for w in weights])
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "shape"), ONE_CASES, ids=[f"{n} {s}" for n, s in ONE_CASES])
def test_values_and_two_gradients_agree(name, shape):
    compare(ONE[name][0], shape)


@pytest.mark.parametrize("name", SEVERAL)
def test_values_and_two_gradients_of_joins_agree(name):
    f, shapes = SEVERAL[name]
    compare(f, *shapes)


def facts(f, m, x):
    """Of each result: is it a view, does it start in x's memory, where, is it contiguous."""
    found = []
    for r in as_list(f(m, x)):
        start = x.data_ptr()
        offset = (r.data_ptr() - start) // x.element_size() if r.numel() else 0
        shares = 0 <= offset < max(x.numel(), 1) and r.numel() > 0
        same = r is x
        found.append(
            (same, shares, offset if shares else None, not same and r._base is x, r.is_contiguous())
        )
    return found


@pytest.mark.parametrize(("name", "shape"), ONE_CASES, ids=[f"{n} {s}" for n, s in ONE_CASES])
def test_what_is_a_view_agrees(name, shape):
    f = ONE[name][0]
    array = numbers(shape)
    assert facts(f, lt, lt.tensor(array)) == facts(f, torch, torch.tensor(array))


ERRORS = {
    "view": lambda m, x: x.t().view(12),
    "view size": lambda m, x: x.view(5),
    "view two": lambda m, x: x.view(-1, -1),
    "reshape": lambda m, x: x.reshape(7, -1),
    "permute": lambda m, x: x.permute(0),
    "permute twice": lambda m, x: x.permute(0, 0),
    "transpose": lambda m, x: x.transpose(0, 2),
    "expand": lambda m, x: x.expand(4, 4),
    "expand fewer": lambda m, x: x.expand(4),
    "expand new": lambda m, x: x.expand(-1, 3, 4),
    "narrow": lambda m, x: x.narrow(0, 1, 5),
    "narrow start": lambda m, x: x.narrow(0, 5, 1),
    "select": lambda m, x: x.select(0, 3),
    "split": lambda m, x: x.split([1, 1]),
    "split size": lambda m, x: x.split(0),
    "chunk": lambda m, x: x.chunk(0),
    "unbind": lambda m, x: x.sum().unbind(),
    "squeeze": lambda m, x: x.squeeze(4),
    "unsqueeze": lambda m, x: x.unsqueeze(4),
    "flatten": lambda m, x: x.flatten(1, 0),
    "diagonal": lambda m, x: x.diagonal(0, 1, 1),
    "unfold": lambda m, x: x.unfold(0, 9, 1),
    "as_strided": lambda m, x: x.as_strided((9, 9), (9, 1)),
    "cat": lambda m, x: m.cat([x, x[:, :2]]),
    "cat none": lambda m, x: m.cat([]),
    "cat scalars": lambda m, x: m.cat([x.sum(), x.sum()]),
    "stack": lambda m, x: m.stack([x, x[:2]]),
    "repeat": lambda m, x: x.repeat(2),
    "roll": lambda m, x: x.roll((1, 2), 0),
    "mT": lambda m, x: x[0].mT,
    "t": lambda m, x: x.unsqueeze(0).t(),
    "pad odd": lambda m, x: pad(m, x, (1,)),
    "pad many": lambda m, x: pad(m, x, (1, 1) * 3),
    "pad reflect": lambda m, x: pad(m, x, (9, 9), mode="reflect"),
    "pad mode": lambda m, x: pad(m, x, (1, 1), mode="nearest"),
    "view dtype": lambda m, x: x[:, :3].view(m.complex128) if m is lt else x[:, :3].view(m.cdouble),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_types_agree(name):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - the type is the subject
        ERRORS[name](torch, torch.ones(3, 4))
    with pytest.raises(theirs.type) as ours:
        ERRORS[name](lt, lt.tensor(np.ones((3, 4), np.float32)))
    assert ours.type is theirs.type


@pytest.mark.parametrize("name", ["squeeze_", "unsqueeze_", "transpose_", "swapaxes_", "t_"])
def test_metadata_changes_in_place_keep_history(name):
    args = {"unsqueeze_": (1,), "transpose_": (0, 1), "swapaxes_": (0, 1)}.get(name, ())
    array = numbers((1, 3))
    found = []
    for m, g in ((lt, grad), (torch, torch.autograd.grad)):
        x = m.tensor(array, requires_grad=True)
        y = x * 2
        before = y.view(-1)
        assert getattr(y, name)(*args) is y
        before.mul_(3)
        y.add_(1)
        (gx,) = g((y * y).sum() + before.sum(), [x])
        found.append((tuple(y.shape), y.tolist(), gx.tolist()))
    assert found[0] == found[1]


def test_view_as_another_type_agrees():
    array = numbers((3, 4)).astype(np.float32)
    for name in ("int32", "float64", "uint8", "int16"):
        ours = lt.tensor(array).view(getattr(lt, name))
        theirs = torch.tensor(array).view(getattr(torch, name))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        assert tuple(ours.shape) == tuple(theirs.shape)
