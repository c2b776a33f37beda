"""Gradient checks: analytical gradients against finite differences.

A complex number counts as two real ones, so one rule serves every dtype: for a real direction
``u`` of the input and ``v`` of the output, ``<v, f(x + eps u) - f(x - eps u)> / 2 eps`` must equal
``<vjp(v), u>``. The slow mode takes unit vectors, one for each element of input and output, and
so compares Jacobians; the fast mode takes one random direction.

Not optimal: the slow mode calls the function twice per element of its inputs. Keep them small.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..devices import backend
from ..dtypes import complex128, float64
from ..modes import enable_grad
from ..tensor import Tensor
from .engine import grad, zeros_of
from .node import Alias, attach

Function = Callable[..., Any]


class GradcheckError(RuntimeError):
    """An analytical gradient differs from the finite differences."""


def gradcheck(
    func: Function,
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check the gradients of ``func`` against central differences.

    Args:
        func: Takes ``inputs``, returns a Tensor or a tuple of them.
        inputs: Tensor, or tuple of arguments; those that require grad are checked, and should be
            float64 or complex128.
        eps: Step of the difference.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        raise_exception: Raise on a mismatch instead of returning False.
        nondet_tol: How far two runs of backward may differ.
        check_undefined_grad: Also check that backward takes None for a missing gradient.
        check_grad_dtypes: Also check that a gradient has its input's dtype.
        check_batched_grad: Accepted for PyTorch's signature; changes nothing.
        check_forward_ad: Accepted for PyTorch's signature; changes nothing.
        check_backward_ad: False checks nothing.
        fast_mode: Compare along one random direction instead of the whole Jacobian.
        masked: Accepted for PyTorch's signature; changes nothing.

    Returns:
        True if all gradients agree.

    Raises:
        GradcheckError: They do not, and ``raise_exception`` is set.
        ValueError: No input requires grad.

    Example:
        >>> import lowtide as lt
        >>> x = lt.tensor([0.5, 2.0], dtype=lt.float64, requires_grad=True)
        >>> lt.autograd.gradcheck(lambda x: x * x, (x,))
        True
    """
    del check_batched_grad, check_forward_ad, masked
    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    checked = _checked(arguments)
    if not check_backward_ad:
        return True
    try:
        with enable_grad():
            _compare(func, arguments, checked, eps, atol, rtol, nondet_tol, fast_mode)
            if check_undefined_grad:
                _check_undefined(func, arguments, checked)
            if check_grad_dtypes:
                _check_dtypes(func, arguments, checked)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Function,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check the second derivatives of ``func`` against central differences of the first.

    The arguments are those of :func:`gradcheck`, and:

    Args:
        func: Takes ``inputs``, returns a Tensor or a tuple of them.
        inputs: Tensor, or tuple of arguments.
        grad_outputs: The gradients arriving at the outputs; random ones if None.
        eps: Step of the difference.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        gen_non_contig_grad_outputs: Make the random ones non-contiguous.
        raise_exception: Raise on a mismatch instead of returning False.
        nondet_tol: How far two runs of backward may differ.
        check_undefined_grad: Also check that backward takes None for a missing gradient.
        check_grad_dtypes: Also check that a gradient has its input's dtype.
        check_batched_grad: Accepted for PyTorch's signature; changes nothing.
        fast_mode: Compare along one random direction.
        masked: Accepted for PyTorch's signature; changes nothing.

    Returns:
        True if all second derivatives agree.
    """
    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    with enable_grad():
        outputs = _differentiable(func(*arguments))
    if grad_outputs is None:
        rng = np.random.default_rng(20)
        cotangents = [_random_like(o, rng, gen_non_contig_grad_outputs) for o in outputs]
    else:
        given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else grad_outputs
        cotangents = list(given)
    count = len(arguments)

    def first_derivative(*args: Any) -> tuple[Tensor, ...]:
        xs, gs = args[:count], args[count:]
        wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        found = grad(_differentiable(func(*xs)), wanted, gs, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        first_derivative,
        (*arguments, *cotangents),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
        masked=masked,
    )


def _checked(arguments: Sequence[Any]) -> list[int]:
    """Return the positions of the inputs to check.

    Raises:
        ValueError: There is none.
        RuntimeError: One overlaps itself, so that a step cannot move one element alone.
    """
    found = []
    for k, x in enumerate(arguments):
        if not (isinstance(x, Tensor) and x.requires_grad):
            continue
        if x.dtype not in (float64, complex128):
            warnings.warn(
                f"Input #{k} requires gradient and is not a double precision floating point or "
                "complex. This check will likely fail if all the inputs are not of double "
                "precision floating point or complex.",
                UserWarning,
                stacklevel=3,
            )
        if any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
            raise RuntimeError(
                f"The {k}th input has a dimension with stride 0. gradcheck only supports inputs "
                "that are non-overlapping to be able to compute the numerical gradients "
                "correctly. Call .contiguous() on it."
            )
        found.append(k)
    if not found:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the "
            "them have requires_grad=True. Call .requires_grad_() on one."
        )
    return found


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _differentiable(outputs: Any) -> list[Tensor]:
    return [o for o in _as_tuple(outputs) if isinstance(o, Tensor) and o.requires_grad]


def _values(tensor: Tensor) -> Any:
    """Flatten elements to a vector of reals; a complex number gives two."""
    flat = np.array(backend(tensor.device).to_host(tensor.array)).reshape(-1)
    if flat.dtype.kind == "c":
        return np.ascontiguousarray(flat).view(flat.real.dtype).astype(np.float64)
    return flat.astype(np.float64)


def _tensor_of(values: Any, like: Tensor) -> Tensor:
    """The inverse of :func:`_values`, for any vector of reals."""
    out = zeros_of(like._spec)
    if like.is_complex():
        values = np.ascontiguousarray(values).view(np.complex128)
    out._array[...] = backend(like.device).xp.asarray(
        values.reshape(tuple(like.shape)).astype(like.dtype.np)
    )
    return out


def _random_like(tensor: Tensor, rng: Any, non_contiguous: bool = False) -> Tensor:
    n = tensor.numel() * (2 if tensor.is_complex() else 1)
    made = _tensor_of(rng.uniform(-1.0, 1.0, n), tensor)
    if non_contiguous and made.ndim > 1:
        order = tuple(reversed(range(made.ndim)))
        made = made.permute(order).clone().permute(order)
    return made.requires_grad_()


def _shifted(
    func: Function, arguments: Sequence[Any], k: int, step: Any, which: Sequence[int]
) -> list[Any]:
    """Evaluate outputs ``which`` with input ``k`` moved by ``step``, then restore it.

    The array itself is moved, since ``func`` may reach the same tensor by another way.
    """
    x = arguments[k]
    before = x.array.copy()
    x.array[...] = x.array + step
    try:
        outputs = _as_tuple(func(*arguments))
        return [_values(outputs[i]) for i in which]
    finally:
        x.array[...] = before


def _numerical(
    func: Function, arguments: Sequence[Any], k: int, direction: Any, eps: float, which: Any
) -> list[Any]:
    """Compute the derivative of each output along a direction (vector of reals) of input ``k``."""
    step = _tensor_of(direction * eps, arguments[k]).array
    high = _shifted(func, arguments, k, step, which)
    low = _shifted(func, arguments, k, -step, which)
    return [(a - b) / (2 * eps) for a, b in zip(high, low, strict=True)]


def _analytical(
    output: Tensor, wanted: Sequence[Tensor], v: Tensor, nondet_tol: float
) -> list[Any]:
    """Compute ``<vjp(v), .>`` as a vector of reals for each input."""
    runs = [grad(output, wanted, v, retain_graph=True, allow_unused=True) for _ in range(2)]
    vectors = [
        [_values(zeros_of(x._spec) if g is None else g) for x, g in zip(wanted, run, strict=True)]
        for run in runs
    ]
    for a, b in zip(*vectors, strict=True):
        # NaN equals itself here: the comparison with the numerical gradient reports it.
        if a.size and np.nan_to_num(np.abs(a - b)).max() > nondet_tol:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and "
                "grad_output multiple times gives different values. The tolerance for "
                f"nondeterminism was {nondet_tol}; pass nondet_tol= to allow more."
            )
    return vectors[0]


def _compare(
    func: Function,
    arguments: Sequence[Any],
    checked: Sequence[int],
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
    fast: bool,
) -> None:
    outputs = _as_tuple(func(*arguments))
    which = [
        i for i, o in enumerate(outputs) if isinstance(o, Tensor) and o.dtype.is_differentiable
    ]
    wanted = [arguments[k] for k in checked]
    rng = np.random.default_rng(10)
    for k, x in zip(checked, wanted, strict=True):
        n = x.numel() * (2 if x.is_complex() else 1)
        directions = rng.uniform(0.5, 1.0, (1, n)) if fast else np.eye(n)
        # One row per direction of the input, one column per real of the output.
        columns = [_numerical(func, arguments, k, d, eps, which) for d in directions]
        for position, i in enumerate(which):
            output = outputs[i]
            m = output.numel() * (2 if output.is_complex() else 1)
            numerical = np.stack([c[position] for c in columns]) if n else np.zeros((0, m))
            rows = rng.uniform(0.5, 1.0, (1, m)) if fast else np.eye(m)
            analytical = np.zeros((len(rows), n))
            if output.requires_grad:
                for r, row in enumerate(rows):
                    v = _tensor_of(row, output)
                    found = _analytical(output, wanted, v, nondet_tol)
                    analytical[r] = found[checked.index(k)]
            if fast:
                numerical = numerical @ rows.T
                analytical = analytical @ directions.T
            _assert_close(numerical, analytical.T, i, k, atol, rtol)


def _assert_close(
    numerical: Any, analytical: Any, output: int, input: int, atol: float, rtol: float
) -> None:
    if not np.allclose(analytical, numerical, rtol=rtol, atol=atol):
        raise GradcheckError(
            f"Jacobian mismatch for output {output} with respect to input {input},\n"
            f"numerical:{numerical}\nanalytical:{analytical}\n"
        )


class _Undefined(Alias):
    """A node that passes no gradient on, like an unused output."""

    __slots__ = ()

    def name(self) -> str:
        return "UndefinedGradBackward"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        return [None]


def _check_undefined(func: Function, arguments: Sequence[Any], checked: Sequence[int]) -> None:
    count = len(_differentiable(func(*arguments)))
    wanted = [arguments[k] for k in checked]
    without = [set(range(count))]
    if count > 1:
        without += [{k} for k in range(count)]
    for missing in without:
        outputs = []
        for k, output in enumerate(_differentiable(func(*arguments))):
            if k in missing:
                cut = output.detach()
                attach(cut, _Undefined(output))
                output = cut
            outputs.append(output)
        try:
            found = grad(outputs, wanted, [zeros_of(o._spec) for o in outputs], allow_unused=True)
        except Exception as error:
            raise GradcheckError(
                "Expected backward function to handle undefined output grads: it raised "
                f"{error!r}. Treat None as zeros, or leave set_materialize_grads on."
            ) from error
        if any(g is not None and _values(g).any() for g in found):
            raise GradcheckError(
                "Expected all input grads to be undefined or zero when all output grads are "
                "undefined or zero. Treat None as zeros."
            )


def _check_dtypes(func: Function, arguments: Sequence[Any], checked: Sequence[int]) -> None:
    wanted = [arguments[k] for k in checked]
    for output in _differentiable(func(*arguments)):
        found = grad(output, wanted, zeros_of(output._spec), allow_unused=True)
        for k, x, g in zip(checked, wanted, found, strict=True):
            if g is not None and g.dtype is not x.dtype:
                raise GradcheckError(
                    f"Gradient of input {k} has dtype {g.dtype}; expected its dtype {x.dtype}."
                )
