"""Factories: shapes, dtypes, sharing, and what they refuse."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1, "int64"),
        (True, "bool"),
        (1.5, "float32"),
        (1j, "complex64"),
        ([], "float32"),
        ([1, 2.5], "float32"),
        ([True, 2], "int64"),
        (np.float64(1), "float64"),
        ([np.int32(1)], "int32"),
        ([np.ones(2)], "float64"),
        (np.ones(2, np.int8), "int8"),
        (range(3), "int64"),
        ((1, (2,))[1], "int64"),
    ],
)
def test_tensor_takes_the_dtype_of_its_data(data, dtype):
    assert lt.tensor(data).dtype.name == dtype


def test_python_floats_take_the_default_dtype():
    lt.set_default_dtype(lt.float64)
    assert lt.tensor([1.5]).dtype is lt.zeros(1).dtype is lt.float64
    assert lt.tensor(1j).dtype is lt.complex128


def test_tensor_copies_and_as_tensor_shares():
    a = np.zeros(2)
    copied, shared = lt.tensor(a), lt.as_tensor(a)
    a[0] = 5
    assert (copied.tolist(), shared.tolist()) == ([0, 0], [5, 0])


def test_tensors_in_lists_become_numbers():
    x = lt.tensor([lt.tensor(1), lt.tensor(2.5, requires_grad=True)])
    assert (x.tolist(), x.dtype, x.requires_grad) == ([1, 2.5], lt.float32, False)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([[1, 2], [3]], ValueError, r"expected sequence of length 2 at dim 1 \(got 1\)"),
        ([[1, 2], 3], TypeError, "not a sequence"),
        ([1, [3]], TypeError, "cannot be interpreted"),
        (None, RuntimeError, "Could not infer dtype of NoneType"),
        ("a", TypeError, "invalid data type 'str'"),
        (["a"], ValueError, "too many dimensions 'str'"),
        ([2**63], ValueError, "64 bits"),
        (2**70, ValueError, "64 bits"),
        ({}, RuntimeError, "Could not infer dtype of dict"),
        ([lt.ones(2), lt.ones(2)], ValueError, "only one element"),
    ],
)
def test_data_that_is_no_tensor_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        lt.tensor(data)


@pytest.mark.parametrize("data", [[300], [-129.0], [float("nan")], [float("inf")]])
def test_numbers_beyond_an_integer_dtype_are_refused(data):
    with pytest.raises(RuntimeError, match="without overflow"):
        lt.tensor(data, dtype=lt.int8)


def test_from_numpy_shares_both_ways():
    a = np.arange(6.0).reshape(2, 3)
    t = lt.from_numpy(a.T)
    t[0, 1] = 50
    assert a[1, 0] == 50
    assert t.stride() == (1, 3)


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        ([1], TypeError, "expected np.ndarray"),
        (np.ones(3)[::-1], ValueError, "negative"),
        (np.array(["a"]), TypeError, "supported types"),
        (np.ones(2, np.longdouble), TypeError, "supported types"),
        (np.ones(3, ">f4"), ValueError, "byte order"),
    ],
)
def test_arrays_that_cannot_be_shared_are_refused(array, error, message):
    with pytest.raises(error, match=message):
        lt.from_numpy(array)


def test_sharing_a_read_only_array_warns():
    a = np.ones(2)
    a.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        lt.from_numpy(a)


def test_shared_memory_is_not_in_the_ledger():
    ledger = backend(lt.device("cpu")).ledger
    before = ledger.live
    t = lt.from_numpy(np.ones(1000))
    assert ledger.live == before
    assert t.numel() == 1000


def test_asarray_without_copy_refuses_to_copy():
    with pytest.raises(ValueError, match="alias"):
        lt.asarray(np.ones(2), dtype=lt.int64, copy=False)
    with pytest.raises(ValueError, match="alias"):
        lt.asarray([1, 2], copy=False)


def test_asarray_copies_on_demand():
    a = np.ones(2)
    x = lt.asarray(a, copy=True)
    a[0] = 9
    assert x.tolist() == [1, 1]


def test_frombuffer_reads_part_of_a_buffer():
    x = lt.frombuffer(bytearray(b"abcd"), dtype=lt.int8, count=2, offset=1)
    assert x.tolist() == [98, 99]


@pytest.mark.parametrize(
    ("buffer", "options", "message"),
    [
        (b"", {}, "must not be 0"),
        (b"abc", {"dtype": lt.int16}, "multiple of element size"),
        (b"abcd", {"count": 9}, "actual buffer length"),
        (b"abcd", {"offset": 4}, "offset"),
    ],
)
def test_frombuffer_refuses_what_is_not_there(buffer, options, message):
    with pytest.raises(ValueError, match=message):
        lt.frombuffer(bytearray(buffer), **({"dtype": lt.int8} | options))


@pytest.mark.parametrize("size", [(2, 3), ((2, 3),), ([2, 3],), (np.int64(2), lt.tensor(3))])
@pytest.mark.parametrize("make", [lt.zeros, lt.ones, lt.empty, lt.rand, lt.randn])
def test_sizes_come_as_arguments_or_as_one_sequence(make, size):
    assert make(*size).shape == (2, 3)


@pytest.mark.parametrize("make", [lt.zeros, lt.ones, lt.empty, lt.rand, lt.randn])
def test_size_may_be_named(make):
    assert make(size=(2, 3)).shape == (2, 3)


def test_negative_zero_keeps_its_sign():
    assert np.signbit(lt.full((1,), -0.0).array[0])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: lt.zeros(), TypeError),
        (lambda: lt.zeros(-1), RuntimeError),
        (lambda: lt.zeros(1.5), TypeError),
        (lambda: lt.zeros(2, sise=3), TypeError),
        (lambda: lt.zeros(2, dtype="float32"), TypeError),
        (lambda: lt.full(2, 1), TypeError),
        (lambda: lt.full((2,), 300, dtype=lt.uint8), RuntimeError),
        (lambda: lt.arange(5, 0), RuntimeError),
        (lambda: lt.arange(0, 5, 0), RuntimeError),
        (lambda: lt.arange(0, float("inf")), RuntimeError),
        (lambda: lt.linspace(0, 1, -1), RuntimeError),
        (lambda: lt.eye(-1), RuntimeError),
        (lambda: lt.zeros_like([1]), TypeError),
        (lambda: lt.ones(2, dtype=lt.int64, requires_grad=True), RuntimeError),
        (lambda: lt.ones(2, device="nowhere"), RuntimeError),
        (lambda: lt.complex(lt.ones(2), lt.ones(2).double()), RuntimeError),
        (lambda: lt.Tensor(2.5), TypeError),
        (lambda: lt.LongTensor(lt.ones(2)), TypeError),
    ],
)
def test_impossible_requests_are_refused(call, error):
    with pytest.raises(error):
        call()


MAKERS = {
    "zeros": lambda d: lt.zeros(2, 3, device=d),
    "full": lambda d: lt.full((2,), 7, device=d),
    "eye": lambda d: lt.eye(3, 5, device=d),
    "arange": lambda d: lt.arange(10_000, device=d),
    "arange_float": lambda d: lt.arange(0, 3, 0.25, device=d),
    "linspace": lambda d: lt.linspace(-1, 1, 5001, device=d),
    "logspace": lambda d: lt.logspace(0, 3, 7, device=d),
    "tril_indices": lambda d: lt.tril_indices(3, 4, -1, device=d),
    "tensor": lambda d: lt.tensor([[1, 2], [3, 4]], dtype=lt.float64, device=d),
    "ones_like": lambda d: lt.ones_like(lt.empty(2, 2, device=d)),
    "new_full": lambda d: lt.empty(2, device=d).new_full((3,), 1.5),
    "new_tensor": lambda d: lt.empty(2, dtype=lt.float16, device=d).new_tensor([1, 2]),
    "scalar_tensor": lambda d: lt.scalar_tensor(3, device=d),
    "complex": lambda d: lt.complex(lt.ones(2, device=d), lt.zeros(2, device=d)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_devices_make_the_same(name, device):
    expected, got = MAKERS[name]("cpu"), MAKERS[name](device)
    assert (got.shape, got.dtype, got.device) == (expected.shape, expected.dtype, device)
    if backend(device).xp is not None:
        assert got.cpu().tolist() == expected.tolist()


def test_default_device_is_where_factories_put_tensors():
    with lt.device("meta"):
        made = [lt.ones(2), lt.tensor([1]), lt.rand(2), lt.arange(3), lt.as_tensor(np.ones(2))]
    assert {str(t.device) for t in made} == {"meta"}


def test_out_is_resized_filled_and_counted_as_written():
    out = lt.empty(0)
    assert lt.ones(2, 2, out=out) is out
    assert (out.tolist(), out._version) == ([[1, 1], [1, 1]], 1)


def test_long_ramps_are_exact_in_every_element():
    x = lt.arange(100_000, dtype=lt.float32)
    assert np.array_equal(x.array, np.arange(100_000, dtype=np.float32))


def test_ramps_take_little_memory_beside_their_result():
    import tracemalloc

    lt.linspace(0, 1, 10)
    tracemalloc.start()
    lt.linspace(0, 1, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def test_empty_strided_has_its_strides():
    t = lt.empty_strided((2, 3), (1, 2))
    assert (t.shape, t.stride()) == ((2, 3), (1, 2))


def test_legacy_constructors():
    x = lt.ones(2)
    assert lt.Tensor().shape == (0,)
    assert lt.Tensor(2, 3).shape == (2, 3)
    assert lt.Tensor([1, 2]).dtype is lt.float32
    assert lt.Tensor(x).data_ptr() == x.data_ptr()
    assert lt.LongTensor([1.5]).tolist() == [1]


def test_legacy_types_answer_isinstance():
    assert isinstance(lt.ones(2), lt.FloatTensor)
    assert not isinstance(lt.ones(2), lt.LongTensor)
    assert isinstance(lt.ones(2).bfloat16(), lt.BFloat16Tensor)


def test_variable_is_a_tensor():
    x = lt.autograd.Variable(lt.ones(2), requires_grad=True)
    assert x.requires_grad
    assert isinstance(x, lt.autograd.Variable)
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
        lt.autograd.Variable([1.0])


def test_like_functions_do_not_inherit_requires_grad():
    x = lt.ones(2, requires_grad=True)
    assert not lt.zeros_like(x).requires_grad
    assert lt.zeros_like(x, requires_grad=True).requires_grad


def test_range_includes_its_end():
    assert lt.range(1, 2.5, 0.5).tolist() == [1.0, 1.5, 2.0, 2.5]
    assert lt.range(0, 3, dtype=lt.int64).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="range: upper bound and lower bound inconsistent"):
        lt.range(3, 0)
    with pytest.raises(TypeError, match='missing 1 required positional arguments: "end"'):
        lt.range(3)


def test_a_ramp_of_small_integers_has_the_length_of_the_numbers_given():
    assert lt.arange(0.0, -8.000001, -4.0, dtype=lt.int32).tolist() == [0, -4, -8]
    assert lt.arange(0.0, -8.000001, -4.0, dtype=lt.int64).tolist() == [0, -4]
    assert lt.arange(0, 2, 0.5, dtype=lt.int32).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="step must be nonzero"):
        lt.arange(0, 2, 0.5, dtype=lt.int64)


@pytest.mark.parametrize("dtype", [lt.bool, lt.complex64])
def test_what_cannot_count(dtype):
    for call in (lambda: lt.arange(3, dtype=dtype), lambda: lt.randperm(3, dtype=dtype)):
        with pytest.raises(NotImplementedError, match=f"not implemented for lowtide.{dtype.name}"):
            call()


def test_a_number_must_fit_its_dtype():
    x = lt.zeros(2, dtype=lt.uint8)
    assert x.fill_(-9).tolist() == [247, 247]  # as PyTorch: unsigned numbers wrap
    assert lt.full((1,), -9, dtype=lt.uint8).tolist() == [247]
    for value in (300, -300, float("nan")):
        with pytest.raises(RuntimeError, match="cannot be converted to type uint8"):
            x.fill_(value)
    with pytest.raises(RuntimeError, match="cannot be converted to type float16"):
        lt.zeros(2, dtype=lt.float16).masked_fill(lt.tensor([True, False]), -1e9)
    with pytest.raises(RuntimeError, match="cannot be converted to type float32"):
        lt.full((2,), 1e39)
    half = lt.full((2,), -float("inf"), dtype=lt.float16)
    assert half.tolist() == [-float("inf")] * 2
    with pytest.raises(TypeError, match="must be Number, not str"):
        lt.full((2,), "a")
    with pytest.raises(TypeError, match="must be a lowtide.Generator, not int"):
        lt.randn(2, generator=5)


def test_fill_and_zero_as_functions():
    x = lt.arange(3.0)
    assert lt.fill(x, 2).tolist() == [2.0, 2.0, 2.0]
    assert x.tolist() == [0.0, 1.0, 2.0]
    assert lt.zero_(x) is x
    assert x.tolist() == [0.0, 0.0, 0.0]
    assert lt.resize_as_(x, lt.ones(2)).shape == (2,)


def test_empty_permuted_lies_densely_in_the_order_asked_for():
    x = lt.empty_permuted((2, 3, 4), (0, 2, 1))
    assert (tuple(x.shape), x.stride()) == ((2, 3, 4), (12, 1, 3))
    assert lt.empty_permuted((2, 3, 4, 5), (0, 2, 3, 1)).is_contiguous(
        memory_format=lt.channels_last
    )
    with pytest.raises(RuntimeError, match="Duplicate dim"):
        lt.empty_permuted((2, 3), (0, 0))
    assert lt.ones(2, dtype=lt.int32).new_empty_strided((2, 2), (1, 2)).stride() == (1, 2)


def test_map2_combines_three_tensors():
    x = lt.tensor([1.0, 2.0])
    x.map2_(lt.tensor([10.0, 20.0]), lt.tensor(5.0), lambda a, b, c: a + b * c)
    assert x.tolist() == [51.0, 102.0]


def test_complex_and_polar_check_their_parts():
    x = lt.ones(2)
    assert lt.complex(x, x).tolist() == [1 + 1j, 1 + 1j]
    for f in (lt.complex, lt.polar):
        with pytest.raises(RuntimeError, match="but got scalar type lowtide.float64"):
            f(x, x.double())
        with pytest.raises(RuntimeError, match="Expected both inputs to be Half, Float or Double"):
            f(x.long(), x.long())
        with pytest.raises(RuntimeError, match="for argument 'out'"):
            f(x, x, out=lt.empty(2, dtype=lt.complex128))
