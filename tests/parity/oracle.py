"""PyTorch's own catalogue of operators as an oracle: find the counterpart, convert, compare.

PyTorch ships, for its test suite, a database of its operators (``op_db``): for each one a
callable, the dtypes it takes, generators of sample inputs that reach its edges, and calls that
must fail. The functions here run such a sample through both frameworks.

A sample's function may be a lambda that calls ``torch.something``. Such a function runs here with
the name ``torch`` bound to lowtide, which also shows that ordinary code needs no other change.
"""

import functools
import inspect
import types

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

import lowtide as lt
from lowtide.framework.autograd.engine import grad

OPERATORS = {f"{op.name}/{op.variant_test_name}".rstrip("/"): op for op in op_db}
DTYPES = {
    getattr(torch, name): getattr(lt, name)
    for name in (
        "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
    ).split()
}
EXACT = (torch.float64, torch.complex128)
# Precisions in which a sum that cancels has few right digits, and what tells how many.
ROUNDED = {torch.float16: torch.float64, torch.bfloat16: torch.float64} | {
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
WRAPPERS = frozenset(
    f"gradcheck_wrapper_{kind}"
    for kind in "hermitian_input triangular_input_real_positive_diagonal ctc_loss".split()
)
# Drawn at random: shapes and dtypes are compared, numbers cannot be.
RANDOM = frozenset(
    """
    bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal
    multinomial new_empty new_empty_strided nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu
    normal pca_lowrank rand rand_like randint randint_like randn randn_like randperm svd_lowrank
    uniform
    """.split()
)


class Absent(Exception):
    """Lowtide has no function of that name."""


class NotComparable(Exception):
    """The sample uses what lowtide does not have by design: sparse layout, a missing dtype."""


def _counterparts():
    found = {}
    for path in ("", ".nn.functional", ".linalg", ".fft", ".special", ".signal.windows", ".Tensor"):
        theirs, ours = torch, lt
        for part in path.split(".")[1:]:
            theirs, ours = getattr(theirs, part), getattr(ours, part)
        for name in dir(theirs):
            member = getattr(theirs, name, None)
            if callable(member) and hasattr(member, "__hash__") and hasattr(ours, name):
                found.setdefault(member, getattr(ours, name))
    return found


COUNTERPARTS = _counterparts()


def counterpart(function):
    """Lowtide's function for one of PyTorch's, or the same Python code over lowtide.

    Raises:
        Absent: There is none.
    """
    function = getattr(function, "op", function) if hasattr(function, "op") else function
    if function in COUNTERPARTS:
        return COUNTERPARTS[function]
    if isinstance(function, types.FunctionType) and (
        function.__name__ == "<lambda>" or function.__module__.startswith("torch.testing")
    ):
        return _rebound(function)
    raise Absent(getattr(function, "__name__", repr(function)))


def _rebound(function):
    names = {**function.__globals__, "torch": lt, "F": lt.nn.functional}
    cells = tuple(types.CellType(_ours(c.cell_contents)) for c in function.__closure__ or ())
    if _says_torch_ops(function.__code__):
        raise Absent(f"torch.ops in {function.__name__}")
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, cells or None
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _ours(value):
    if not callable(value) or isinstance(value, type):
        return value
    if not hasattr(value, "sample_inputs_func"):
        return counterpart(value)
    found = functools.partial(counterpart(value))  # an entry of the catalogue, which has a name
    found.name = value.name
    return found


def _says_torch_ops(code):
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return {"torch", "ops"} <= set(code.co_names) or any(map(_says_torch_ops, inner))


def convert(value, memory=None):
    """One of PyTorch's arguments as lowtide's: same numbers, strides, and wish for a gradient.

    Args:
        value: The argument.
        memory: A dict, if tensors that share memory there shall share it here: what has been
            converted so far.
    """
    if isinstance(value, torch.Tensor):
        return _convert_tensor(value, memory)
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise NotComparable(str(value))
        return DTYPES[value]
    if isinstance(value, torch.device):
        return lt.device(str(value))
    if isinstance(value, torch.memory_format):
        return getattr(lt, str(value).removeprefix("torch."))
    if isinstance(value, torch.layout):
        if value is torch.strided:
            return lt.strided
        raise NotComparable(str(value))
    if isinstance(value, torch.Generator):
        return lt.Generator()
    if isinstance(value, torch.nn.Module):
        raise NotComparable("a module")
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, list | tuple):
        return type(value)(convert(v, memory) for v in value)
    if isinstance(value, dict):
        return {k: convert(v, memory) for k, v in value.items()}
    if callable(value) and not isinstance(value, type):
        return counterpart(value)
    return value  # numbers, strings, None


def _convert_tensor(value, memory):
    if value.layout != torch.strided or value.dtype not in DTYPES or value.dim() > 64:
        raise NotComparable(f"{value.layout}, {value.dtype}")
    if value.device.type == "meta":
        return lt.empty(tuple(value.shape), dtype=DTYPES[value.dtype], device="meta")
    plain = value.detach().resolve_conj().resolve_neg()
    bytes_ = plain.untyped_storage()
    whole = bytes_.nbytes() <= plain.numel() * plain.element_size()
    packed = plain.is_contiguous() and whole and memory is None
    if plain.numel() and not bytes_.nbytes():  # what PyTorch leaves of an out= that it refused
        raise NotComparable("a tensor without memory")
    place = (bytes_.data_ptr(), plain.dtype)
    if memory is not None and place in memory:
        ours = memory[place].as_strided(tuple(plain.shape), plain.stride(), plain.storage_offset())
        return ours.detach().requires_grad_(value.requires_grad)
    # Unless packed: everything in memory, and then the same window on it.
    flat = plain.contiguous() if packed else torch.empty(0, dtype=plain.dtype).set_(bytes_)
    bits = flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat
    ours = lt.from_numpy(bits.numpy().copy())
    if flat.dtype == torch.bfloat16:
        ours = ours.view(lt.bfloat16)
    if memory is not None and place[0]:
        memory[place] = ours
    if not packed:
        ours = ours.as_strided(tuple(plain.shape), plain.stride(), plain.storage_offset())
    ours = ours.detach()
    return ours.requires_grad_() if value.requires_grad else ours


def leaves(value, kind):
    """All tensors of a nested value."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [leaf for element in value for leaf in leaves(element, kind)]


def numbers(tensor):
    """A tensor of either framework as a NumPy array; bfloat16 as float32."""
    tensor = tensor.detach()
    if isinstance(tensor, torch.Tensor):
        if tensor._is_zerotensor():
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
        tensor = tensor.resolve_conj().resolve_neg()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return (tensor.float() if tensor.dtype is lt.bfloat16 else tensor).numpy()


def assert_same(what, ours, theirs, rtol=1e-6, atol=1e-8):
    """Same shape, dtype and numbers, NaN where the other has NaN."""
    assert tuple(ours.shape) == tuple(theirs.shape), f"{what}: {ours.shape}, {theirs.shape}"
    assert ours.dtype.name == str(theirs.dtype)[6:], f"{what}: {ours.dtype}, {theirs.dtype}"
    np.testing.assert_allclose(
        numbers(ours), numbers(theirs), rtol=rtol, atol=atol, equal_nan=True, err_msg=what
    )


def describe(sample):
    """A sample's shapes and attributes, for messages."""

    def word(value):
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{dtype}{list(value.shape)}{'' if value.is_contiguous() else ' strided'}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(word, value))}]"
        return repr(value)

    words = [word(sample.input), *map(word, sample.args)]
    return ", ".join([*words, *(f"{k}={word(v)}" for k, v in sample.kwargs.items())])


# Which of equal elements they name is left open.
_CHOOSING = frozenset("argsort kthvalue median mode nanmedian sort topk".split())


def names_equal_elements(op, sample, found, expected):
    """Whether indices, though others than PyTorch's, name elements of the same value.

    Args:
        op: The operator.
        sample: Its sample, of PyTorch.
        found: Lowtide's tensor.
        expected: PyTorch's.
    """
    if op.name not in _CHOOSING or expected.dtype != torch.int64 or not sample.input.ndim:
        return False
    if sample.kwargs.get("stable") or found.dtype is not lt.int64:
        return False
    function = counterpart(op.op)
    if op.name == "median" and not (sample.args or sample.kwargs):
        return False
    given = inspect.signature(function).bind(sample.input, *sample.args, **sample.kwargs)
    given.apply_defaults()
    dim = given.arguments["dim"]
    if dim is None:
        return False
    theirs, x = expected, sample.input.detach()
    ours = torch.from_numpy(numbers(found))
    if theirs.ndim < x.ndim:
        theirs, ours = theirs.unsqueeze(dim), ours.unsqueeze(dim)
    if theirs.shape != ours.shape:
        return False
    distinct = bool((ours.sort(dim)[0].diff(dim=dim) > 0).all())
    return distinct and torch.equal(x.gather(dim, ours), x.gather(dim, theirs))


def draws(op, sample):
    """Whether a sample's result depends on the random stream."""
    options = sample.kwargs
    return (
        op.name in RANDOM
        or bool(options.get("dropout_p"))
        or (bool(options.get("training")) and "p" in options)
        or op.name == "nn.functional.multi_head_attention_forward"
    )


def tolerances(dtype):
    """How far results may be apart: rounding of the dtype, and of another order of sums."""
    if dtype in (torch.float16, torch.bfloat16):
        return {"rtol": 3e-2, "atol": 1e-2}
    if dtype in (torch.float32, torch.complex64):
        return {"rtol": 1e-3, "atol": 1e-4}
    return {}


def compare(op, sample, dtype):
    """Run one sample in both: values, and in double precision two orders of gradient.

    Returns:
        How many orders of gradient were compared: 0, 1 or 2. None if PyTorch itself refuses the
        sample, or lowtide does not have what it is made of.
    """
    try:
        arguments = convert([sample.input, *sample.args])
        options = convert(sample.kwargs)
    except (NotComparable, Absent):
        return None
    function = counterpart(op.op)
    call, ours_call = op.op, function
    if dtype in EXACT and op.gradcheck_wrapper.__name__ in ("<lambda>", *WRAPPERS):
        # Makes a matrix hermitian or triangular, where gradients mean something for such ones only.
        call = functools.partial(op.gradcheck_wrapper, op.op)
        ours_call = functools.partial(_rebound(op.gradcheck_wrapper), function)
    try:
        expected = call(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
        return None
    theirs = [sample.input, sample.args, sample.kwargs]
    x = [t for t in leaves(theirs, torch.Tensor) if t.requires_grad]
    y = [t for t in leaves([arguments, options], lt.Tensor) if t.requires_grad]
    result = ours_call(*arguments, **options)
    fix = sample.output_process_fn_grad  # removes what is free, such as the signs of eigenvectors
    if isinstance(fix, types.FunctionType):
        expected, result = fix(expected), _rebound(fix)(result)
    a, b = leaves(result, lt.Tensor), leaves(expected, torch.Tensor)
    assert len(a) == len(b), f"{len(a)} results, PyTorch has {len(b)}"
    if draws(op, sample):
        for ours, reference in zip(a, b, strict=True):
            assert tuple(ours.shape) == tuple(reference.shape)
            assert ours.dtype.name == str(reference.dtype)[6:]
        return 0
    for ours, reference in zip(a, b, strict=True):
        if reference is b[-1] and names_equal_elements(op, sample, ours, reference):
            continue
        try:
            assert_same("value", ours, reference, **tolerances(reference.dtype))
        except AssertionError:
            if dtype not in ROUNDED or not _nearer(op, sample, a, b):
                raise
            break  # where PyTorch's rounding has spoiled more than ours, its numbers are no oracle
    if dtype not in EXACT or not x:
        return 0
    return _compare_gradients(op, a, b, y, x)


def _nearer(op, sample, ours, theirs):
    # Whether our results are as near as PyTorch's to those of its float64.
    def wide(value):
        if isinstance(value, torch.Tensor) and value.dtype in ROUNDED:
            return value.detach().to(ROUNDED[value.dtype])
        if isinstance(value, list | tuple):
            return type(value)(map(wide, value))
        return {k: wide(v) for k, v in value.items()} if isinstance(value, dict) else value

    try:
        exact = leaves(
            op.op(wide(sample.input), *wide(sample.args), **wide(sample.kwargs)), torch.Tensor
        )
    except (RuntimeError, TypeError):
        return False

    def error(x, truth):
        with np.errstate(all="ignore"):
            off = np.abs(numbers(x).astype(truth.dtype) - truth)
        return np.max(np.where(np.isnan(off), np.inf, off), initial=0)

    return all(
        p.dtype.name == str(q.dtype)[6:]
        and tuple(p.shape) == tuple(q.shape)
        and error(p, numbers(r)) <= error(q, numbers(r))
        for p, q, r in zip(ours, theirs, exact, strict=True)
    )


def _weights(tensors, seed):
    rng = np.random.default_rng(seed)
    drawn = []
    for t in tensors:
        w = rng.standard_normal(tuple(t.shape))
        drawn.append(w + 1j * rng.standard_normal(tuple(t.shape)) if t.dtype.is_complex else w)
    return drawn


def _pull(ours, theirs, y, x, seed, keep):
    # Gradients of both with the same weights; None if PyTorch cannot.
    drawn = _weights(theirs, seed)
    try:
        expected = torch.autograd.grad(
            theirs,
            x,
            [torch.tensor(w, dtype=t.dtype) for w, t in zip(drawn, theirs, strict=True)],
            create_graph=keep,
            allow_unused=True,
            materialize_grads=True,
        )
    except RuntimeError:
        return None
    live = [k for k, t in enumerate(ours) if t.requires_grad]  # lowtide drops what is constant
    if not live:
        return [lt.zeros_like(t) for t in y], expected
    got = grad(
        [ours[k] for k in live],
        y,
        [lt.tensor(drawn[k]).to(ours[k].dtype) for k in live],
        create_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )
    return got, expected


def _compare_gradients(op, a, b, y, x):
    kept = [
        k
        for k, t in enumerate(b)
        if t.requires_grad and "NotImplemented" not in getattr(t.grad_fn, "name", str)()
    ]
    if not kept:
        return 0
    missing = [k for k in kept if not a[k].requires_grad]
    assert not missing, f"results {missing} do not require grad"
    pulled = _pull([a[k] for k in kept], [b[k] for k in kept], y, x, 1, True)
    if pulled is None:
        return 0
    for k, (ours, reference) in enumerate(zip(*pulled, strict=True)):
        assert_same(f"gradient {k}", ours, reference, **tolerances(reference.dtype))
    again = [(p, q) for p, q in zip(*pulled, strict=True) if q.requires_grad]
    if not op.supports_gradgrad or not again:
        return 1
    pulled = _pull(*map(list, zip(*again, strict=True)), y, x, 2, False)
    if pulled is None:
        return 1
    for k, (ours, reference) in enumerate(zip(*pulled, strict=True)):
        assert_same(
            f"second gradient {k}", ours, reference, **{"atol": 1e-7} | tolerances(reference.dtype)
        )
    return 2


def refusals(op):
    """Calls that PyTorch refuses, from its own catalogue.

    Yields:
        (sample, the type it raises, lowtide's arguments, its keywords), converted before the call,
        for a call that fails may have resized an ``out=``.
    """
    for case in op.error_inputs("cpu"):
        sample = case.sample_input
        memory = {}
        try:
            arguments = convert([sample.input, *sample.args], memory)
            options = convert(sample.kwargs, memory)
        except (NotComparable, Absent):
            continue
        try:
            op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # whatever it is, it is what is expected here
            yield sample, type(error), arguments, options
