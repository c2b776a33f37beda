"""Dtypes: PyTorch's names over NumPy's types, and PyTorch's type promotion.

A :class:`dtype` is one of seventeen interned objects. Five of them, the wider unsigned integers and
the 8-bit floats, have few operations, as in PyTorch (``ops/limited_dtypes.py``). Two rules live
here because every op needs them: which type two types meet in (:func:`promote_types`), and which
type a mix of tensors, 0-dimensional tensors and Python scalars has (:func:`result_type`).
Tolerances for comparing results also live here, so that no test invents its own.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BOOL, INT, FLOAT, COMPLEX = range(4)  # the categories of promotion, weakest first


class dtype:
    """The data type of a tensor's elements; one object per type, compared by identity.

    Attributes:
        name: PyTorch's name, ``"float32"``.
        np: The NumPy dtype of the arrays that hold it.
        itemsize: Bytes per element.
        category: 0 bool, 1 integer, 2 floating, 3 complex.
        limited: ``"unsigned"`` or ``"float8"`` for a type with few operations; else empty.
        is_half: float16 and bfloat16.
        is_narrow: These and the 8-bit floats, in which nothing is summed or multiplied.
    """

    __slots__ = ("category", "is_half", "is_narrow", "itemsize", "limited", "name", "np", "rank")
    home = "lowtide"  # "torch" in programs that are run as torch: they compare texts

    def __init__(
        self, name: str, np_type: Any, category: int, rank: int, limited: str = ""
    ) -> None:
        self.name = name
        self.np = np.dtype(np_type)
        self.itemsize = self.np.itemsize
        self.category = category
        self.rank = rank
        self.limited = limited
        self.is_half = name in ("float16", "bfloat16")
        self.is_narrow = self.is_half or limited == "float8"

    @property
    def is_floating_point(self) -> bool:
        """True for 8-bit floats, float16, bfloat16, float32 and float64."""
        return self.category == FLOAT

    @property
    def is_complex(self) -> bool:
        """True for complex64 and complex128."""
        return self.category == COMPLEX

    @property
    def is_signed(self) -> bool:
        """True for every type with negative values."""
        return self.category != BOOL and self.np.kind != "u"

    @property
    def is_differentiable(self) -> bool:
        """True for the types that can require a gradient."""
        return self.category >= FLOAT

    def to_real(self) -> dtype:
        """Return the floating type of a complex type's parts; a real type itself."""
        return {complex64: float32, complex128: float64}.get(self, self)

    def to_complex(self) -> dtype:
        """Return the complex type whose parts have this type."""
        if self.category == COMPLEX:
            return self
        return complex128 if self is float64 else complex64

    def __repr__(self) -> str:
        return f"{self.home}.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled by reference, so that identity survives


bool_ = dtype("bool", np.bool_, BOOL, 0)
uint8 = dtype("uint8", np.uint8, INT, 1)
int8 = dtype("int8", np.int8, INT, 1)
int16 = dtype("int16", np.int16, INT, 2)
int32 = dtype("int32", np.int32, INT, 3)
int64 = dtype("int64", np.int64, INT, 4)
uint16 = dtype("uint16", np.uint16, INT, 2, "unsigned")
uint32 = dtype("uint32", np.uint32, INT, 3, "unsigned")
uint64 = dtype("uint64", np.uint64, INT, 4, "unsigned")
float8_e4m3fn = dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, FLOAT, 0, "float8")
float8_e5m2 = dtype("float8_e5m2", ml_dtypes.float8_e5m2, FLOAT, 0, "float8")
float16 = dtype("float16", np.float16, FLOAT, 1)
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16, FLOAT, 1)
float32 = dtype("float32", np.float32, FLOAT, 2)
float64 = dtype("float64", np.float64, FLOAT, 3)
complex64 = dtype("complex64", np.complex64, COMPLEX, 2)
complex128 = dtype("complex128", np.complex128, COMPLEX, 3)

ALL = (
    bool_, uint8, int8, int16, int32, int64,
    float16, bfloat16, float32, float64, complex64, complex128,
    uint16, uint32, uint64, float8_e4m3fn, float8_e5m2,
)  # fmt: skip
BY_NAME = {t.name: t for t in ALL}
BY_NUMPY = {t.np: t for t in ALL}
BY_NAME.update(
    half=float16,
    float=float32,
    double=float64,
    int=int32,
    long=int64,
    short=int16,
    cfloat=complex64,
    cdouble=complex128,
)
globals()["bool"] = bool_  # `dtypes.bool` for pickle and for the face; annotations use builtins

_PYTHON = {bool_.np.type: bool_}


def as_dtype(value: Any) -> dtype:
    """Convert a lowtide dtype, a Python type, a NumPy dtype or a name to a dtype.

    Raises:
        TypeError: lowtide has no such element type.
    """
    if isinstance(value, dtype):
        return value
    if value is type(True):
        return bool_
    if value is int:
        return int64
    if value is float:
        return get_default_dtype()
    if value is complex:
        return get_default_dtype().to_complex()
    if isinstance(value, str) and value.removeprefix(f"{dtype.home}.") in BY_NAME:
        return BY_NAME[value.removeprefix(f"{dtype.home}.")]
    try:
        return BY_NUMPY[np.dtype(value)]
    except (TypeError, KeyError):
        raise TypeError(
            f"dtype must be one of {', '.join(t.name for t in ALL)}; got {value!r}. "
            "Convert with .astype() first."
        ) from None


_default = [float32]


def get_default_dtype() -> dtype:
    """Return the default floating dtype."""
    return _default[0]


def set_default_dtype(d: Any) -> None:
    """Set the default floating dtype.

    Raises:
        TypeError: ``d`` is not a floating type.
    """
    d = as_dtype(d)
    if d.category != FLOAT or d.limited:
        raise TypeError(f"set_default_dtype takes a floating dtype; got {d}. Pass lowtide.float32.")
    _default[0] = d


def promote_types(type1: dtype, type2: dtype) -> dtype:
    """Return the smallest dtype that both can be converted to, by PyTorch's table.

    Raises:
        RuntimeError: One is a wider unsigned integer and the other no real floating type, or one is
            an 8-bit float: nothing but itself holds it.

    Example:
        >>> promote_types(uint8, int8), promote_types(float16, bfloat16)
        (lowtide.int16, lowtide.float32)
    """
    a, b = type1, type2
    if a is b:
        return a
    if a.category < b.category:
        a, b = b, a
    if (a.limited or b.limited) and (
        "float8" in (a.limited, b.limited) or a.category != FLOAT or b.category == FLOAT
    ):
        raise RuntimeError(
            f"Promotion for uint16, uint32, uint64 and 8-bit floats is not supported, attempted to "
            f"promote {a.name} and {b.name}. Convert one with .to()."
        )
    if a.category == COMPLEX:
        return complex128 if complex128 in (a, b) or b is float64 else complex64
    if a.category != b.category:
        return a
    if a.rank == b.rank:  # uint8 with int8, float16 with bfloat16: neither holds the other
        return int16 if a.category == INT else float32
    return a if a.rank > b.rank else b


def _dominate(higher: dtype | None, lower: dtype | None) -> dtype | None:
    # A weaker operand (0-d tensor, scalar) changes the type only by its category.
    if higher is None or lower is None:
        return higher or lower
    if higher.category == COMPLEX:
        return higher
    if higher.limited and lower.category == COMPLEX:
        return lower if higher.category == INT else promote_types(higher, lower)
    if higher.category == FLOAT:
        return higher.to_complex() if lower.category == COMPLEX else higher
    if higher.category == BOOL or lower.category >= FLOAT:
        return promote_types(higher, lower)
    return higher


def combine(dims: list[dtype], zero_d: list[dtype], scalars: list[int]) -> dtype:
    """Return the result dtype of tensors with dims, 0-d tensors, and categories of Python scalars.

    Source:
        PyTorch's documentation of ``torch.result_type``: a scalar promotes only across
        categories, a 0-d tensor only across categories of the tensors with dimensions.
    """
    groups: list[dtype | None] = [None, None, None]
    for position, group in enumerate((dims, zero_d, [SCALAR_DTYPE(c) for c in scalars])):
        for t in group:
            current = groups[position]
            groups[position] = t if current is None else promote_types(current, t)
    result = _dominate(groups[0], _dominate(groups[1], groups[2]))
    assert result is not None, "combine needs at least one operand"
    return result


def SCALAR_DTYPE(category: int) -> dtype:
    """Return the dtype of a category of Python scalars: bool, int64, the default float."""
    if category == FLOAT:
        return get_default_dtype()
    if category == COMPLEX:
        return get_default_dtype().to_complex()
    return int64 if category == INT else bool_


def can_cast(from_: dtype, to: dtype) -> bool:
    """True if a result of type ``from_`` may be stored in a tensor of type ``to`` in place."""
    return from_.category <= to.category


_RTOL_ATOL = {  # relative, absolute: a few units in the last place after a short reduction
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def tolerance(d: dtype) -> tuple[float, float]:
    """Return the (relative, absolute) tolerance for comparing results; (0, 0) if exact."""
    return _RTOL_ATOL.get(d.name, (0.0, 0.0))


class finfo:
    """Limits of a floating type: ``bits eps max min tiny smallest_normal resolution dtype``."""

    def __init__(self, type: Any = None) -> None:
        d = get_default_dtype() if type is None else as_dtype(type)
        if d.category < FLOAT:
            raise TypeError(f"finfo takes a floating dtype; got {d}. Use iinfo for integers.")
        info: Any = ml_dtypes.finfo(d.to_real().np)  # type: ignore[no-untyped-call]
        self.dtype = d.name
        self.bits = int(info.bits)
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.smallest_normal)
        self.resolution = 1.0 if d.limited else float(info.resolution)  # no decimal digit

    def __repr__(self) -> str:
        return f"finfo(dtype={self.dtype}, eps={self.eps:g}, max={self.max:g}, tiny={self.tiny:g})"


class iinfo:
    """Limits of an integer type: ``bits max min dtype``."""

    def __init__(self, type: Any) -> None:
        d = as_dtype(type)
        if d.category != INT:
            raise TypeError(f"iinfo takes an integer dtype; got {d}. Use finfo for floats.")
        info = np.iinfo(d.np)
        self.dtype, self.bits, self.max, self.min = d.name, info.bits, int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(dtype={self.dtype}, min={self.min}, max={self.max})"
