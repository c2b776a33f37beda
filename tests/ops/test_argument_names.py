"""Arguments by the names that PyTorch's overloads give them; tests/parity compares all of them."""

import inspect

import pytest

import lowtide as lt
from lowtide.framework.ops.functions import other_names

X = lt.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
SQUARE = lt.tensor([[2.0, 1.0], [1.0, 3.0]])
CALLS = {
    "split": (lambda: X.split(split_size=2, dim=1), lambda: X.split(2, 1)),
    "split_copy": (
        lambda: lt.split_copy(input=X, split_size=2, dim=1),
        lambda: lt.split_copy(X, 2, 1),
    ),
    "tensor_split sections": (
        lambda: lt.tensor_split(X, sections=2, dim=1),
        lambda: lt.tensor_split(X, 2, 1),
    ),
    "tensor_split indices": (
        lambda: X.tensor_split(indices=[1], axis=1),
        lambda: X.tensor_split([1], 1),
    ),
    "hsplit": (lambda: lt.hsplit(input=X, sections=3), lambda: lt.hsplit(X, 3)),
    "vsplit": (lambda: X.vsplit(indices=[1]), lambda: X.vsplit([1])),
    "new_zeros": (lambda: X.new_zeros(size=(2, 1)), lambda: X.new_zeros(2, 1)),
    "new_ones": (lambda: X.new_ones(size=[3]), lambda: X.new_ones([3])),
    "arange end": (lambda: lt.arange(end=4), lambda: lt.arange(4)),
    "arange step": (lambda: lt.arange(start=1, end=6, step=2), lambda: lt.arange(1, 6, 2)),
    "repeat_interleave": (
        lambda: lt.repeat_interleave(repeats=lt.tensor([2, 0, 1])),
        lambda: lt.tensor([0, 0, 2]),
    ),
    "det": (lambda: lt.det(input=SQUARE), lambda: SQUARE.det()),
    "slogdet": (lambda: lt.slogdet(input=SQUARE), lambda: SQUARE.slogdet()),
    "matrix_power": (lambda: lt.matrix_power(input=SQUARE, n=2), lambda: SQUARE @ SQUARE),
    "cholesky_solve": (
        lambda: lt.cholesky_solve(input=SQUARE, input2=SQUARE.cholesky()),
        lambda: lt.eye(2),
    ),
    "lu": (lambda: SQUARE.lu(pivot=True), lambda: lt.lu(SQUARE)),
    "logical_or_": (
        lambda: lt.tensor([True, False]).logical_or_(other=lt.tensor([False, False])),
        lambda: lt.tensor([True, False]),
    ),
    "sum_to_size": (lambda: X.sum_to_size(size=(1, 3)), lambda: X.sum(0, keepdim=True)),
    "copy_": (lambda: lt.zeros(2, 3).copy_(other=X), lambda: X),
    "resize_": (lambda: lt.zeros(1).resize_(size=(1,)), lambda: lt.zeros(1)),
    "to": (lambda: X.to(other=lt.ones(1, dtype=lt.float64)), lambda: X.double()),
    "isin": (lambda: lt.isin(elements=X, test_element=2.0), lambda: X == 2),
    "dropout": (lambda: lt.dropout(input=X, p=0.5, train=False), lambda: X),
    "sqrt_": (lambda: lt.sqrt_(input=X.clone()), lambda: X.sqrt()),
    "logit_": (lambda: lt.logit_(input=lt.full((2,), 0.5)), lambda: lt.zeros(2)),
    "argsort out": (
        lambda: lt.argsort(X, out=lt.empty(0, dtype=lt.int64)),
        lambda: X.argsort(),
    ),
    "cummax out": (
        lambda: lt.cummax(X, dim=1, out=(lt.empty(0), lt.empty(0, dtype=lt.int64))),
        lambda: X.cummax(1),
    ),
    "scatter_add out": (
        lambda: lt.scatter_add(X, 0, lt.zeros(1, 3, dtype=lt.int64), X[:1], out=lt.empty(2, 3)),
        lambda: lt.stack([2 * X[0], X[1]]),
    ),
}


def same(found, expected):
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found.dtype is expected.dtype and lt.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_by_name_is_the_call_by_position(name):
    by_name, by_position = CALLS[name]
    assert same(by_name(), by_position())


def test_result_type_by_any_overload():
    x = lt.tensor([1])
    assert lt.result_type(tensor=x, other=1.5) is lt.float32
    assert lt.result_type(scalar=1.5, tensor=x) is lt.float32
    assert lt.result_type(scalar1=1, scalar2=2) is lt.int64
    assert lt.promote_types(type1=lt.int8, type2=lt.uint8) is lt.int16


def test_two_names_of_one_argument_are_refused():
    with pytest.raises(TypeError, match="both 'indices_or_sections' and 'sections'"):
        lt.tensor_split(X, 2, sections=2)


def test_a_missing_argument_is_named():
    with pytest.raises(TypeError, match="split_size_or_sections"):
        X.split()
    with pytest.raises(TypeError, match=r'arange\(\) missing 1 required .* "end"'):
        lt.arange()
    with pytest.raises(TypeError, match="repeats alone as a tensor; got int"):
        lt.repeat_interleave(repeats=3)
    with pytest.raises(RuntimeError, match=r"1D vector as repeat.*got shape \(2, 3\)"):
        lt.repeat_interleave(X.long())


def test_out_of_a_composition_refuses_what_requires_grad_and_a_narrower_dtype():
    x = lt.tensor([0.3], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"logit\(\): functions with out=.* Detach it"):
        lt.logit(x, out=lt.empty(1))
    with pytest.raises(RuntimeError, match=r"logit\(\): result type .* can't be cast"):
        lt.logit(x.detach(), out=lt.empty(1, dtype=lt.int64))


def test_further_names_stand_for_parameters_that_are_there():
    with pytest.raises(TypeError, match="further names"):
        other_names(lambda input: input, {"tensor": "nonesuch"})


def test_the_signature_shows_the_own_names():
    assert list(inspect.signature(lt.split).parameters) == [
        "tensor",
        "split_size_or_sections",
        "dim",
    ]
