"""What many declarations say of themselves: shape rules, costs in operations, samples for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dtypes import BOOL, COMPLEX, FLOAT, INT, bool_, combine, dtype
from ..spec import SCALARS, Spec
from ..tensor import Tensor

# ``infer=``: the result's shape and dtype


def same(input: Spec, *_: Any, **__: Any) -> Spec:
    """The result looks like the first input."""
    return input


def broadcast_shapes(name: str, *shapes: Any) -> tuple[int, ...]:
    """The shape that shapes broadcast to.

    Raises:
        RuntimeError: They do not; the message names the op, the dimension and both shapes.
    """
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        offset = ndim - len(shape)
        for k, n in enumerate(shape):
            if n != 1:
                if result[offset + k] not in (1, n):
                    raise RuntimeError(
                        f"{name} broadcasts its inputs: the size of each dimension must match or "
                        f"be 1; got shapes {' and '.join(str(tuple(s)) for s in shapes)}, which "
                        f"differ at dimension {offset + k} ({result[offset + k]} and {n}). "
                        "Reshape or expand one."
                    )
                result[offset + k] = n
    return tuple(result)


def broadcast(*specs: Any, op_name: str = "the op", **_: Any) -> Spec:
    """The result has the inputs' broadcast shape and common dtype."""
    return Spec(broadcast_shapes(op_name, *_shapes_of(op_name, specs)), specs[0].dtype)


def broadcast_bool(*specs: Any, op_name: str = "the op", **_: Any) -> Spec:
    """The result has the inputs' broadcast shape and dtype bool."""
    return Spec(broadcast_shapes(op_name, *_shapes_of(op_name, specs)), bool_)


def common_dtype(*operands: Any) -> dtype:
    """Return the dtype that tensors and numbers meet in."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(tensors) == len(operands) and len({x.dtype for x in tensors}) == 1:
        return tensors[0].dtype
    return combine(
        [x.dtype for x in tensors if x.ndim],
        [x.dtype for x in tensors if not x.ndim],
        [_category(x) for x in operands if not isinstance(x, Tensor)],
    )


def _category(number: Any) -> int:
    kinds = ((BOOL, bool | np.bool_), (INT, int | np.integer), (FLOAT, float | np.floating))
    return next((category for category, kind in kinds if isinstance(number, kind)), COMPLEX)


def _shapes_of(op_name: str, specs: tuple[Any, ...]) -> list[Any]:
    if None in specs:
        raise TypeError(
            f"{op_name} takes Tensors and Python scalars; got None. Pass a number or a tensor."
        )
    return [s.shape for s in specs]


def refusing_complex(name: str, infer: Any) -> Any:
    """A rule that refuses complex inputs, and otherwise does what ``infer`` does."""

    def checked(*specs: Any, **attributes: Any) -> Any:
        for s in specs:
            if (isinstance(s, Spec) and s.dtype.is_complex) or s is SCALARS[complex]:
                raise NotImplementedError(
                    f'"{name}" is not implemented for complex numbers. Pass .real, .imag or .abs().'
                )
        return None if infer is None else infer(*specs, **attributes)

    return checked


# ``flops=``: the number of operations


def per_element(n: int) -> Callable[..., int]:
    """FLOPs: ``n`` for each element of the largest input."""

    def flops(*specs: Any, **_: Any) -> int:
        return n * max((s.numel for s in specs if isinstance(s, Spec)), default=0)

    return flops


# ``samples=``: inputs and attributes for the generated tests

Make = Callable[..., Any]


def singles(make: Make) -> Iterator[Any]:
    """Samples of an op of one tensor."""
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape),), {}


def pairs(make: Make) -> Iterator[Any]:
    """Samples of an op of two broadcasting tensors."""
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3)), ((2,), ())):
        yield (make(*a), make(*b)), {}
    yield (make(3, 2), 1.5), {}
