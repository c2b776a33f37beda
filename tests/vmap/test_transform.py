"""vmap: dims in and out, trees, nesting, chunks, captured tensors, writes, and what it refuses."""

import copy

import pytest

import lowtide as lt
from lowtide.framework.vmap import mapping
from lowtide.func import grad, jacfwd, jacrev, vmap
from lowtide.nn import functional as F


@pytest.fixture
def x():
    lt.manual_seed(0)
    return lt.randn(4, 3, dtype=lt.float64)


def loop(f, *args):
    return lt.stack([f(*[a[k] for a in args]) for k in range(len(args[0]))])


def equal(a, b, tolerance=1e-12):
    assert tuple(a.shape) == tuple(b.shape)
    assert a.numel() == 0 or (a - b).abs().max().item() <= tolerance


# Dims and trees


def test_dims_in_and_out_count_from_both_ends(x):
    equal(vmap(lambda a: a * 2, -1, -1)(x), x * 2)
    equal(vmap(lambda a: a * 2, 1)(x), x.T * 2)
    assert vmap(lambda a: a.outer(a), 0, 2)(x).shape == (3, 3, 4)


def test_trees_of_inputs_and_outputs(x):
    def f(d, pair):
        return {"sum": d["a"] + d["b"], "rest": (pair[0], [pair[1]])}

    dims = ({"a": 0, "b": None}, (1, None))
    out = vmap(f, dims, {"sum": 1, "rest": (0, [0])})({"a": x, "b": x[0]}, (x.T, x[1]))
    equal(out["sum"], (x + x[0]).T)
    equal(out["rest"][0], x)
    equal(out["rest"][1][0], x[1].expand(4, 3))


def test_keyword_arguments_are_shared(x):
    equal(vmap(lambda a, b: a + b.sum())(x, b=x), x + x.sum())


def test_chunks_give_the_same(x):
    f = vmap(lambda a: (a.sin(), a.sum()), out_dims=(1, 0), chunk_size=3)
    equal(f(x)[0], x.sin().T)
    equal(f(x)[1], x.sum(1))


def test_an_empty_batch_has_empty_results():
    out = vmap(lambda a: (a.sin().sum(), a @ lt.ones(3, 2)))(lt.ones(0, 3))
    assert [tuple(o.shape) for o in out] == [(0,), (0, 2)]


def test_none_returns_what_samples_share(x):
    w = lt.ones(2)
    assert vmap(lambda a: (a, w), out_dims=(0, None))(x)[1] is w


@pytest.mark.parametrize("depth", [2, 3])
def test_nested(depth):
    sides = [lt.arange(n, dtype=lt.float64) + 1 for n in (2, 3, 4)[:depth]]

    def product(*values):
        out = values[0]
        for v in values[1:]:
            out = out * v
        return out

    f = product
    for k in range(depth):
        f = vmap(f, tuple(0 if j == depth - 1 - k else None for j in range(depth)))
    equal(f(*sides), lt.einsum("i,j->ij" if depth == 2 else "i,j,k->ijk", *sides))


def test_inner_batches_of_shared_and_outer_tensors(x):
    y = lt.randn(5, 3, dtype=lt.float64)
    dots = vmap(lambda a: vmap(lambda b: lt.dot(a, b))(y))(x)
    equal(dots, x @ y.T)
    dots = vmap(lambda a: vmap(lambda b: (a * b).sum(), 1, 0)(y.T))(x)
    equal(dots, x @ y.T)


def test_a_sample_looks_like_a_tensor(x):
    def f(a):
        assert isinstance(a, lt.Tensor)
        assert (a.shape, a.ndim, len(a), a.numel(), a.nbytes) == ((3,), 1, 3, 3, 24)
        assert (a.dtype, a.device.type, a.stride(), a.is_contiguous()) == (
            lt.float64,
            "cpu",
            (1,),
            True,
        )
        assert "BatchedTensor" in repr(a)
        return copy.deepcopy(a) + a.detach() - a.data

    equal(vmap(f)(x), x)


# Numbers of a sample have the dtype that they have alone


def test_promotion_is_that_of_one_sample():
    narrow, wide = lt.ones(4, 3), lt.ones(4, dtype=lt.float64)
    assert vmap(lambda a, n: a * n)(narrow, wide).dtype is lt.float32
    assert vmap(lambda a, n: a[0] * n)(narrow, wide).dtype is lt.float64


def test_a_view_of_a_sample_is_one_of_all(x):
    def f(a):
        return a.clone().t().reshape(-1).view(3, 4)

    y = lt.randn(2, 4, 3)
    equal(vmap(f)(y), loop(f, y))


# Captured tensors


def test_gradients_reach_captured_and_mapped_tensors(x):
    x.requires_grad_()
    w = lt.randn(3, 3, dtype=lt.float64, requires_grad=True)
    b = lt.randn(3, dtype=lt.float64, requires_grad=True)

    def f(a):
        return (a @ w + b).tanh() * b

    expected = lt.autograd.grad((loop(f, x) ** 2).sum(), [x, w, b])
    found = lt.autograd.grad((vmap(f)(x) ** 2).sum(), [x, w, b])
    for g, e in zip(found, expected, strict=True):
        equal(g, e)


def test_without_recording_nothing_is_recorded(x):
    w = lt.ones(3, dtype=lt.float64, requires_grad=True)
    with lt.no_grad():
        assert not vmap(lambda a: a * w)(x).requires_grad
    assert vmap(lambda a: a * w)(x).requires_grad


def test_autograd_grad_inside_is_of_each_sample(x):
    w = lt.randn(3, dtype=lt.float64, requires_grad=True)
    found = vmap(lambda a: lt.autograd.grad((a * w * w).sum(), w)[0])(x)
    equal(found, 2 * x * w.detach())


# Writes


def test_writes_into_a_samples_own_memory(x):
    def f(a):
        b = a.clone().add_(1).mul_(a)
        c = lt.zeros_like(a)
        c[0] = b[1]
        c[1:] = 2 * b[:2]
        d = a.new_zeros(2).copy_(b[:2])
        view = c[1:]
        view.mul_(3.0)
        c[c > 0.5] = -1.0
        return lt.cat([b, c, d])

    equal(vmap(f)(x), loop(f, x))


def test_writes_through_views_have_gradients(x):
    w = lt.randn(3, dtype=lt.float64, requires_grad=True)

    def f(a):
        b = a * w
        c = b[1:]
        c.mul_(w[1:])
        b[0].add_(w[2])
        return b

    expected = lt.autograd.grad((loop(f, x) ** 2).sum(), w)[0]
    equal(lt.autograd.grad((vmap(f)(x) ** 2).sum(), w)[0], expected)


def test_the_argument_itself_may_be_written(x):
    y = x.clone()
    vmap(lambda a: a.mul_(2))(y)
    equal(y, 2 * x)


def test_a_write_into_what_samples_share_is_refused_before_it_happens(x):
    shared = lt.zeros(3, dtype=lt.float64)
    with pytest.raises(RuntimeError, match=r"vmap: add_ is not possible.*out-of-place"):
        vmap(lambda a: shared.add_(a))(x)
    assert shared.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match=r"vmap: copy_ is not possible"):
        vmap(lambda a: shared.copy_(a))(x)
    running = lt.nn.BatchNorm1d(3).double()
    with pytest.raises(RuntimeError, match="is not possible"):
        vmap(running)(lt.ones(2, 5, 3, dtype=lt.float64))
    assert running.running_mean.tolist() == [0, 0, 0]


# What is refused


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (lambda a: a.sum().item(), r"calling .item\(\).*lowtide.where"),
        (lambda a: a if a.sum() > 0 else -a, "data-dependent control flow"),
        (lambda a: lt.zeros(int(a.sum())), r"int\(\)"),
        (lambda a: a.tolist(), ".tolist()"),
        (lambda a: a.numpy(), r".numpy\(\) is not possible inside vmap"),
        (lambda a: a.data_ptr(), ".data_ptr()"),
        (lambda a: a.array, ".array"),
        (lambda a: a[a > 0], "dynamic shape"),
        (lambda a: a.nonzero(), "dynamic shape"),
        (lambda a: a.unique(), "dynamic shape"),
        (lambda a: a.requires_grad_(), "lowtide.func.grad"),
        (lambda a: a.sum().backward(), "lowtide.func.grad"),
        (lambda a: a + lt.rand(3), "randomness error mode"),
        (lambda a: F.dropout(a), "randomness error mode"),
        (lambda a: a.as_strided((4,), (1,)), "out of bounds for a sample of 3 elements"),
        (lambda a: a.t_(), "not possible inside vmap|no setter|inside vmap"),
    ],
)
def test_what_one_value_for_all_cannot_be(x, f, match):
    with pytest.raises((RuntimeError, AttributeError), match=match):
        vmap(f)(x)


def test_dropout_of_nothing_draws_nothing(x):
    equal(vmap(lambda a: F.dropout(a, 0.0))(x), x)


def test_a_tensor_that_left_is_refused(x):
    kept = []
    vmap(lambda a: (kept.append(a), a)[1])(x)
    with pytest.raises(RuntimeError, match="left the vmap"):
        kept[0] + 1


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda x: vmap(lambda: 1)(), ValueError, "got no inputs"),
        (lambda x: vmap(lambda a, b: a)(x, x[:2]), ValueError, "same size in the mapped"),
        (lambda x: vmap(lambda a: a)(x[0, 0]), ValueError, "dimensionality 0"),
        (lambda x: vmap(lambda a, b: a, (0,))(x, x), ValueError, "not compatible"),
        (lambda x: vmap(lambda a: a, None)(x), ValueError, "expected `in_dims`"),
        (lambda x: vmap(lambda a: a, (None,))(x), ValueError, "at least one Tensor"),
        (lambda x: vmap(lambda a: a, (0.5,))(x), ValueError, "must be either an integer"),
        (lambda x: vmap(lambda a, b: a)(x, 3), ValueError, "non-Tensor arguments"),
        (lambda x: vmap(lambda a: 3)(x), ValueError, "must only return Tensors"),
        (lambda x: vmap(lambda a: (a, a), 0, (0, 1, 2))(x), ValueError, "out_dims is not"),
        (lambda x: vmap(lambda a: a, out_dims=None)(x), ValueError, "out_dim is None"),
        (lambda x: vmap(lambda a: a, out_dims=5)(x), IndexError, "out of range"),
        (lambda x: vmap(lambda a: a, randomness="often"), RuntimeError, "Only allowed"),
        (lambda x: vmap(lambda a: a, chunk_size=0), ValueError, "greater than 0"),
        (lambda x: jacrev(lambda a: a, chunk_size=0), ValueError, "greater than 0"),
        (lambda x: jacfwd(lambda a: a, randomness="no"), RuntimeError, "randomness"),
    ],
)
def test_arguments_that_do_not_fit(x, make, error, match):
    with pytest.raises(error, match=match):
        make(x)


def test_an_error_inside_leaves_nothing_behind(x):
    with pytest.raises(ZeroDivisionError):
        vmap(lambda a: 1 / 0)(x)
    assert lt.rand(3).shape == (3,)  # drawing is allowed again
    assert type(lt.zeros_like(x)) is lt.Tensor


def test_shapes_are_checked_as_of_one_sample():
    a = lt.ones(3, 3)
    with pytest.raises(RuntimeError, match=r"\(3,\)|at least 2"):
        vmap(lt.linalg.inv)(a)
    with pytest.raises(RuntimeError):
        vmap(lambda v: v @ lt.ones(4))(a)


def test_an_op_without_a_rule_is_mapped_and_warns_once(x, monkeypatch):
    monkeypatch.setattr(mapping, "_told", set())
    f = vmap(grad(lambda a: a.median() * 2))
    with pytest.warns(UserWarning, match="performance drop.*batching rule for median"):
        found = f(x)
    equal(found, loop(grad(lambda a: a.median() * 2), x))
    f(x)  # a second warning would be an error here


@pytest.mark.parametrize("exponent", [-2, -1.5, -1, 0, 0.5, 2, 1 - 2j])
@pytest.mark.parametrize("dtype", [lt.float64, lt.complex128])
def test_a_power_of_a_number_is_that_of_each_sample(exponent, dtype):
    x = lt.randn(4, 3, dtype=dtype) + 2
    assert lt.allclose(vmap(lambda a: a**exponent)(x), x**exponent, rtol=1e-12, equal_nan=True)


def test_a_negative_power_of_integers_is_refused():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        vmap(lambda a: a**-1)(lt.tensor([1, 2]))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "place", [((2, 2), (1, 1)), ((2,), (2,), 1), ((3, 2), (1, 0)), ((0,), (9,), 5)]
)
def test_a_strided_view_of_each_sample(dim, place):
    x = lt.randn(3, 4, dtype=lt.float64).movedim(0, dim).contiguous().movedim(dim, 0)
    samples = [s.clone() for s in x]
    if dim:  # a sample's elements lie three apart
        samples = [s.expand(3, 4).mT.contiguous()[:, 0] for s in x]
    size, stride, *start = place
    stride = tuple(s * (3 if dim else 1) for s in stride)
    start = [s * (3 if dim else 1) for s in start]

    def f(a):
        return a.as_strided(size, stride, *start) * 2

    expected = [f(s) for s in samples]
    assert lt.equal(vmap(f)(x), lt.stack(expected))
    found = vmap(grad(lambda a: f(a).square().sum()))(x)
    assert lt.allclose(found, lt.stack([grad(lambda a: f(a).square().sum())(s) for s in samples]))
