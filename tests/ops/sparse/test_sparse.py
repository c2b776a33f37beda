"""Sparse tensors: bytes, refusals, gradients of any order, regions, hooks, invariants."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework import testing
from lowtide.framework.ops.registry import OPS
from lowtide.utils.checkpoint import checkpoint

F = nn.functional
INDICES = [[0, 1, 1, 0], [2, 0, 2, 2]]


def made(values=(1.0, 2.0, -3.0, 4.0), **options):
    return lt.sparse_coo_tensor(INDICES, lt.tensor(values, dtype=lt.float64), (2, 3), **options)


def test_each_byte_of_a_sparse_gradient_is_in_the_ledger():
    rows, width, looked_up = 1000, 16, 50
    w = lt.ones(rows, width, requires_grad=True)
    index = lt.arange(looked_up)
    before = lt.memory_allocated()
    F.embedding(index, w, sparse=True).sum().backward()
    assert lt.memory_allocated() - before == looked_up * (8 + width * 4)
    assert w.grad.nbytes == looked_up * (8 + width * 4)
    assert lt.memory_stats()["by_role"]["gradient"] >= looked_up * (8 + width * 4)
    w.grad = None
    assert lt.memory_allocated() == before


def test_a_step_of_a_large_table_has_an_exact_peak():
    rows, width, n = 100_000, 8, 64
    layer = nn.Embedding(rows, width, sparse=True, device="meta")
    optimizer = lt.optim.SGD(layer.parameters(), lr=0.1)
    index = lt.zeros(n, dtype=lt.int64, device="meta")

    def peak():
        optimizer.zero_grad()
        base = lt.memory_allocated("meta")
        lt.reset_peak_memory_stats("meta")
        layer(index).sum().backward()
        return lt.max_memory_allocated("meta") - base

    found = n * width * 4
    # The rows that were looked up and their sum; the gradient (rows of one number, expanded, which
    # are copied) and the indices.
    assert peak() <= 2 * found + n * 8 + 8
    assert layer.weight.grad._nnz() == n
    assert lt.memory_allocated("meta") < rows * width * 4 + found + n * 8 + 8 + n * 8 + 8


def test_a_hybrid_gradient_is_taken_over_without_a_copy():
    w = lt.ones(100, 8, requires_grad=True)
    index = lt.arange(10)
    out = F.embedding(index, w, sparse=True)
    g = lt.ones(10, 8)
    before = lt.memory_allocated()
    out.backward(g)
    assert lt.memory_allocated() - before == 10 * 8 * 4 + 10 * 8  # both are the user's: copies
    g.fill_(7.0)
    index.fill_(0)
    np.testing.assert_array_equal(w.grad.to_dense()[:10], np.ones((10, 8)))


# No op computes with a sparse tensor as if it were dense


def sparse_samples():
    for name, op in sorted(OPS.items()):
        if op.samples is None:
            continue
        for inputs, attributes in testing.samples(op, testing.Make()):
            for k, x in enumerate(inputs):
                if isinstance(x, lt.Tensor) and x.ndim and x.numel():
                    yield name, inputs, attributes, k
                    break


def test_every_op_refuses_a_sparse_operand_or_computes_what_it_means():
    taken = set()
    for name, inputs, attributes, k in sparse_samples():
        op = OPS[name]
        dense = list(testing.place(inputs, "cpu", op))
        dense = [x.detach() if isinstance(x, lt.Tensor) else x for x in dense]
        mixed = list(dense)
        mixed[k] = mixed[k].to_sparse()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = testing.call(op, mixed, attributes)
            except (NotImplementedError, RuntimeError) as error:
                assert "sparse" in str(error) or "Sparse" in str(error), (name, str(error))
                continue
            expected = testing.call(op, dense, attributes)
        taken.add(name)
        for f, e in zip(found, expected, strict=True):
            assert f.shape == e.shape, name
            np.testing.assert_allclose(f.to_dense(), e, rtol=1e-6, atol=1e-9, err_msg=name)
    assert taken >= {"_sum", "matmul", "neg", "_permute", "mul", "_narrow"}


def test_functions_that_read_memory_refuse():
    s = made()
    for f in (
        lambda: s.array, lambda: s.storage_offset(), lambda: s.view(6), lambda: s.sort(),
        lambda: s.untyped_storage().nbytes(), lambda: np.asarray(s), lambda: s.set_(lt.ones(2)),
        lambda: s.resize_(3), lambda: lt.from_dlpack(s), lambda: nn.Parameter(s),
        lambda: lt.ones(2, dtype=lt.float64).set_(s),
        lambda: setattr(lt.ones(2, 3), "data", s),
        lambda: lt.zeros(2, 3, layout=lt.sparse_coo), lambda: lt.ones_like(s),
        lambda: lt.rand_like(s),
        lambda: s.fill_(2.0), lambda: s.uniform_(), lambda: s.random_(), lambda: s.contiguous(),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, TypeError), match=r"(?i)sparse"):
            f()


def test_sparse_tensors_are_refused_inside_vmap():
    s = made()
    with pytest.raises(NotImplementedError, match="vmap"):
        lt.func.vmap(lambda x: s @ x)(lt.ones(4, 3, 2, dtype=lt.float64))


# Gradients


COMPOSED = {
    "to_dense": lambda s, d: s.to_dense() * d,
    "mm": lambda s, d: s @ d.t(),
    "left": lambda s, d: d.t() @ s,
    "of two": lambda s, d: (s @ d.to_sparse().t()).to_dense(),
    "add": lambda s, d: d + s * d,
    "mul": lambda s, d: (s * d.to_sparse()).to_dense(),
    "softmax": lambda s, d: lt.sparse.softmax(s, 1).to_dense() * d,
    "log_softmax": lambda s, d: (lt.sparse.log_softmax(s, 0) * d).to_dense(),
    "sum": lambda s, d: lt.sparse.sum(s, 0).to_dense() * d,
    "sampled": lambda s, d: lt.sparse.sampled_addmm(s.to_sparse_csr(), d, d.t() @ d).to_dense(),
    "csc": lambda s, d: s.to_sparse_csc() @ d.t(),
    "select": lambda s, d: s.index_select(1, lt.tensor([2, 0, 2])).to_dense() * d,
    "cat": lambda s, d: lt.cat([s, s * d]).to_dense(),
    "stack": lambda s, d: lt.stack([s, s * d])[1].to_dense() * d,
    "power": lambda s, d: (s**2 / 3).t().to_dense() * d.t(),
    "norm": lambda s, d: s.norm() * d,
}


@pytest.mark.parametrize("name", COMPOSED)
def test_first_and_second_gradients_agree_with_finite_differences(name):
    v = lt.tensor([1.0, 2.0, -3.0, 4.0], dtype=lt.float64, requires_grad=True)
    d = (lt.arange(6.0, dtype=lt.float64).reshape(2, 3) / 3 + 0.4).requires_grad_()

    def f(v, d):
        return COMPOSED[name](lt.sparse_coo_tensor(INDICES, v, (2, 3)), d)

    assert lt.autograd.gradcheck(f, (v, d))
    assert lt.autograd.gradgradcheck(f, (v, d))


def test_the_gradient_of_a_sparse_leaf_is_sparse_in_its_places():
    s = made().coalesce().detach().requires_grad_()
    assert s.is_leaf
    (s @ lt.ones(3, 2, dtype=lt.float64)).sum().backward()
    assert s.grad.layout is lt.sparse_coo
    np.testing.assert_array_equal(s.grad.indices(), s.indices())
    np.testing.assert_array_equal(s.grad.values(), [2, 2, 2])
    s.grad = None
    assert s.grad is None
    (found,) = lt.autograd.grad((s * s).to_dense().sum(), s)
    np.testing.assert_array_equal(found.to_dense(), 2 * s.detach().to_dense())


def test_a_region_recomputes_what_sparse_operands_made():
    def f(v, d):
        return (lt.sparse_coo_tensor(INDICES, v, (2, 3)) @ d).relu().sum()

    def run(wrap):
        v = lt.tensor([1.0, 2.0, -3.0, 4.0], requires_grad=True)
        d = lt.arange(6.0).reshape(3, 2).requires_grad_()
        wrap(f, v, d).backward()
        return v.grad, d.grad

    for plain, again in zip(run(lambda f, *a: f(*a)), run(checkpoint), strict=True):
        np.testing.assert_array_equal(plain, again)


def test_a_function_saves_a_sparse_tensor():
    class Product(lt.autograd.Function):
        @staticmethod
        def forward(ctx, s, d):
            ctx.save_for_backward(s)
            return s @ d

        @staticmethod
        def backward(ctx, g):
            (s,) = ctx.saved_tensors
            return None, s.t() @ g

    d = lt.ones(3, 2, dtype=lt.float64, requires_grad=True)
    Product.apply(made(), d).sum().backward()
    np.testing.assert_array_equal(d.grad, (made().to_dense().sum(0)[:, None].expand(3, 2)))
    with pytest.raises(NotImplementedError, match="values"):
        Product.apply(made(requires_grad=True), d)


def test_hooks_see_sparse_gradients():
    w = lt.ones(5, 2, requires_grad=True)
    seen = []
    w.register_hook(lambda g: seen.append(g.layout) or g * 2)
    F.embedding(lt.tensor([1, 1]), w, sparse=True).sum().backward()
    assert seen == [lt.sparse_coo]
    np.testing.assert_array_equal(w.grad.to_dense()[1], [4, 4])


def test_gradients_under_vmap_are_dense():
    w = lt.arange(10.0).reshape(5, 2)

    def loss(w, i):
        return F.embedding(i, w, sparse=True).sum()

    found = lt.func.vmap(lt.func.grad(loss), (None, 0))(w, lt.tensor([[1, 1], [3, 4]]))
    assert found.layout is lt.strided
    np.testing.assert_array_equal(found[0, 1], [2, 2])


def test_clipping_and_scaling_take_sparse_gradients():
    layer = nn.Embedding(10, 4, sparse=True)
    optimizer = lt.optim.SGD(layer.parameters(), lr=0.1)
    layer(lt.tensor([1, 1])).sum().backward()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert float(norm) == pytest.approx(4.0)  # four elements of 2
    assert float(layer.weight.grad.norm()) == pytest.approx(1.0, rel=1e-4)
    scaler = lt.amp.GradScaler("cpu")
    optimizer.zero_grad()
    scaler.scale(layer(lt.tensor([1, 2])).sum()).backward()
    scaler.unscale_(optimizer)
    np.testing.assert_allclose(layer.weight.grad._values(), np.ones((2, 4)))
    scaler.step(optimizer)


def test_zero_grad_to_zeros_stores_nothing():
    layer = nn.Embedding(10, 4, sparse=True)
    layer(lt.tensor([1, 2])).sum().backward()
    lt.optim.SGD(layer.parameters()).zero_grad(set_to_none=False)
    assert layer.weight.grad._nnz() == 0


def test_a_refused_step_changes_nothing():
    layer = nn.Embedding(10, 4, sparse=True)
    optimizer = lt.optim.Adam(layer.parameters())
    layer(lt.tensor([1, 2])).sum().backward()
    before = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients.*SparseAdam"):
        optimizer.step()
    np.testing.assert_array_equal(layer.weight.detach(), before)
    assert not optimizer.state


def test_states_of_sparse_adam_survive():
    def steps(count, state=None):
        layer = nn.Embedding(6, 2, sparse=True, _weight=lt.ones(6, 2))
        optimizer = lt.optim.SparseAdam(layer.parameters(), lr=0.1)
        if state is not None:
            layer.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(count):
            optimizer.zero_grad()
            (layer(lt.tensor([1, 4, 4])) ** 2).sum().backward()
            optimizer.step()
        return copy.deepcopy((layer.state_dict(), optimizer.state_dict()))

    whole, resumed = steps(4), steps(2, steps(2))
    np.testing.assert_array_equal(whole[0]["weight"], resumed[0]["weight"])


# What a tensor holds is checked when it is made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lt.sparse_coo_tensor([[2]], [1.0], (2,)), "found index 2"),
        (lambda: lt.sparse_coo_tensor([[-1]], [1.0], (2,)), "negative index -1"),
        (lambda: lt.sparse_coo_tensor([[0.5]], [1.0], (2,)), "int64"),
        (lambda: lt.sparse_csr_tensor([0, 1], [5], [1.0], (1, 2)), "found index 5"),
        (lambda: lt.sparse_csr_tensor([1, 1, 1], [0], [1.0], (2, 2)), "begin with 0"),
        (lambda: lt.sparse_csr_tensor([0, 2, 1], [0], [1.0], (2, 2)), "never fall"),
        (lambda: lt.sparse_csr_tensor([0, 2, 2], [1, 0], [1.0, 2.0], (2, 2)), "sorted"),
        (lambda: lt.sparse_csr_tensor([0, 1], [0], [1.0, 2.0], (1, 2)), "must be equal"),
        (lambda: lt.sparse_csr_tensor([0, 1], [0], [1.0], (2, 2)), "one element more"),
        (lambda: lt.ones(2, 2, 2).to_sparse_csr(), "matrix"),
        (lambda: lt.sparse.mm(lt.ones(2, 2), lt.ones(2, 2)), "sparse operand"),
    ],
)
def test_bad_parts_are_refused(make, message):
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        make()


def test_indices_that_were_overwritten_never_reach_memory():
    index = lt.tensor([[0, 1], [1, 0]])
    s = lt.sparse_coo_tensor(index, lt.ones(2), (2, 2))
    index[0, 0] = 1_000_000
    with pytest.raises(IndexError):
        s @ lt.ones(2, 2)


def test_large_products_take_the_compiled_loops():
    lt.manual_seed(0)
    d = (lt.rand(200, 300) < 0.1).to(lt.float32) * lt.rand(200, 300)
    s, e = d.to_sparse(), lt.rand(300, 64)
    np.testing.assert_allclose(s @ e, d @ e, rtol=1e-4, atol=1e-5)
    v = s.values().detach().requires_grad_()
    (lt.sparse_coo_tensor(s.indices(), v, d.shape) @ e).square().sum().backward()
    dense = d.clone().requires_grad_()
    (dense @ e).square().sum().backward()
    expected = dense.grad.sparse_mask(s).values()
    np.testing.assert_allclose(v.grad, expected, rtol=1e-3, atol=1e-3)


def test_copies_are_equal():
    for s in (made(), made().coalesce().to_sparse_csr(), made().to_sparse_csc()):
        for other in (copy.deepcopy(s), pickle.loads(pickle.dumps(s)), s.clone()):
            assert other.layout is s.layout
            np.testing.assert_array_equal(other.to_dense(), s.to_dense())


def test_a_sparse_buffer_travels_with_its_module():
    m = nn.Module()
    m.register_buffer("adjacency", made())
    state = m.state_dict()
    assert state["adjacency"].layout is lt.sparse_coo
    m.to(lt.float32)
    assert m.adjacency.dtype is lt.float32
    state["adjacency"] = state["adjacency"] * 2
    m.load_state_dict(state)
    np.testing.assert_array_equal(m.adjacency.to_dense(), 2 * made().to_dense())
