"""vmap beside PyTorch's: programs in both, and the catalogue's operators beside a loop."""

import warnings

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's test suite needs it")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.parity import oracle, vmapped

REFUSED = {  # operators of which some samples are refused, and why
    **dict.fromkeys(
        "masked_scatter masked_select unique unique_consecutive nonzero nonzero_static argwhere "
        "__getitem__ index_put to_sparse".split(),
        "the result's shape depends on values",
    ),
    **dict.fromkeys(
        "cov istft linspace/tensor_overload logspace/tensor_overload narrow tensor_split histogram "
        "histogramdd histc bincount nn.functional.one_hot nn.functional.embedding_bag "
        "nn.functional.ctc_loss repeat_interleave".split(),
        "values become Python's numbers",
    ),
    **dict.fromkeys("resize_ resize_as_".split(), "memory is of all samples"),
    **dict.fromkeys(
        "nn.functional.instance_norm nn.functional.batch_norm index_reduce/mean "
        "scatter_reduce/mean".split(),
        "what samples share would be written",
    ),
    **dict.fromkeys(
        "nn.functional.scaled_dot_product_attention "
        "nn.functional.multi_head_attention_forward".split(),
        "it draws",
    ),
}
PRESENT = []
for _name, _op in oracle.OPERATORS.items():
    if _name.split("/")[0] not in oracle.RANDOM:
        try:
            oracle.counterpart(_op.op)
        except oracle.Absent:
            continue
        PRESENT.append(_name)


@pytest.mark.parametrize("name", PRESENT)
def test_operators_of_the_catalogue_equal_a_loop(name):
    op = oracle.OPERATORS[name]
    function = oracle.counterpart(op.op)
    refused = 0
    for sample in vmapped.samples(op)[:40]:
        for which in ("first", "all"):
            try:
                vmapped.compare(function, sample, which)
            except vmapped.Refused:
                assert name in REFUSED, oracle.describe(sample)
                refused += 1
            except Exception as error:
                error.add_note(f"{which}: {oracle.describe(sample)}")
                raise
    assert bool(refused) == (name in REFUSED)


# Programs: f(framework, its vmap, tensors) in both


def _values(*shapes):
    random = np.random.default_rng(0)
    return [random.standard_normal(s) for s in shapes]


def _loss(t, w, b, x):
    return ((x @ w).tanh() + b).square().sum() * b.exp().mean()


PROGRAMS = {
    "dims": lambda t, f, x, y: f.vmap(lambda a, b: a @ b, (1, None), 1)(x, y),
    "negative dims": lambda t, f, x, y: f.vmap(lambda a: a.cumsum(0), -1, -1)(x),
    "nested": lambda t, f, x, y: f.vmap(lambda a: f.vmap(lambda b: (a * b).sum())(x))(x),
    "nested over other dims": lambda t, f, x, y: f.vmap(
        lambda a: f.vmap(lambda b: a.outer(b), 1, 2)(y), 0, 1
    )(x),
    "gradients of each sample": lambda t, f, x, y: f.vmap(
        f.grad(lambda w, a: _loss(t, w, y[0], a)), (None, 0)
    )(y, x),
    "of two arguments": lambda t, f, x, y: f.vmap(
        f.grad(lambda w, b, a: _loss(t, w, b, a), (0, 1)), (None, None, 0)
    )(y, y[0], x),
    "jacobians": lambda t, f, x, y: f.vmap(f.jacrev(lambda a: (a @ y).sin()))(x),
    "forward jacobians": lambda t, f, x, y: f.vmap(f.jacfwd(lambda a: (a @ y).sin()))(x),
    "hessians": lambda t, f, x, y: f.vmap(f.hessian(lambda a: (a @ y).sin().prod()))(x),
    "jacobian of a gradient": lambda t, f, x, y: f.jacrev(f.grad(lambda a: _loss(t, y, y[0], a)))(
        x[0]
    ),
    "gradient of a vmap of gradients": lambda t, f, x, y: f.grad(
        lambda w: f.vmap(f.grad(lambda v, a: _loss(t, v, y[0], a)), (None, 0))(w, x).square().sum()
    )(y),
    "products": lambda t, f, x, y: f.vmap(f.vjp(lambda a: (a @ y).sin(), x)[1])(
        t.ones((2, x.shape[0], y.shape[1]), dtype=x.dtype)
    )[0],
    "forward products": lambda t, f, x, y: f.vmap(
        lambda v: f.jvp(lambda a: (a @ y).sin(), (x,), (v,))[1]
    )(t.stack([x, x * 2])),
    "a tree": lambda t, f, x, y: f.vmap(
        lambda d: {"s": d["a"].sum(), "p": (d["a"] * d["b"],)}, ({"a": 0, "b": None},)
    )({"a": x, "b": y[0, :1]})["p"][0],
    "chunks": lambda t, f, x, y: f.vmap(lambda a: a.sort()[0], chunk_size=2)(x),
    "indices": lambda t, f, x, y: f.vmap(lambda a, i: (a[i], y[i]))(x, t.tensor([2, 0, 1, 1, 0]))[
        1
    ],
    "writes": lambda t, f, x, y: f.vmap(lambda a: t.zeros_like(a).copy_(a).mul_(a).add_(1))(x),
    "masks": lambda t, f, x, y: f.vmap(lambda a: t.where(a > 0, a, -2 * a).max())(x),
    "keyword arguments": lambda t, f, x, y: f.vmap(lambda a, b: a + b)(x, b=x),
    "norms": lambda t, f, x, y: f.vmap(
        lambda a: t.nn.functional.layer_norm(a, (3,)) + a.softmax(-1) + a.std() + a.norm()
    )(x),
    "convolutions of each sample": lambda t, f, x, y: f.vmap(
        f.grad(lambda w, a: t.nn.functional.conv1d(a.view(1, 1, 3), w).square().sum()), (None, 0)
    )(y[:, :2].reshape(3, 1, 2), x),
    "convolutions with a weight each": lambda t, f, x, y: f.vmap(
        lambda w, a: t.nn.functional.conv1d(a.view(1, 1, 3), w.view(1, 1, 3), padding=1)
    )(x, x * 2),
    "batches of vectors": lambda t, f, x, y: _batched_vectors(t, x),
}


def _batched_vectors(t, x):
    leaf = x.clone().requires_grad_()
    out = leaf.sin() * leaf[0]
    vectors = t.stack([t.ones_like(x), x])
    return t.autograd.grad(out, leaf, vectors, is_grads_batched=True)[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_same(name):
    x, y = _values((5, 3), (3, 4))
    if name == "dims":
        x = np.ascontiguousarray(x.T)
    theirs = PROGRAMS[name](torch, torch.func, torch.tensor(x), torch.tensor(y))
    ours = PROGRAMS[name](lt, lt.func, lt.tensor(x), lt.tensor(y))
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    ours = ours if isinstance(ours, tuple) else (ours,)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-10)


REFUSALS = {
    "a value": lambda t, v, x: v(lambda a: a.sum().item())(x),
    "a branch": lambda t, v, x: v(lambda a: a if a.sum() > 0 else -a)(x),
    "a mask": lambda t, v, x: v(lambda a: a[a > 0])(x),
    "a draw": lambda t, v, x: v(lambda a: a + t.rand(3))(x),
    "a write": lambda t, v, x: v(lambda a: t.zeros(3).add_(a))(x),
    "a leaf": lambda t, v, x: v(lambda a: a.requires_grad_())(x),
    "a number": lambda t, v, x: v(lambda a: 3)(x),
    "nothing": lambda t, v, x: v(lambda: 3)(),
    "sizes": lambda t, v, x: v(lambda a, b: a)(x, x[:2]),
    "a dim": lambda t, v, x: v(lambda a: a, 5)(x),
    "no dims": lambda t, v, x: v(lambda a: a, None)(x),
    "dims unlike": lambda t, v, x: v(lambda a: a, (0, 1))(x),
    "out dims unlike": lambda t, v, x: v(lambda a: (a, a), 0, (0, 1, 2))(x),
    "None for what differs": lambda t, v, x: v(lambda a: a, 0, None)(x),
    "a mode": lambda t, v, x: v(lambda a: a, randomness="no")(x),
    "a chunk": lambda t, v, x: v(lambda a: a, chunk_size=0)(x),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_of_the_same_type(name):
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        REFUSALS[name](torch, torch.vmap, torch.ones(4, 3))
    with pytest.raises((RuntimeError, ValueError)) as ours:
        REFUSALS[name](lt, lt.vmap, lt.ones(4, 3))
    assert ours.type is theirs.type


def test_signatures_are_the_same():
    import inspect

    for name in ("vmap", "stack_module_state", "linearize", "vjp"):
        theirs = inspect.signature(getattr(torch.func, name)).parameters
        ours = inspect.signature(getattr(lt.func, name)).parameters
        assert [(n, p.kind, p.default) for n, p in ours.items()] == [
            (n, p.kind, p.default) for n, p in theirs.items()
        ]
