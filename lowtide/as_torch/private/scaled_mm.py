"""``torch._scaled_mm``: products of matrices of 8-bit floats, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt

_OUT = (_lt.float32, _lt.bfloat16, _lt.float16, _lt.float8_e4m3fn, _lt.float8_e5m2)


def _checked_scale(name: str, scale: Any, rows: tuple[int, int]) -> Any:
    if scale.numel() != 1 and tuple(scale.shape) != rows:
        raise ValueError(
            f"Invalid scaling configuration: _scaled_mm takes one {name} for the matrix, or "
            f"{rows} of them; got shape {tuple(scale.shape)}."
        )
    return scale.reshape(()).float() if scale.numel() == 1 else scale.float()


def _scaled_mm(
    input: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
    *,
    out: Any = None,
) -> Any:
    """Multiply matrices of 8-bit floats: ``(input @ mat2) * scale_a * scale_b + bias``.

    Args:
        input: (m, k), float8_e4m3fn or float8_e5m2.
        mat2: (k, n), one of these.
        scale_a: One number, or (m, 1).
        scale_b: One number, or (1, n).
        bias: (n,), or None.
        scale_result: One number by which an 8-bit result is divided; others are not.
        out_dtype: 8, 16 or 32 bits, floating; by default that of ``input``.
        use_fast_accum: Accepted: sums are in float32.
        out: Where to put the result.

    Raises:
        RuntimeError: The operands are no matrices of 8-bit floats, or sizes do not fit.
        ValueError: A scale is of another shape.

    Memory:
        Workspace of float32 copies of both operands. There is no gradient.
    """
    for name, x in (("mat1", input), ("mat2", mat2)):
        if x.dim() != 2:
            raise RuntimeError(f"_scaled_mm: {name} must be a matrix; got shape {tuple(x.shape)}.")
        if x.dtype not in _OUT[3:]:
            raise RuntimeError(
                f"_scaled_mm: Expected {name} to be Float8 matrix got {x.dtype}. Use torch.mm."
            )
    if input.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            "_scaled_mm: mat1 and mat2 shapes cannot be multiplied; got "
            f"{tuple(input.shape)} and {tuple(mat2.shape)}. For the transpose pass .t()."
        )
    wanted = input.dtype if out_dtype is None else out_dtype
    if wanted not in _OUT:
        raise RuntimeError(f"_scaled_mm: out_dtype is one of {_OUT}; got {wanted}.")
    first = _checked_scale("scale_a", scale_a, (input.shape[0], 1))
    second = _checked_scale("scale_b", scale_b, (1, mat2.shape[1]))
    with _lt.no_grad():
        found = _lt.mm(input.float(), mat2.float()).mul_(first).mul_(second)
        if bias is not None:
            found.add_(bias)
        if scale_result is not None and wanted in _OUT[3:]:
            found.div_(scale_result)
        found = found.to(wanted)
    return found if out is None else out.copy_(found)


FUNCTIONS: dict[str, Callable[..., Any]] = {"_scaled_mm": _scaled_mm}
