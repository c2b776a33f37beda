"""``select_copy`` and its kin: what the view gives, in memory of its own."""

import pytest

import lowtide as lt
from lowtide.framework.ops.views.view_copy import _VIEWS

X = lt.arange(12.0).reshape(3, 4)
CALLS = {
    "as_strided": ((2, 2), (1, 2), 1), "detach": (), "diagonal": (1,), "expand": ((2, 3, 4),),
    "permute": ((1, 0),), "select": (0, 1), "split": (2,), "split_with_sizes": ((1, 2),),
    "squeeze": (), "t": (), "transpose": (0, 1), "unbind": (0,), "unfold": (1, 2, 1),
    "unsqueeze": (0,), "view": ((4, 3),), "view_as_complex": (), "view_as_real": (),
}  # fmt: skip


def operand(name):
    if name == "view_as_complex":
        return X.reshape(6, 2)
    return lt.complex(X, X) if name == "view_as_real" else X


def view_of(name, x):
    of = getattr(lt, name, None) or getattr(lt.Tensor, name)
    made = of(x, *CALLS[name])
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("name", _VIEWS)
def test_a_copy_has_the_view_s_values_and_its_own_memory(name):
    x = operand(name)
    copies = getattr(lt, f"{name}_copy")(x, *CALLS[name])
    copies = copies if isinstance(copies, tuple) else (copies,)
    for copy, view in zip(copies, view_of(name, x), strict=True):
        assert copy.tolist() == view.tolist()
        assert copy.untyped_storage() != x.untyped_storage()
        assert copy.is_contiguous()


def test_a_copy_has_a_gradient_and_takes_out():
    x = X.clone().requires_grad_()
    lt.select_copy(x, 0, 1).backward(lt.ones(4))
    assert x.grad.tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]
    out = lt.empty(0)
    assert lt.t_copy(X, out=out) is out
    assert out.tolist() == X.t().tolist()


def test_copies_without_a_view_function():
    assert lt.alias_copy(X).tolist() == X.tolist()
    assert lt.slice_copy(X, 1, 1, 4, 2).tolist() == X[:, 1:4:2].tolist()
    with pytest.raises(IndexError, match="range of \\[-2, 1\\], but got 2"):
        lt.slice_copy(X, 2)
