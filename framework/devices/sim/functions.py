"""What CuPy 14.2 has of NumPy's and SciPy's functions, and the parameters each takes there.

Plain tables: ``backend.py`` makes functions of them, and nothing that is not here exists on
``sim``. ``tests/devices/test_sim.py`` compares them with CuPy where it is installed.
"""

from __future__ import annotations

UFUNCS = frozenset(
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
SCATTERS = frozenset(  # ufuncs with a method ``at``
    "add subtract maximum minimum bitwise_and bitwise_or bitwise_xor".split()  # noqa: SIM905
)
ATOMIC = frozenset("iIlLqQefdFD")  # element types, by NumPy's letters, that CuPy's ``at`` takes

# Where CuPy and NumPy call a parameter differently.
RENAMED = {("reshape", "newshape"): "shape", ("logspace", "base"): "base"}
SEQUENCES = frozenset(  # functions that take arrays in lists or tuples
    """broadcast_arrays choose column_stack concatenate dstack einsum hstack ix_ lexsort meshgrid
    ravel_multi_index result_type select stack vstack""".split()  # noqa: SIM905
)
CONSTANTS = frozenset(  # taken from NumPy as they are
    """bool bool_ complex128 complex64 complexfloating dtype e euler_gamma finfo float16 float32
    float64 floating generic iinfo inexact inf int16 int32 int64 int8 integer intp nan newaxis
    number pi signedinteger uint16 uint32 uint64 uint8 unsignedinteger""".split()  # noqa: SIM905
)

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
FUNCTIONS = {
    name: frozenset(parameters.split())
    for name, _, parameters in (line.partition(":") for line in _TABLE.strip().splitlines())
}


def _sets(parameters: dict[str, str]) -> dict[str, frozenset[str]]:
    return {name: frozenset(text.split()) for name, text in parameters.items()}


LINALG = _sets({
    "cholesky": "a", "cond": "x p", "det": "a", "eig": "a", "eigh": "a UPLO", "eigvals": "a",
    "eigvalsh": "a UPLO", "inv": "a", "lstsq": "a b rcond", "matrix_power": "M n",
    "matrix_rank": "M tol", "norm": "x ord axis keepdims", "pinv": "a rcond", "qr": "a mode",
    "slogdet": "a", "solve": "a b", "svd": "a full_matrices compute_uv", "tensorinv": "a ind",
    "tensorsolve": "a b axes",
})  # fmt: skip
FFT = _sets(
    {
        name: "a n axis norm" if name.endswith("fft") else "a s axes norm"
        for name in "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()  # noqa: E501, SIM905
    }
    | {"fftfreq": "n d", "rfftfreq": "n d", "fftshift": "x axes", "ifftshift": "x axes"}
)

# Of ``cupyx.scipy.special``; each takes ``out``.
SPECIAL = dict.fromkeys(
    """digamma entr erf erfc erfcx erfinv gammainc gammaincc gammaln i0 i0e i1 i1e j0 j1
    k0 k0e k1 k1e log_ndtr ndtr ndtri xlogy y0 y1 zeta""".split(),  # noqa: SIM905
    frozenset({"out"}),
)
