"""Sparse tensors beside PyTorch's: layouts, nnz, values, gradients, optimizers, errors."""

import copy
import io
import pickle

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

INDICES = [[0, 1, 1, 0], [2, 0, 2, 2]]
VALUES = [1.5, 2.0, -3.0, 4.0]


class Given:
    """The same tensors in one of the two frameworks."""

    def __init__(self, T):
        self.i = T.tensor(INDICES)
        self.v = T.tensor(VALUES)
        self.s = T.sparse_coo_tensor(self.i, self.v, (2, 3))
        self.c = self.s.coalesce()
        self.o = T.sparse_coo_tensor([[0, 0, 1], [1, 2, 2]], [5.0, 6.0, 7.0], (2, 3)).coalesce()
        self.d = T.arange(6.0).reshape(2, 3) + 1
        self.e = T.arange(12.0).reshape(3, 4) - 5
        self.h = T.sparse_coo_tensor(self.i, T.arange(8.0).reshape(4, 2), (2, 3, 2))
        self.r = self.c.to_sparse_csr()


def numbers(x):
    return np.asarray(x.detach().to_dense().tolist())


def same(ours, theirs):
    """Equal layout, shape, dtype, nnz, coalescence and values."""
    assert str(ours.layout).split(".")[1] == str(theirs.layout).split(".")[1]
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
    if theirs.layout != torch.strided:
        merged = theirs.layout == torch.sparse_coo and not theirs.is_coalesced()
        assert ours._nnz() == theirs._nnz() or (merged and ours._nnz() > theirs._nnz())
    if theirs.layout == torch.sparse_coo:
        assert ours.sparse_dim() == theirs.sparse_dim()
        assert ours.is_coalesced() or not theirs.is_coalesced()
        if theirs.is_coalesced():
            assert ours.indices().tolist() == theirs.indices().tolist()
    np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-6, atol=1e-6)


RESULTS = {
    "made": lambda T, x: x.s,
    "coalesce": lambda T, x: x.c,
    "hybrid coalesce": lambda T, x: x.h.coalesce(),
    "no size": lambda T, x: T.sparse_coo_tensor(x.i, x.v),
    "only size": lambda T, x: T.sparse_coo_tensor(size=(2, 3)),
    "dtype": lambda T, x: T.sparse_coo_tensor([[0]], [1], dtype=T.float64),
    "integers": lambda T, x: T.sparse_coo_tensor([[0, 0]], [1, 2]).coalesce(),
    "to_dense": lambda T, x: x.s.to_dense(),
    "hybrid to_dense": lambda T, x: x.h.to_dense(),
    "to_sparse": lambda T, x: (x.d - 3).to_sparse(),
    "to_sparse 1": lambda T, x: x.d.to_sparse(1),
    "to_sparse_coo": lambda T, x: x.d.to_sparse_coo(),
    "to_sparse layout": lambda T, x: x.d.to_sparse(layout=T.sparse_csr),
    "s+s": lambda T, x: x.s + x.s,
    "c+o": lambda T, x: x.c + x.o,
    "h+h": lambda T, x: x.h + x.h,
    "d+s": lambda T, x: x.d + x.s,
    "add alpha": lambda T, x: T.add(x.d, x.s, alpha=3),
    "s-o": lambda T, x: x.s - x.o,
    "d-s": lambda T, x: x.d - x.s,
    "c*o": lambda T, x: x.c * x.o,
    "s*2": lambda T, x: x.s * 2,
    "2*s": lambda T, x: 2 * x.s,
    "s*tensor": lambda T, x: x.s * T.tensor(2.0),
    "s*d": lambda T, x: x.s * x.d,
    "d*s": lambda T, x: x.d * x.s,
    "s*row": lambda T, x: x.s * T.arange(3.0),
    "s*column": lambda T, x: x.s * T.arange(2.0).reshape(2, 1),
    "s/2": lambda T, x: x.s / 2,
    "-s": lambda T, x: -x.s,
    "s**2": lambda T, x: x.s**2,
    "abs": lambda T, x: x.s.abs(),
    "sqrt": lambda T, x: (x.c * x.c).sqrt(),
    "relu": lambda T, x: T.relu(x.s),
    "sin": lambda T, x: x.s.sin(),
    "expm1": lambda T, x: x.s.expm1(),
    "isnan": lambda T, x: x.c.isnan(),
    "sum": lambda T, x: x.s.sum(),
    "sum 0": lambda T, x: T.sparse.sum(x.s, 0),
    "sum 1": lambda T, x: T.sparse.sum(x.s, 1),
    "sum both": lambda T, x: T.sparse.sum(x.s, [0, 1]),
    "sum dense": lambda T, x: T.sparse.sum(x.h, 2),
    "sum all": lambda T, x: T.sparse.sum(x.h),
    "sum sparse and dense": lambda T, x: T.sparse.sum(x.h, [0, 2]),
    "sum dtype": lambda T, x: T.sparse.sum(x.s, dtype=T.float64),
    "norm": lambda T, x: x.s.norm(),
    "any": lambda T, x: x.s.any(),
    "softmax": lambda T, x: T.sparse.softmax(x.s, 1),
    "softmax 0": lambda T, x: T.sparse.softmax(x.c, 0),
    "hybrid softmax": lambda T, x: T.sparse.softmax(x.h, 2),
    "hybrid sparse softmax": lambda T, x: T.sparse.softmax(x.h, 1),
    "log_softmax": lambda T, x: T.sparse.log_softmax(x.s, 1),
    "log_softmax dtype": lambda T, x: T.sparse.log_softmax(x.s, 1, dtype=T.float64),
    "t": lambda T, x: x.s.t(),
    "transpose": lambda T, x: x.c.transpose(0, 1),
    "hybrid transpose": lambda T, x: x.h.transpose(0, 1),
    "permute": lambda T, x: x.h.permute(1, 0, 2),
    "unsqueeze": lambda T, x: x.c.unsqueeze(0),
    "cat": lambda T, x: T.cat([x.s, x.c]),
    "cat 1": lambda T, x: T.cat([x.c, x.o], 1),
    "stack": lambda T, x: T.stack([x.c, x.o]),
    "row": lambda T, x: x.c[0],
    "element": lambda T, x: x.c[0, 2],
    "column": lambda T, x: x.c[:, 0],
    "select": lambda T, x: x.s.select(1, 2),
    "index_select": lambda T, x: x.c.index_select(0, T.tensor([1, 1, 0])),
    "index_select dense": lambda T, x: x.h.index_select(2, T.tensor([1])),
    "mm": lambda T, x: T.mm(x.s, x.e),
    "@": lambda T, x: x.s @ x.e,
    "@ vector": lambda T, x: x.s @ T.arange(3.0),
    "mv": lambda T, x: x.s.mv(T.arange(3.0)),
    "dense @": lambda T, x: x.d.t() @ x.s,
    "s @ s": lambda T, x: x.s @ x.o.t(),
    "sparse.mm": lambda T, x: T.sparse.mm(x.s, x.e),
    "sparse.mm, mean": lambda T, x: T.sparse.mm(x.r, x.e, "mean"),
    "sparse.mm, amax": lambda T, x: T.sparse.mm(x.r, x.e, "amax"),
    "sparse.mm, amin": lambda T, x: T.sparse.mm(x.r, x.e, "amin"),
    "sparse.mm of two": lambda T, x: T.sparse.mm(x.s, x.o.t()),
    "spmm": lambda T, x: T.spmm(x.s, x.e),
    "addmm": lambda T, x: T.addmm(T.ones(2, 4), x.s, x.e),
    "sparse.addmm": lambda T, x: T.sparse.addmm(T.ones(2, 4), x.s, x.e, beta=2, alpha=3),
    "bmm": lambda T, x: T.bmm(T.stack([x.c, x.o]), T.stack([x.e, x.e])),
    "linear": lambda T, x: T.nn.functional.linear(T.ones(4, 3), x.s),
    "sampled_addmm": lambda T, x: T.sparse.sampled_addmm(x.r, T.ones(2, 4), x.e.t(), beta=0.5),
    "spdiags": lambda T, x: T.sparse.spdiags(x.d, T.tensor([0, 1]), (3, 3)).coalesce(),
    "clone": lambda T, x: x.s.clone(),
    "detach": lambda T, x: x.c.detach(),
    "T.detach": lambda T, x: T.detach(x.c),
    "double": lambda T, x: x.s.double(),
    "to": lambda T, x: x.s.to(T.float16),
    "zeros_like": lambda T, x: T.zeros_like(x.c),
    "empty_like": lambda T, x: T.empty_like(x.h),
    "zero_": lambda T, x: x.s.zero_(),
    "mul_": lambda T, x: x.s.mul_(3),
    "div_": lambda T, x: x.s.div_(2),
    "add_": lambda T, x: x.s.add_(x.o),
    "dense add_": lambda T, x: x.d.add_(x.s, alpha=2),
    "copy_": lambda T, x: x.s.copy_(x.o),
    "sparse_mask": lambda T, x: x.d.sparse_mask(x.c),
    "sparse_mask of sparse": lambda T, x: x.s.sparse_mask(x.o),
    "sparse_resize_": lambda T, x: x.s.sparse_resize_((4, 4), 2, 0),
    "legacy": lambda T, x: T.sparse.FloatTensor(x.i, x.v, T.Size([2, 3])),
    "deepcopy": lambda T, x: copy.deepcopy(x.s),
    "pickle": lambda T, x: pickle.loads(pickle.dumps(x.s)),
    "csr": lambda T, x: x.d.to_sparse_csr(),
    "csr made": lambda T, x: T.sparse_csr_tensor([0, 1, 3], [2, 0, 1], [1.0, 2.0, 3.0], (2, 3)),
    "csr no size": lambda T, x: T.sparse_csr_tensor([0, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0]),
    "csr to_dense": lambda T, x: x.r.to_dense(),
    "csr to coo": lambda T, x: x.r.to_sparse(),
    "csr @": lambda T, x: x.r @ x.e,
    "csr @ vector": lambda T, x: x.r @ T.arange(3.0),
    "csr t": lambda T, x: x.r.t(),
    "csr * 2": lambda T, x: x.r * 2,
    "csr + csr": lambda T, x: x.r + x.r,
    "csr sum": lambda T, x: x.r.sum(),
    "csr abs": lambda T, x: x.r.abs(),
    "csr clone": lambda T, x: x.r.clone(),
    "csc": lambda T, x: x.c.to_sparse_csc(),
    "csc to_dense": lambda T, x: x.c.to_sparse_csc().to_dense(),
    "csc made": lambda T, x: T.sparse_csc_tensor([0, 1, 1], [0], [1.0], (1, 2)),
    "compressed": lambda T, x: T.sparse_compressed_tensor(
        T.tensor([0, 1]), T.tensor([0]), T.ones(1), (1, 2), layout=T.sparse_csr
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_alike(name):
    f = RESULTS[name]
    same(f(lt, Given(lt)), f(torch, Given(torch)))


TEXTS = {
    "coo": lambda T, x: x.s,
    "hybrid": lambda T, x: x.h,
    "double": lambda T, x: x.s.double(),
    "empty": lambda T, x: T.sparse_coo_tensor(size=(2, 3)),
    "leaf": lambda T, x: x.c.requires_grad_(),
    "csr": lambda T, x: x.r,
    "csc": lambda T, x: x.c.to_sparse_csc(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_tensors_print_alike(name):
    ours, theirs = repr(TEXTS[name](lt, Given(lt))), repr(TEXTS[name](torch, Given(torch)))
    assert ours.replace("lowtide.", "torch.") == theirs


GRADIENTS = {
    "to_dense": lambda T, s, d, e: s.to_dense(),
    "coalesce": lambda T, s, d, e: s.coalesce(),
    "sparse.mm": lambda T, s, d, e: T.sparse.mm(s, e),
    "sparse.mm of two": lambda T, s, d, e: T.sparse.mm(s, d.to_sparse().t()),
    "addmm": lambda T, s, d, e: T.sparse.addmm(T.ones(2, 4), s, e),
    "sum": lambda T, s, d, e: T.sparse.sum(s, 1),
    "s*2": lambda T, s, d, e: s * 2,
    "s/2": lambda T, s, d, e: s / 2,
    "s+s": lambda T, s, d, e: s + s,
    "s*s": lambda T, s, d, e: s * s,
    "softmax": lambda T, s, d, e: T.sparse.softmax(s, 1),
    "log_softmax": lambda T, s, d, e: T.sparse.log_softmax(s, 1),
    "abs": lambda T, s, d, e: s.abs(),
    "to_sparse": lambda T, s, d, e: d.to_sparse(),
    "sparse_mask": lambda T, s, d, e: d.sparse_mask(s.detach().coalesce()),
    "values": lambda T, s, d, e: s.coalesce().values(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_alike(name):
    def run(T):
        s = Given(T).c.detach().requires_grad_()
        d = (T.arange(6.0).reshape(2, 3) + 1).requires_grad_()
        e = T.arange(12.0).reshape(3, 4).requires_grad_()
        r = GRADIENTS[name](T, s, d, e)
        r = r.to_dense() if r.layout != T.strided else r
        (r * T.arange(1.0, r.numel() + 1).reshape(r.shape)).sum().backward()
        return s.grad, d.grad, e.grad

    for ours, theirs in zip(run(lt), run(torch), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert (ours.layout is lt.strided) == (theirs.layout is torch.strided)
            np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-5, atol=1e-6)


def test_gradients_reach_the_given_values():
    def run(T):
        v = T.tensor(VALUES, requires_grad=True)
        s = T.sparse_coo_tensor(Given(T).i, v, (2, 3))
        assert not s.is_leaf
        (T.sparse.mm(s, Given(T).e) ** 2).sum().backward()
        return v.grad

    np.testing.assert_allclose(numbers(run(lt)), numbers(run(torch)), rtol=1e-6)


@pytest.mark.parametrize("dense", [True, False])
def test_a_sparse_root_takes_a_gradient(dense):
    def run(T):
        v = T.tensor(VALUES, requires_grad=True)
        x = Given(T)
        T.sparse_coo_tensor(x.i, v, (2, 3)).backward(x.d if dense else x.o)
        return v.grad

    np.testing.assert_allclose(numbers(run(lt)), numbers(run(torch)))


LOOKUPS = {
    "plain": lambda F, i, w: F.embedding(i, w, sparse=True),
    "padding": lambda F, i, w: F.embedding(i, w, padding_idx=1, sparse=True),
    "twice": lambda F, i, w: F.embedding(i, w, sparse=True) + F.embedding(i, w, sparse=True),
    "scaled table": lambda F, i, w: F.embedding(i, w * 2, sparse=True),
    "one": lambda F, i, w: F.embedding(i[1, 0], w, sparse=True),
    "both": lambda F, i, w: F.embedding(i, w, sparse=True) + F.embedding(i, w),
    "bag": lambda F, i, w: F.embedding_bag(i, w, sparse=True),
    "bag sum padding": lambda F, i, w: F.embedding_bag(
        i, w, mode="sum", padding_idx=1, sparse=True
    ),
    "bag offsets": lambda F, i, w: F.embedding_bag(
        i.reshape(-1), w, i.new_tensor([0, 0, 3]), sparse=True
    ),
    "bag weights": lambda F, i, w: F.embedding_bag(
        i, w, mode="sum", sparse=True, per_sample_weights=w.detach()[:2]
    ),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_of_tables_are_alike(name, times):
    def run(T):
        w = (T.arange(10.0).reshape(5, 2) / 10).requires_grad_()
        i = T.tensor([[1, 1], [3, 4]])
        for _ in range(times):
            out = LOOKUPS[name](T.nn.functional, i, w)
            (out * T.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
        return w.grad

    same(run(lt), run(torch))


def test_a_gradient_keeps_its_identity_while_it_accumulates():
    def run(T):
        F, w, i = T.nn.functional, T.ones(5, 2, requires_grad=True), T.tensor([1, 3])
        F.embedding(i, w, sparse=True).sum().backward()
        first = w.grad
        F.embedding(i, w, sparse=True).sum().backward()
        kept = [w.grad is first]
        F.embedding(i, w).sum().backward()
        kept += [w.grad is first, w.grad.is_sparse]
        first = w.grad
        F.embedding(i, w, sparse=True).sum().backward()
        return [*kept, w.grad is first, w.grad.is_sparse, w.grad.tolist()]

    assert run(lt) == run(torch)


OPTIMIZERS = {
    "SGD": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "maximize": ("SGD", {"lr": 0.1, "maximize": True}),
    "Adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1}),
    "Adagrad maximize": ("Adagrad", {"lr": 0.1, "maximize": True}),
    "SparseAdam": ("SparseAdam", {"lr": 0.1}),
    "SparseAdam maximize": ("SparseAdam", {"lr": 0.1, "betas": (0.8, 0.9), "maximize": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_by_sparse_gradients_are_alike(name):
    def run(T):
        kind, options = OPTIMIZERS[name]
        layer = T.nn.Embedding(6, 3, sparse=True)
        with T.no_grad():
            layer.weight.copy_(T.arange(18.0).reshape(6, 3) / 10)
        optimizer = getattr(T.optim, kind)(layer.parameters(), **options)
        for rows in ([1, 1, 3], [3, 5], [0, 1, 5, 5]):
            optimizer.zero_grad()
            (layer(T.tensor(rows)) ** 2).sum().backward()
            optimizer.step()
        return layer.weight

    np.testing.assert_allclose(numbers(run(lt)), numbers(run(torch)), rtol=2e-6, atol=1e-6)


REFUSALS = {
    **{
        kind: lambda T, x, kind=kind: _step(T, kind)
        for kind in "Adam AdamW Adadelta RMSprop Rprop ASGD Adamax NAdam RAdam Adafactor".split()
    },
    "SGD weight decay": lambda T, x: _step(T, "SGD", weight_decay=0.1),
    "Adagrad weight decay": lambda T, x: _step(T, "Adagrad", weight_decay=0.1),
    "SparseAdam dense": lambda T, x: _step(T, "SparseAdam", sparse=False),
    "SparseAdam of sparse": lambda T, x: T.optim.SparseAdam([x.s.requires_grad_()]),
    "nnz": lambda T, x: T.sparse_coo_tensor([[0, 1]], [1.0], (2,)),
    "dims": lambda T, x: T.sparse_coo_tensor([[0]], [1.0], (2, 3)),
    "flat indices": lambda T, x: T.sparse_coo_tensor([0], [1.0]),
    "negative": lambda T, x: T.sparse_coo_tensor([[-1]], [1.0]),
    "dense dims": lambda T, x: T.sparse_coo_tensor([[0]], T.ones(1, 3), (2, 4)),
    "not coalesced": lambda T, x: T.sparse_coo_tensor(
        [[1, 0]], [1.0, 2.0], (2,), is_coalesced=True, check_invariants=True
    ),
    "one number": lambda T, x: T.sparse_coo_tensor(x.i, 2.0, (2, 3)),
    "s+1": lambda T, x: x.s + 1,
    "s/d": lambda T, x: x.s / x.d,
    "c/c": lambda T, x: x.c / x.c,
    "mean": lambda T, x: x.s.mean(),
    "max": lambda T, x: x.s.max(),
    "exp": lambda T, x: x.s.exp(),
    "sigmoid": lambda T, x: x.s.sigmoid(),
    "T.softmax": lambda T, x: T.softmax(x.c, 1),
    "ones_like": lambda T, x: T.ones_like(x.c),
    "rand_like": lambda T, x: T.rand_like(x.c),
    "eq": lambda T, x: x.c == x.c,
    "view": lambda T, x: x.c.view(6),
    "advanced index": lambda T, x: x.c[T.tensor([0, 1]), T.tensor([0, 1])],
    "indices": lambda T, x: x.s.indices(),
    "values": lambda T, x: x.s.values(),
    "dense indices": lambda T, x: x.d.indices(),
    "dense values": lambda T, x: x.d.values(),
    "dense coalesce": lambda T, x: x.d.coalesce(),
    "dense is_coalesced": lambda T, x: x.d.is_coalesced(),
    "dense crow_indices": lambda T, x: x.d.crow_indices(),
    "coo crow_indices": lambda T, x: x.s.crow_indices(),
    "csr indices": lambda T, x: x.r.indices(),
    "sum of dense": lambda T, x: T.sparse.sum(x.d),
    "hybrid transpose": lambda T, x: x.h.transpose(0, 2),
    "cat dense": lambda T, x: T.cat([x.c, x.d]),
    "mm shapes": lambda T, x: x.s @ T.ones(2, 4),
    "mm dtypes": lambda T, x: x.s @ x.e.double(),
    "numpy": lambda T, x: x.s.numpy(),
    "item": lambda T, x: x.s.item(),
    "tolist": lambda T, x: x.s.tolist(),
    "data_ptr": lambda T, x: x.s.data_ptr(),
    "bool": lambda T, x: bool(x.s),
}


def _step(T, kind, sparse=True, **options):
    layer = T.nn.Embedding(6, 3, sparse=sparse)
    layer(T.tensor([1, 2])).sum().backward()
    getattr(T.optim, kind)(layer.parameters(), lr=0.1, **options).step()


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_raises_the_same_type(name):
    f = REFUSALS[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever PyTorch raises
        f(torch, Given(torch))
    with pytest.raises(theirs.type) as ours:
        f(lt, Given(lt))
    assert "Use" in str(ours.value) or len(str(ours.value)) > 20


def test_tensors_survive_a_file():
    x = Given(lt)
    file = io.BytesIO()
    lt.save({"s": x.s, "r": x.r, "g": x.h.coalesce()}, file)
    file.seek(0)
    found = lt.load(file)
    same(found["s"], Given(torch).s)
    same(found["r"], Given(torch).r)
    same(found["g"], Given(torch).h.coalesce())


def test_pytorchs_files_are_read(tmp_path):
    x = Given(torch)
    torch.save({"s": x.s, "c": x.c, "r": x.r}, tmp_path / "sparse.pt")
    found = lt.load(tmp_path / "sparse.pt")
    for name in "scr":
        same(found[name], getattr(x, name))
