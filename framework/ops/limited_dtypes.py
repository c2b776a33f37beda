"""Which ops take uint16, uint32, uint64 and the 8-bit floats: those of PyTorch's CPU.

These types are for storage: values are made, copied, viewed, converted and compared for equality;
arithmetic is done after a conversion. A plan asks here, with the types that an op computes
in, so what is promoted to a float first (``sqrt``, ``/``) needs no entry, and views none either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dtypes import dtype
from ..spec import ScalarSpec, Spec

if TYPE_CHECKING:
    from .registry import Op

_BOTH = """clone convert copy fill eq ne isnan any all index index_put_fill where where_scalar
cat stack reshape_copy flip roll repeat pad diagonal_amid_zeros isinf isfinite mul"""
ALLOWED = {  # by the name that a user knows
    "unsigned": frozenset(
        f"""{_BOTH} bitwise_and bitwise_or bitwise_xor floor ceil round trunc signbit isneginf
        isposinf nan_to_num sum prod cumsum cumprod sort argsort unique unique_consecutive
        """.split()
    ),
    "float8": frozenset(f"{_BOTH} abs matmul linear addmatmul index_put index_put_add".split()),
}
# Of these, a GPU's kernels know the 8-bit floats.
FLOAT8_ON_GPU = frozenset(["clone", "convert", "copy", "fill"])
_GIVING = frozenset(["hash_tensor"])  # of other types


def check_limited(
    op: Op, specs: tuple[Any, ...], inputs: tuple[Any, ...], results: tuple[Spec, ...]
) -> None:
    """Raise an error if an op has an operand or result of a type that it does not take.

    Args:
        op: The op.
        specs: Of the call, as it was made: numbers have a ``ScalarSpec``.
        inputs: The inputs' specs, promoted.
        results: Of the results and aux values.

    Raises:
        NotImplementedError: It has.
    """
    concerned = inputs if op.display_name in _GIVING else (*inputs, *results)
    if not any(isinstance(s, Spec) and s.dtype.limited for s in concerned):
        return
    numbers = any(isinstance(s, ScalarSpec) and s.category >= 0 for s in specs)
    for spec in concerned:
        if not isinstance(spec, Spec) or not spec.dtype.limited or op.view:
            continue
        kind, name = spec.dtype.limited, op.display_name
        scaled = name == "mul" and kind == "float8" and numbers
        if name not in ALLOWED[kind] or scaled:
            refuse(name, spec.dtype)
        where = "cpu" if spec.device is None else spec.device.type
        if kind == "float8" and where not in ("cpu", "meta") and name not in FLOAT8_ON_GPU:
            refuse(name, spec.dtype, f" on {where}")


def refuse(name: str, kind: dtype, where: str = "") -> None:
    """Raise the error for an op that a type does not have, or not on a device.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f'"{name}" not implemented for {kind.name}, a type for storage{where}. Convert with '
        f".to(lowtide.{'int64' if kind.limited == 'unsigned' else 'float32'}) first."
    )
