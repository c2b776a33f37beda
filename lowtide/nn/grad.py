"""Gradients of convolutions, as separate functions."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from collections.abc import Sequence as _Sequence
from typing import Any

from lowtide.framework.ops.convolution.functional import several as _several
from lowtide.framework.ops.convolution.primitives import _conv_input_grad as _conv_input_grad
from lowtide.framework.ops.convolution.primitives import _conv_weight_grad as _conv_weight_grad


def _geometry(name: str, nd: int, stride: Any, padding: Any, dilation: Any) -> tuple[Any, ...]:
    pairs = tuple((p, p) for p in _several(name, padding, nd))
    return _several(name, stride, nd), pairs, _several(name, dilation, nd)


def _of_input(nd: int) -> _Callable[..., Any]:
    def gradient(
        input_size: _Sequence[int],
        weight: Any,
        grad_output: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        geometry = _geometry(name, nd, stride, padding, dilation)
        return _conv_input_grad(grad_output, weight, tuple(input_size[2:]), *geometry, groups)

    name = f"conv{nd}d_input"
    gradient.__name__ = gradient.__qualname__ = name
    gradient.__doc__ = f"""Compute the gradient of ``conv{nd}d`` by its input.

    Args:
        input_size: Shape of the input, (N, C, *{nd} sizes).
        weight: The weight, (M, C / groups, *{nd} sizes).
        grad_output: The gradient by the result, (N, M, *{nd} sizes).
        stride: As the convolution's, and so ``padding``, ``dilation`` and ``groups``.
    """
    return gradient


def _of_weight(nd: int) -> _Callable[..., Any]:
    def gradient(
        input: Any,
        weight_size: _Sequence[int],
        grad_output: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        geometry = _geometry(name, nd, stride, padding, dilation)
        return _conv_weight_grad(input, grad_output, tuple(weight_size[2:]), *geometry, groups)

    name = f"conv{nd}d_weight"
    gradient.__name__ = gradient.__qualname__ = name
    gradient.__doc__ = f"""Compute the gradient of ``conv{nd}d`` by its weight.

    Args:
        input: The input, (N, C, *{nd} sizes).
        weight_size: Shape of the weight, (M, C / groups, *{nd} sizes).
        grad_output: The gradient by the result, (N, M, *{nd} sizes).
        stride: As the convolution's, and so ``padding``, ``dilation`` and ``groups``.
    """
    return gradient


conv1d_input, conv2d_input, conv3d_input = (_of_input(nd) for nd in (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = (_of_weight(nd) for nd in (1, 2, 3))
