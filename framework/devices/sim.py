"""``sim``: a GPU's manners on a machine without one.

Its arrays lie in host memory and NumPy computes, but nothing passes that CuPy would refuse. A
:class:`SimArray` does not turn into a NumPy array by itself, functions refuse NumPy's arrays and
lists of numbers, reductions return 0-d arrays and not scalars, and only functions and arguments
that CuPy has exist. An index array out of range wraps around silently, as it does on a GPU: so an
op that forgot to check is found by comparing with the CPU. It has an arena and a ledger of its
own. ``tests/devices/test_sim.py`` runs every op here and on the CPU.

What exists was taken from CuPy 14.2. Where CuPy exists but fails (N-d bfloat16 products, ``at``
for element types without atomics), so does this.

Not simulated: streams, and that of several values assigned to one element any may win.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from .host import HostBackend

_UFUNCS = frozenset(
    """abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and
    bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide divmod equal exp
    exp2 expm1 fabs float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal
    heaviside hypot invert isfinite isinf isnan lcm ldexp left_shift less less_equal log log10
    log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum
    mod modf multiply negative nextafter not_equal positive pow power rad2deg radians reciprocal
    remainder right_shift rint sign signbit sin sinh sqrt square subtract tan tanh true_divide
    trunc""".split()  # noqa: SIM905 - a table, easier to read and compare than a list
)
_SCATTERS = frozenset(
    "add subtract maximum minimum bitwise_and bitwise_or bitwise_xor".split()  # noqa: SIM905
)
_ATOMIC = frozenset("iIlLqQefdFD")  # element types, by NumPy's letters, that CuPy's ``at`` takes

# name: the parameters that CuPy's function has.
_TABLE = """
all: a axis out keepdims
allclose: a b rtol atol equal_nan
amax: a axis out keepdims
amin: a axis out keepdims
angle: z deg
any: a axis out keepdims
append: arr values axis
arange: start stop step dtype
argmax: a axis dtype out keepdims
argmin: a axis dtype out keepdims
argpartition: a kth axis
argsort: a axis kind
argwhere: a
around: a decimals out
array_equal: a1 a2 equal_nan
array_split: ary indices_or_sections axis
ascontiguousarray: a dtype
bincount: x weights minlength
broadcast_arrays: *args
broadcast_shapes: *args
broadcast_to: array shape
can_cast: from_ to casting
choose: a choices out mode
clip: a a_min a_max out
column_stack: tup
compress: condition a axis out
concatenate: tup axis out dtype casting
copy: a order
copyto: dst src casting where
count_nonzero: a axis
cross: a b axisa axisb axisc axis
cumprod: a axis dtype out
cumsum: a axis dtype out
delete: arr indices axis
diag: v k
diagflat: v k
diagonal: a offset axis1 axis2
diff: a n axis prepend append
dot: a b out
dstack: tup
einsum: *operands **kwargs
empty: shape dtype order
empty_like: prototype dtype order subok shape
expand_dims: a axis
eye: N M k dtype order
fill_diagonal: a val wrap
fix: x out
flatnonzero: a
flip: a axis
fliplr: a
flipud: a
full: shape fill_value dtype order
full_like: a fill_value dtype order subok shape
histogram: x bins range density weights
hstack: tup dtype casting
i0: x out
identity: n dtype
imag: val
indices: dimensions dtype
inner: a b
isclose: a b rtol atol equal_nan
isin: element test_elements assume_unique invert
isneginf: x out
isposinf: x out
isreal: x
iscomplexobj: x
isscalar: element
issubdtype: arg1 arg2
ix_: *args
kron: a b
lexsort: keys
linspace: start stop num endpoint retstep dtype axis
logspace: start stop num endpoint base dtype axis
matmul: x1 x2 axes axis keepdims casting dtype signature order out
max: a axis out keepdims
mean: a axis dtype out keepdims
median: a axis out overwrite_input keepdims
meshgrid: *xi **kwargs
min: a axis out keepdims
moveaxis: a source destination
nan_to_num: x copy nan posinf neginf
nanmax: a axis out keepdims
nanmean: a axis dtype out keepdims
nanmedian: a axis out overwrite_input keepdims
nanmin: a axis out keepdims
nansum: a axis dtype out keepdims
ndim: a
nonzero: a
ones: shape dtype order
ones_like: a dtype order subok shape
outer: a b out
packbits: a axis bitorder
pad: array pad_width mode **kwargs
partition: a kth axis
prod: a axis dtype out keepdims
promote_types: type1 type2
put_along_axis: arr indices values axis
putmask: a mask values
quantile: a q axis out overwrite_input method keepdims
ravel: a order
ravel_multi_index: multi_index dims mode order
real: val
repeat: a repeats axis
reshape: a newshape order copy
resize: a new_shape
result_type: *arrays_and_dtypes
roll: a shift axis
rollaxis: a axis start
rot90: a k axes
round: a decimals out
searchsorted: a v side sorter
select: condlist choicelist default
shape: a
sinc: x out
size: a axis
sort: a axis kind
split: ary indices_or_sections axis
squeeze: a axis
stack: tup axis out dtype casting
std: a axis dtype out ddof keepdims
sum: a axis dtype out keepdims
swapaxes: a axis1 axis2
take: a indices axis out
take_along_axis: a indices axis
tensordot: a b axes
tile: A reps
trace: a offset axis1 axis2 dtype out
transpose: a axes
tri: N M k dtype
tril: m k
tril_indices: n k m
triu: m k
triu_indices: n k m
unique: ar return_index return_inverse return_counts axis equal_nan
unpackbits: a axis bitorder
unravel_index: indices dims order
var: a axis dtype out ddof keepdims
vdot: a b
vstack: tup dtype casting
where: condition x y
zeros: shape dtype order
zeros_like: a dtype order subok shape
"""
_FUNCTIONS = {
    name: frozenset(parameters.split())
    for name, _, parameters in (line.partition(":") for line in _TABLE.strip().splitlines())
}
_LINALG = {
    "cholesky": "a", "cond": "x p", "det": "a", "eig": "a", "eigh": "a UPLO", "eigvals": "a",
    "eigvalsh": "a UPLO", "inv": "a", "lstsq": "a b rcond", "matrix_power": "M n",
    "matrix_rank": "M tol", "norm": "x ord axis keepdims", "pinv": "a rcond", "qr": "a mode",
    "slogdet": "a", "solve": "a b", "svd": "a full_matrices compute_uv", "tensorinv": "a ind",
    "tensorsolve": "a b axes",
}  # fmt: skip
_FFT = {
    name: "a n axis norm" if name.endswith("fft") else "a s axes norm"
    for name in "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()  # noqa: E501, SIM905
} | {"fftfreq": "n d", "rfftfreq": "n d", "fftshift": "x axes", "ifftshift": "x axes"}
# Where CuPy and NumPy call a parameter differently.
_RENAMED = {("reshape", "newshape"): "shape", ("logspace", "base"): "base"}
_SEQUENCES = frozenset(
    """broadcast_arrays choose column_stack concatenate dstack einsum hstack ix_ lexsort meshgrid
    ravel_multi_index result_type select stack vstack""".split()  # noqa: SIM905
)
_CONSTANTS = frozenset(
    """bool bool_ complex128 complex64 complexfloating dtype e euler_gamma finfo float16 float32
    float64 floating generic iinfo inexact inf int16 int32 int64 int8 integer intp nan newaxis
    number pi signedinteger uint16 uint32 uint64 uint8 unsignedinteger""".split()  # noqa: SIM905
)


def _lower(x: Any, deep: bool = False) -> Any:
    # The NumPy array inside; refuses what CuPy refuses.
    if isinstance(x, SimArray):
        return x._a
    if isinstance(x, np.ndarray):
        raise TypeError(
            "Unsupported type <class 'numpy.ndarray'>: a kernel on sim (as on cuda) takes arrays "
            "of its device and Python scalars. Move it with xp.asarray() or tensor.to()."
        )
    if isinstance(x, list | tuple):
        if deep:
            return type(x)(_lower(v, deep) for v in x)
        if any(isinstance(v, SimArray | np.ndarray) for v in x):
            raise TypeError(f"Unsupported type {type(x)}: CuPy takes no list of arrays here.")
    return x


def _lift(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return SimArray(x)
    if isinstance(x, np.generic):
        return SimArray(np.asarray(x))
    if isinstance(x, tuple | list):
        return type(x)(map(_lift, x)) if type(x) in (tuple, list) else tuple(map(_lift, x))
    return x


def _checked(name: str, allowed: frozenset[str], module: Any) -> Any:
    plain = getattr(module, name)
    deep = name in _SEQUENCES
    open_ended = "**kwargs" in allowed

    @functools.wraps(plain, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        unknown = set(kwargs) - allowed
        if unknown and not open_ended:
            raise TypeError(
                f"{name}() got an unexpected keyword argument {sorted(unknown)[0]!r}: CuPy's "
                f"takes {', '.join(sorted(allowed))}."
            )
        given = [_lower(a, deep) for a in args]
        named = {_RENAMED.get((name, k), k): _lower(v, deep) for k, v in kwargs.items()}
        if name == "take":
            named["mode"] = "wrap"
        if name in ("matmul", "einsum", "tensordot"):
            _refuse_batched_bfloat16(name, given)
        with np.errstate(all="ignore"):  # a GPU warns of nothing
            return _lift(plain(*given, **named))

    return function


def _refuse_batched_bfloat16(name: str, given: list[Any]) -> None:
    arrays = [a for a in given if isinstance(a, np.ndarray)]
    if any(a.dtype.name == "bfloat16" and a.ndim > 2 for a in arrays):
        raise TypeError(f"{name}: CuPy has no batched product of bfloat16. Compute in float32.")


class SimUfunc:
    """A universal function with CuPy's methods, and no others."""

    def __init__(self, name: str) -> None:
        self._plain = getattr(np, name)
        self.name = self.__name__ = name
        self.nin, self.nout, self.nargs = self._plain.nin, self._plain.nout, self._plain.nargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute elementwise; takes ``out``, ``where``, ``dtype`` and ``casting``."""
        unknown = set(kwargs) - {"out", "where", "dtype", "casting"}
        if unknown:
            raise TypeError(f"{self.name}() got an unexpected keyword argument {unknown.pop()!r}.")
        for a in args:
            if isinstance(a, list | tuple):
                raise TypeError(f"Unsupported type {type(a)}: CuPy's ufuncs take no lists.")
        if not any(isinstance(a, SimArray) for a in args):
            raise TypeError(f"{self.name} on sim needs an array of the device among its inputs.")
        named = {k: _lower(v, deep=k == "out") for k, v in kwargs.items()}
        with np.errstate(all="ignore"):
            return _lift(self._plain(*map(_lower, args), **named))

    def _only(self, method: str, *names: str) -> None:
        if self.name not in names:
            raise NotImplementedError(f"`cupy_{self.name}.{method}` is not supported yet")

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """Reduce by addition or multiplication."""
        self._only("reduce", "add", "multiply")
        return _lift(self._plain.reduce(_lower(array), axis, dtype, _lower(out), keepdims))

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Add or multiply up."""
        self._only("accumulate", "add", "multiply")
        return _lift(self._plain.accumulate(_lower(array), axis, dtype, _lower(out)))

    def reduceat(
        self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
    ) -> Any:
        """Add up stretches."""
        self._only("reduceat", "add")
        return _lift(self._plain.reduceat(_lower(array), _lower(indices), axis, dtype, _lower(out)))

    def outer(self, a: Any, b: Any, **kwargs: Any) -> Any:
        """Apply to all pairs."""
        return _lift(self._plain.outer(_lower(a), _lower(b), **kwargs))

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """Update elements in place, by atomic operations."""
        self._only("at", *_SCATTERS)
        if a.dtype.char not in _ATOMIC:
            raise TypeError(f"`{self.name}.at` supports no {a.dtype}: CuPy has no atomics for it.")
        inside = _wrapped(indices, a.shape)
        with np.errstate(all="ignore"):
            self._plain.at(_lower(a), inside, _lower(b))


def _wrapped(index: Any, shape: tuple[int, ...]) -> Any:
    # The index with arrays unwrapped, integers in them taken modulo the size of their axis.
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(np.asarray(p) if isinstance(p, list) else _lower(p) for p in parts)
    used = sum(
        p.ndim if isinstance(p, np.ndarray) and p.dtype == bool else p is not None
        for p in parts
        if p is not Ellipsis
    )
    axis = 0
    out: list[Any] = []
    for p in parts:
        if p is Ellipsis:
            axis += len(shape) - used
        elif isinstance(p, np.ndarray) and p.dtype == bool:
            axis += p.ndim
        elif p is not None:
            if isinstance(p, np.ndarray) and axis < len(shape) and shape[axis]:
                p = p % shape[axis]
            axis += 1
        out.append(p)
    return tuple(out) if isinstance(index, tuple) else out[0]


class SimFlags:
    """The flags that CuPy's arrays have."""

    __slots__ = ("c_contiguous", "f_contiguous", "owndata")

    def __init__(self, array: Any) -> None:
        self.c_contiguous: bool = array.flags.c_contiguous
        self.f_contiguous: bool = array.flags.f_contiguous
        self.owndata: bool = array.flags.owndata


class SimArray:
    """An array of the device ``sim``, with the members of ``cupy.ndarray``."""

    __slots__ = ("__weakref__", "_a")
    __array_priority__ = 100
    __array_ufunc__ = None  # NumPy's operators and functions leave it alone
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any) -> None:
        self._a = array

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    @property
    def flags(self) -> SimFlags:
        """Whether the elements lie in C or Fortran order."""
        return SimFlags(self._a)

    @property
    def T(self) -> SimArray:
        """The transpose."""
        return SimArray(self._a.T)

    @property
    def mT(self) -> SimArray:
        """The transpose of the last two axes."""
        return SimArray(np.swapaxes(self._a, -1, -2))

    @property
    def real(self) -> SimArray:
        """The real part, a view."""
        return SimArray(self._a.real)

    @real.setter
    def real(self, value: Any) -> None:
        self._a.real = _lower(value)

    @property
    def imag(self) -> SimArray:
        """The imaginary part, a view if complex."""
        return SimArray(self._a.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._a.imag = _lower(value)

    @property
    def base(self) -> Any:
        """What it is a view of."""
        return _lift(self._a.base)

    def get(self) -> Any:
        """A copy as a NumPy array: the only way out."""
        return self._a.copy()

    def set(self, array: Any) -> None:
        """Copy a NumPy array of the same shape and dtype in: the only way in."""
        if array.shape != self._a.shape or array.dtype != self._a.dtype:
            raise ValueError(f"set() takes {self._a.shape} {self._a.dtype}; got {array.shape}.")
        self._a[...] = array

    def item(self) -> Any:
        """The only element as a Python scalar."""
        return self._a.item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self._a.tolist()

    def __getitem__(self, index: Any) -> Any:
        return _lift(self._a[_wrapped(index, self._a.shape)])

    def __setitem__(self, index: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._a[_wrapped(index, self._a.shape)] = _lower(value)

    def __len__(self) -> int:
        return len(self._a)

    def __iter__(self) -> Any:
        return map(_lift, iter(self._a))

    def __bool__(self) -> bool:
        return bool(self._a)

    def __int__(self) -> int:
        return int(self._a)

    def __float__(self) -> float:
        return float(self._a)

    def __complex__(self) -> complex:
        return complex(self._a)

    def __index__(self) -> int:
        return operator.index(self._a)

    def __repr__(self) -> str:
        return f"sim{self._a!r}"


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self._a, name))


def _method(name: str) -> Any:
    def method(self: SimArray, *args: Any, **kwargs: Any) -> Any:
        given = [_lower(a) for a in args]
        with np.errstate(all="ignore"):
            return _lift(
                getattr(self._a, name)(*given, **{k: _lower(v) for k, v in kwargs.items()})
            )

    method.__name__ = name
    return method


def _operator(name: str) -> Any:
    def method(self: SimArray, *args: Any) -> Any:
        for a in args:
            if isinstance(a, list | tuple):
                raise TypeError(f"Unsupported type {type(a)}: CuPy's operators take no lists.")
        with np.errstate(all="ignore"):
            out = getattr(self._a, name)(*map(_lower, args))
        return self if out is self._a else _lift(out)

    return method


for _name in ("shape", "dtype", "strides", "ndim", "size", "nbytes", "itemsize"):
    setattr(SimArray, _name, _attribute(_name))
for _name in """all any argmax argmin argpartition argsort astype choose clip compress conj
    conjugate copy cumprod cumsum diagonal dot fill flatten max mean min nonzero partition prod
    ravel repeat reshape round searchsorted sort squeeze std sum swapaxes trace transpose var
    view""".split():  # noqa: SIM905
    setattr(SimArray, _name, _method(_name))
for _name in """add sub mul truediv floordiv mod pow matmul and or xor lshift rshift""".split():  # noqa: SIM905
    for _form in ("", "r", "i"):
        if _name + _form != "matmuli":
            setattr(SimArray, f"__{_form}{_name}__", _operator(f"__{_form}{_name}__"))
for _name in "neg pos abs invert eq ne lt le gt ge".split():  # noqa: SIM905
    setattr(SimArray, f"__{_name}__", _operator(f"__{_name}__"))


def _take(self: SimArray, indices: Any, axis: Any = None, out: Any = None) -> Any:
    return SIM.take(self, indices, axis=axis, out=out)


SimArray.take = _take  # type: ignore[attr-defined]


class SimModule:
    """The functions of one module of CuPy, checked."""

    def __init__(self, module: Any, functions: dict[str, Any], **extra: Any) -> None:
        self._module = module
        self._functions = functions
        self.__dict__.update(extra)

    def __getattr__(self, name: str) -> Any:
        allowed = self._functions.get(name)
        if allowed is None:
            raise AttributeError(
                f"module 'cupy' has no attribute {name!r} (or lowtide's stand-in for it on sim "
                "does not know it). Use a function that NumPy and CuPy both have, or declare a "
                "kernel for the cpu beside the plain one."
            )
        made = _checked(name, allowed, self._module)
        self.__dict__[name] = made
        return made


@functools.cache
def special() -> SimModule:
    """What ``cupyx.scipy.special`` has of SciPy's special functions; ops ask for it."""
    from importlib import import_module

    names = """digamma entr erf erfc erfcx erfinv gammainc gammaincc gammaln i0 i0e i1 i1e j0 j1
        k0 k0e k1 k1e log_ndtr ndtr ndtri xlogy y0 y1 zeta""".split()  # noqa: SIM905
    return SimModule(import_module("scipy.special"), dict.fromkeys(names, frozenset({"out"})))


def _array(obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", ndmin: int = 0) -> Any:
    """Copy a NumPy array, a list or a scalar to the device."""
    source = obj._a if isinstance(obj, SimArray) else obj
    return SimArray(np.array(source, dtype=dtype, order=order, ndmin=ndmin))  # type: ignore[call-overload]


def _asarray(a: Any, dtype: Any = None, order: str = "K") -> Any:
    """The array itself if it is one of the device, else a copy there."""
    if isinstance(a, SimArray) and (dtype is None or a._a.dtype == dtype):
        return a
    return _array(a, dtype=dtype, order=order)


def _asnumpy(a: Any) -> Any:
    """Copy to a NumPy array."""
    return a.get() if isinstance(a, SimArray) else np.asarray(a)


def _as_strided(x: Any, shape: Any = None, strides: Any = None) -> Any:
    """A view with other shape and strides."""
    return SimArray(np.lib.stride_tricks.as_strided(x._a, shape, strides))


def _sliding_window_view(x: Any, window_shape: Any, axis: Any = None, **_: Any) -> Any:
    """A view of all windows."""
    return SimArray(np.lib.stride_tricks.sliding_window_view(x._a, window_shape, axis))


def _split(parameters: dict[str, str]) -> dict[str, frozenset[str]]:
    return {name: frozenset(text.split()) for name, text in parameters.items()}


_strides = SimModule(np, {}, as_strided=_as_strided, sliding_window_view=_sliding_window_view)
SIM: Any = SimModule(
    np,
    _FUNCTIONS,
    **{name: SimUfunc(name) for name in _UFUNCS if hasattr(np, name)},
    **{name: getattr(np, name) for name in _CONSTANTS if hasattr(np, name)},
    __name__="sim",
    ndarray=SimArray,
    array=_array,
    asarray=_asarray,
    asnumpy=_asnumpy,
    linalg=SimModule(np.linalg, _split(_LINALG), LinAlgError=np.linalg.LinAlgError),
    fft=SimModule(np.fft, _split(_FFT)),
    lib=SimModule(np, {}, stride_tricks=_strides),
)


class SimBackend(HostBackend):
    """The host's allocator under the arrays of a stand-in for a GPU."""

    def __init__(self, largest: int) -> None:
        super().__init__("sim", largest, computes=True)
        self.xp = SIM
        self.kernel_key = "sim"  # no fast kernel: the plain ones must do

    def empty(self, spec: Any, role: int = 0) -> tuple[Any, Any]:
        """Take an uninitialized contiguous array of ``spec`` from the pool."""
        storage, array = super().empty(spec, role)
        return storage, SimArray(array)

    def window(self, storage: Any, spec: Any, place: Any) -> Any:
        """An array on bytes of a storage."""
        return SimArray(super().window(storage, spec, place))

    def from_host(self, array: Any, spec: Any, role: int) -> tuple[Any, Any]:
        """Copy a NumPy array to the device."""
        storage, out = self.empty(spec, role)
        np.copyto(out._a, array, casting="unsafe")
        return storage, out

    def to_host(self, array: Any) -> Any:
        """A copy as a NumPy array."""
        return array.get()

    def copy(self, out: Any, array: Any) -> None:
        """Copy within the device, converting."""
        with np.errstate(all="ignore"):
            np.copyto(_lower(out), _lower(array), casting="unsafe")

    def address(self, array: Any) -> int:
        """Address of the first element."""
        return int(array._a.__array_interface__["data"][0])


def sim_backend() -> SimBackend:
    """The stand-in, with room for as much as the machine's memory."""
    import os

    return SimBackend(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
