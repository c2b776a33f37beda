"""What tensors print as. tests/parity compares with PyTorch over random tensors."""

import pytest

import lowtide as lt


@pytest.fixture(autouse=True)
def restored():
    yield
    lt.set_printoptions(profile="default")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: lt.tensor(1.5), "tensor(1.5000)"),
        (lambda: lt.tensor(3), "tensor(3)"),
        (lambda: lt.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (lambda: lt.tensor([1.0, float("nan"), float("-inf")]), "tensor([1., nan, -inf])"),
        (lambda: lt.tensor([0.5, float("inf")]), "tensor([0.5000,    inf])"),
        (lambda: lt.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
        (lambda: lt.tensor([True, False]), "tensor([ True, False])"),
        (lambda: lt.tensor([1 - 2j, 0.5j]), "tensor([1.-2.0000j, 0.+0.5000j])"),
        (lambda: lt.tensor([1 + 2j]), "tensor([1.+2.j])"),
        (lambda: lt.tensor([1, -2], dtype=lt.int8), "tensor([ 1, -2], dtype=lowtide.int8)"),
        (lambda: lt.tensor([0.1], dtype=lt.bfloat16), "tensor([0.1001], dtype=lowtide.bfloat16)"),
        (lambda: lt.empty(0), "tensor([])"),
        (lambda: lt.empty(0, 3), "tensor([], size=(0, 3))"),
        (lambda: lt.empty(0, dtype=lt.int64), "tensor([], dtype=lowtide.int64)"),
        (lambda: lt.ones(2, requires_grad=True), "tensor([1., 1.], requires_grad=True)"),
        (
            lambda: lt.ones(2, requires_grad=True) * 2,
            "tensor([2., 2.], grad_fn=<MulBackward0>)",
        ),
        (lambda: lt.ones(2, 3, device="meta"), "tensor(..., device='meta', size=(2, 3))"),
        (lambda: lt.ones(1, device="sim"), "tensor([1.], device='sim')"),
        (lambda: lt.arange(4).reshape(2, 2), "tensor([[0, 1],\n        [2, 3]])"),
        (
            lambda: lt.arange(2000),
            "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])",
        ),
    ],
)
def test_repr(make, text):
    assert repr(make()) == str(make()) == text


def test_only_the_edges_of_a_large_tensor_are_read():
    text = repr(lt.zeros(2000, 2000))
    assert text.splitlines()[3] == "        ...,"
    assert len(text) < 400


def test_format_of_a_number_and_of_a_tensor():
    assert f"{lt.tensor(1.5):.3f}" == "1.500"
    assert f"{lt.tensor([2])}" == "tensor([2])"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{lt.ones(2):.3f}"


def test_print_options_change_notation_and_width():
    x = lt.tensor([0.123456, 20.0])
    lt.set_printoptions(precision=2)
    assert repr(x) == "tensor([ 0.12, 20.00])"
    lt.set_printoptions(sci_mode=True)
    assert repr(x) == "tensor([1.23e-01, 2.00e+01])"
    lt.set_printoptions(profile="default", threshold=3, edgeitems=1)
    assert repr(lt.arange(4)) == "tensor([0,  ..., 3])"


def test_subclass_prints_its_name():
    class Weighted(lt.Tensor):
        pass

    assert repr(Weighted([1.0])) == "Weighted([1.])"


def test_parameter_says_so():
    text = repr(lt.nn.Parameter(lt.ones(1)))
    assert text == "Parameter containing:\ntensor([1.], requires_grad=True)"
