"""Jacobian and Hessian products and matrices: PyTorch's ``autograd.functional``.

All of it is reverse mode. Jacobians go row by row, or with ``vectorize`` all rows at once. A
product with the Jacobian from the right (:func:`jvp`) takes two passes: ``g(v) = v^T J`` is linear
in ``v``, so the gradient of ``<g(v), u>`` with respect to ``v`` is ``J u``, whatever ``v`` is (the
double-backward trick).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..modes import enable_grad
from ..ops.manipulation.cat import stack
from ..tensor import Tensor
from ..vmap.jacobians import columns_of, rows_of
from .engine import grad, ones_of, zeros_of

Function = Callable[..., Any]


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Compute the vector-Jacobian product ``v^T J`` of ``func`` at ``inputs``.

    Args:
        func: Takes Tensors, returns a Tensor or a tuple of them.
        inputs: Tensor, or tuple of them.
        v: In the structure and shapes of the outputs; None for a single element.
        create_graph: The results can be differentiated.
        strict: Raise if an output does not depend on an input, instead of returning zeros.

    Returns:
        (outputs, products), the products in the structure of ``inputs``.
    """
    with enable_grad():
        xs, single_in = _prepared(inputs, "vjp", create_graph)
        ys, single_out = _called(func, xs, "vjp", strict)
        vs = _vectors(v, ys, "vjp", "outputs of the given function")
        found = _grad(ys, xs, vs, create_graph)
        products = _filled(found, xs, "vjp", strict, create_graph)
    return _done(ys, single_out, create_graph), _done(products, single_in, create_graph)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Compute the Jacobian-vector product ``J v`` of ``func`` at ``inputs``.

    Args:
        func: Takes Tensors, returns a Tensor or a tuple of them.
        inputs: Tensor, or tuple of them.
        v: In the structure and shapes of the inputs; None for a single element.
        create_graph: The results can be differentiated.
        strict: Raise if an output does not depend on an input, instead of returning zeros.

    Returns:
        (outputs, products), the products in the structure of the outputs.

    Memory:
        Keeps the graph of the backward as well as that of the forward while it runs.
    """
    with enable_grad():
        xs, _ = _prepared(inputs, "jvp", create_graph)
        vs = _vectors(v, xs, "jvp", "inputs")
        ys, single_out = _called(func, xs, "jvp", strict)
        dummies = [zeros_of(y._spec).requires_grad_() for y in ys]
        found = _grad(ys, xs, dummies, True)
        linear = _filled(found, xs, "jvp", strict, True)
        products = _filled(
            _grad(linear, dummies, vs, create_graph), ys, "jvp", strict, create_graph
        )
    return _done(ys, single_out, create_graph), _done(products, single_out, create_graph)


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Compute the Jacobian of ``func`` at ``inputs``, one row per element of the outputs.

    Args:
        func: Takes Tensors, returns a Tensor or a tuple of them.
        inputs: Tensor, or tuple of them.
        create_graph: The result can be differentiated.
        strict: Raise if an output does not depend on an input, instead of returning zeros.
        vectorize: Compute all rows of an output in one pass, which takes their memory at once.
        strategy: "reverse-mode", or "forward-mode": by columns with ``vectorize``, else the same.

    Returns:
        Tensor of shape (*output, *input); a tuple over inputs and, outside it, over outputs
        where those are tuples.
    """
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ValueError(
            f"jacobian: strategy is 'reverse-mode' or 'forward-mode'; got {strategy!r}."
        )
    if strict and vectorize:
        raise RuntimeError(
            "jacobian: `strict=True` and `vectorize=True` are not supported together. Pass one."
        )
    with enable_grad():
        xs, single_in = _prepared(inputs, "jacobian", create_graph)
        ys, single_out = _called(func, xs, "jacobian", strict)
        blocks: list[Any] = []
        if vectorize:
            blocks_of = rows_of if strategy == "reverse-mode" else columns_of
            blocks = [tuple(b) for b in blocks_of(ys, xs, create_graph, None)]
            ys = []
        for y in ys:
            columns: list[list[Tensor]] = [[] for _ in xs]
            for k in range(y.numel()):
                found = _grad([y], xs, [_unit(y, k)], create_graph)
                row = _filled(found, xs, "jacobian", strict, create_graph)
                for column, g in zip(columns, row, strict=True):
                    column.append(g)
            blocks.append(
                tuple(
                    stack(c).view((*y.shape, *x.shape))
                    if c
                    else zeros_of(x._spec.like((*y.shape, *x.shape), y.dtype))
                    for c, x in zip(columns, xs, strict=True)
                )
            )
    blocks = [_done(b, single_in, create_graph) for b in blocks]
    return blocks[0] if single_out else tuple(blocks)


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Compute the Hessian of a scalar ``func`` at ``inputs``.

    Args:
        func: Takes Tensors, returns a Tensor of a single element.
        inputs: Tensor, or tuple of them.
        create_graph: The result can be differentiated.
        strict: Raise if the output does not depend on an input, instead of returning zeros.
        vectorize: As of :func:`jacobian`.
        outer_jacobian_strategy: As ``strategy`` of :func:`jacobian`.

    Returns:
        Tensor of shape (*input, *input); a tuple of tuples where ``inputs`` is a tuple.
    """
    single = isinstance(inputs, Tensor)

    def scalar(*xs: Tensor) -> Tensor:
        return _one_element(func(*xs), "hessian")

    def gradient(*xs: Tensor) -> Any:
        found = jacobian(scalar, xs, create_graph=True, strict=strict)
        if strict:
            _need_graph(found, "hessian")
        return tuple(g.reshape(x.shape) for g, x in zip(found, xs, strict=True))

    found = jacobian(
        gradient,
        (inputs,) if single else tuple(inputs),
        create_graph,
        strict,
        vectorize,
        outer_jacobian_strategy,
    )
    return found[0][0] if single else found


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Compute the vector-Hessian product ``v^T H`` of a scalar ``func``.

    Args:
        func: Takes Tensors, returns a Tensor of a single element.
        inputs: Tensor, or tuple of them.
        v: In the structure and shapes of the inputs; None for a single element.
        create_graph: The results can be differentiated.
        strict: Raise if the output does not depend on an input, instead of returning zeros.

    Returns:
        (output, products), the products in the structure of ``inputs``.
    """
    with enable_grad():
        xs, single_in = _prepared(inputs, "vhp", create_graph)
        vs = _vectors(v, xs, "vhp", "inputs")
        ys, single_out = _called(func, xs, "vhp", strict)
        _one_element(ys[0] if single_out else None, "vhp")
        first = _filled(_grad(ys, xs, [None], True), xs, "vhp", strict, True)
        products = _filled(_grad(first, xs, vs, create_graph), xs, "vhp", strict, create_graph)
    return _done(ys, single_out, create_graph), _done(products, single_in, create_graph)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Compute the Hessian-vector product ``H v`` of a scalar ``func``.

    The Hessian is symmetric, but this goes the way of PyTorch's, by the double-backward trick:
    :func:`vhp` takes one pass less.

    Args:
        func: Takes Tensors, returns a Tensor of a single element.
        inputs: Tensor, or tuple of them.
        v: In the structure and shapes of the inputs; None for a single element.
        create_graph: The results can be differentiated.
        strict: Raise if the output does not depend on an input, instead of returning zeros.

    Returns:
        (output, products), the products in the structure of ``inputs``.
    """
    with enable_grad():
        xs, single_in = _prepared(inputs, "hvp", create_graph)
        vs = _vectors(v, xs, "hvp", "inputs")
        ys, single_out = _called(func, xs, "hvp", strict)
        _one_element(ys[0] if single_out else None, "hvp")
        first = _filled(_grad(ys, xs, [None], True), xs, "hvp", strict, True)
        dummies = [zeros_of(x._spec).requires_grad_() for x in xs]
        linear = _filled(_grad(first, xs, dummies, True), xs, "hvp", strict, True)
        products = _filled(
            _grad(linear, dummies, vs, create_graph), xs, "hvp", strict, create_graph
        )
    return _done(ys, single_out, create_graph), _done(products, single_in, create_graph)


# What all of them share


def _prepared(inputs: Any, name: str, create: bool) -> tuple[list[Tensor], bool]:
    """Copy inputs for differentiation: attached under ``create_graph``, else detached."""
    single = isinstance(inputs, Tensor)
    xs = []
    for k, x in enumerate([inputs] if single else inputs):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"The inputs given to {name} must be either a Tensor or a tuple of Tensors but "
                f"the value at index {k} has type {type(x).__name__}."
            )
        if create and x.requires_grad:
            xs.append(x.view_as(x))
        else:
            xs.append(x.detach().requires_grad_())
    return xs, single


def _called(func: Function, xs: list[Tensor], name: str, strict: bool) -> tuple[list[Tensor], bool]:
    outputs = func(*xs)
    single = isinstance(outputs, Tensor)
    ys = [outputs] if single else list(outputs)
    for k, y in enumerate(ys):
        if not isinstance(y, Tensor):
            raise TypeError(
                f"The outputs of the function given to {name} must be either a Tensor or a tuple "
                f"of Tensors but the value at index {k} has type {type(y).__name__}."
            )
        if strict and not y.requires_grad:
            raise RuntimeError(
                f"Output {k} of the user-provided function does not require gradients. The "
                "outputs must be computed in a differentiable manner from the input when running "
                "in strict mode."
            )
    return ys, single


def _vectors(v: Any, like: Sequence[Tensor], name: str, what: str) -> list[Tensor]:
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(
                f"{name}: the vector v can only be None if there is a single Tensor with a single "
                f"element among the {what}. Pass v."
            )
        return [ones_of(like[0]._spec)]
    vs = [v] if isinstance(v, Tensor) else list(v)
    if len(vs) != len(like):
        raise RuntimeError(
            f"{name}: v is a tuple of invalid length: should be {len(like)} but got {len(vs)}."
        )
    for k, (a, b) in enumerate(zip(vs, like, strict=True)):
        if a.shape != b.shape:
            raise RuntimeError(
                f"{name}: v has invalid size: entry {k} should be {tuple(b.shape)} but got "
                f"{tuple(a.shape)}."
            )
    return vs


def _grad(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Any], create: bool
) -> list[Tensor | None]:
    pairs = [(y, v) for y, v in zip(outputs, vectors, strict=True) if y.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    return list(
        grad(
            [y for y, _ in pairs],
            inputs,
            [v for _, v in pairs],
            retain_graph=True,
            create_graph=create,
            allow_unused=True,
        )
    )


def _filled(
    found: Sequence[Tensor | None], like: Sequence[Tensor], name: str, strict: bool, create: bool
) -> list[Tensor]:
    """Replace missing gradients by zeros.

    Raises:
        RuntimeError: One is missing, or does not depend on the inputs, in strict mode.
    """
    filled = []
    for k, (g, x) in enumerate(zip(found, like, strict=True)):
        if g is None:
            if strict:
                raise RuntimeError(
                    f"{name}: the output of the user-provided function is independent of input "
                    f"{k}. This is not allowed in strict mode."
                )
            g = zeros_of(x._spec)
        elif strict and create and not g.requires_grad:
            raise RuntimeError(
                f"{name}: the gradient with respect to input {k} is independent of the inputs. "
                "This is not allowed in strict mode when create_graph=True."
            )
        filled.append(g)
    return filled


def _need_graph(gradients: Sequence[Tensor], name: str) -> None:
    for k, g in enumerate(gradients):
        if not g.requires_grad:
            raise RuntimeError(
                f"{name}: the gradient with respect to input {k} is independent of the inputs. "
                "This is not allowed in strict mode."
            )


def _one_element(output: Any, name: str) -> Tensor:
    if not isinstance(output, Tensor) or output.numel() != 1:
        raise RuntimeError(
            f"The function given to {name} should return a single Tensor with a single element."
        )
    return output


def _unit(y: Tensor, k: int) -> Tensor:
    v = zeros_of(y._spec)
    if not y.is_meta:
        v._array.reshape(-1)[k] = 1
    return v


def _done(tensors: Sequence[Tensor], single: bool, create: bool) -> Any:
    if not create:
        tensors = [t.detach() for t in tensors]
    return tensors[0] if single else tuple(tensors)
