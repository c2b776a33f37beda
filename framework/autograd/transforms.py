"""Function transforms: ``grad``, ``vjp``, ``jacrev`` and relatives.

They nest, since they are made of ``autograd.grad`` on inputs of their own: an input that belongs
to an outer graph (of another transform, or of the user's) stays connected to it. Whether a result
must be differentiable is seen, not asked: if the outputs lead to no leaf but our own inputs,
nothing outside can differentiate it, and no graph of the backward is recorded.

Arguments may be trees: tuples, lists and dicts of tensors, nested.

Jacobians take one pass for all rows (``jacrev``) or columns (``jacfwd``): the vectors are a batch
of ``vmap``, which the graph's rules compute at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..modes import enable_grad, local
from ..tensor import Tensor
from ..vmap.batched import fresh_leaf, value_of
from ..vmap.jacobians import columns_of, rows_of
from .engine import grad as autograd_grad
from .engine import ones_of, zeros_of
from .node import edge_to

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of a scalar ``func``.

    Args:
        func: Returns a Tensor of a single element.
        argnums: Which argument to differentiate, or a tuple of several.
        has_aux: ``func`` returns (output, aux).

    Returns:
        A function of the same arguments: the gradient, in the structure of that argument (a
        tuple for several); with ``has_aux``, (gradient, aux).

    Example:
        >>> import lowtide as lt
        >>> lt.func.grad(lambda x: x * x * x)(lt.tensor(2.0)).item()
        12.0
    """

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found = grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        return (found[0], found[1][1]) if has_aux else found[0]

    return gradient


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes (gradient, value) of a scalar ``func``.

    The arguments are those of :func:`grad`. With ``has_aux`` it returns
    (gradient, (value, aux)).
    """

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        outer = local.state.grad
        with enable_grad():
            args, sources, rebuild = _own(args, argnums, outer)
            output, aux = _split(func(*args, **kwargs), has_aux)
            if not isinstance(output, Tensor) or output.numel() != 1:
                got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise RuntimeError(
                    "grad_and_value: Expected f(*args) to return a scalar tensor; got "
                    f"{got}. Reduce it, or use vjp."
                )
            create = outer and _leads_elsewhere([output], sources)
            found = _gradients([output], sources, [ones_of(output._spec.like())], create)
        value = output if create else output.detach()
        gradient = rebuild(found)
        return (gradient, (value, _cut(aux, create))) if has_aux else (gradient, value)

    return both


def value_and_grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes (value, gradient) of ``func``, in JAX's order.

    The arguments are those of :func:`grad`. With ``has_aux`` it returns
    ((value, aux), gradient).
    """

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        gradient, value = grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        return value, gradient

    return both


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Compute ``func`` and return a function for vector-Jacobian products.

    Args:
        func: Takes ``primals``, returns a Tensor or a tree of them.
        *primals: Tensors, or trees of them.
        has_aux: ``func`` returns (output, aux).

    Returns:
        (output, vjp_fn), and aux if there is one. ``vjp_fn(cotangents)`` takes cotangents in the
        structure of the output and returns a tuple with one product per primal.

    Memory:
        The graph of ``func`` lives as long as ``vjp_fn``.
    """
    outer = local.state.grad
    with enable_grad():
        args, sources, rebuild = _own(primals, tuple(range(len(primals))), outer)
        output, aux = _split(func(*args), has_aux)
    leaves, restore = flatten(output)
    create = outer and _leads_elsewhere(leaves, sources)

    def vjp_fn(*cotangents: Any, retain_graph: bool = True, create_graph: bool = False) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        vectors, _ = flatten(given)
        if len(vectors) != len(leaves) or any(
            v.shape != y.shape for v, y in zip(vectors, leaves, strict=True)
        ):
            raise RuntimeError(
                "vjp_fn: expected cotangents in the structure and shapes of the output "
                f"{[tuple(y.shape) for y in leaves]}; got {[tuple(v.shape) for v in vectors]}."
            )
        again = create_graph or create or any(v.requires_grad for v in vectors)
        again = again and local.state.grad
        with enable_grad():
            found = _gradients(leaves, sources, vectors, again)
        return rebuild(found)

    shown = restore([y if create else y.detach() for y in leaves])
    return (shown, vjp_fn, _cut(aux, create)) if has_aux else (shown, vjp_fn)


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """Compute ``func`` and its Jacobian-vector product with ``tangents``.

    Args:
        func: Takes ``primals``, returns a Tensor or a tree of them.
        primals: Tuple of tensors, or of trees of them.
        tangents: In the structure and shapes of ``primals``.
        strict: Raise if an output does not depend on an input.
        has_aux: ``func`` returns (output, aux).

    Returns:
        (output, product), and aux if there is one.

    Source:
        The double-backward trick: see ``autograd.functional``.
    """
    outer = local.state.grad
    vectors, _ = flatten(tangents)
    with enable_grad():
        args, sources, _ = _own(tuple(primals), tuple(range(len(primals))), outer)
        if [v.shape for v in vectors] != [x.shape for x in sources]:
            raise RuntimeError(
                "jvp: expected tangents in the structure and shapes of the primals "
                f"{[tuple(x.shape) for x in sources]}; got {[tuple(v.shape) for v in vectors]}."
            )
        output, aux = _split(func(*args), has_aux)
        leaves, restore = flatten(output)
        if strict and not all(y.requires_grad for y in leaves):
            raise RuntimeError("jvp: an output is independent of the inputs, in strict mode.")
        create = outer and (
            _leads_elsewhere(leaves, sources) or any(v.requires_grad for v in vectors)
        )
        dummies = [zeros_of(y._spec.like()).requires_grad_() for y in leaves]
        linear = _gradients(leaves, sources, dummies, True)
        products = _gradients(linear, dummies, vectors, create)
    shown = restore([y if create else y.detach() for y in leaves])
    out = restore(products)
    return (shown, out, _cut(aux, create)) if has_aux else (shown, out)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """Compute ``func`` and return a function for Jacobian-vector products at that point.

    Args:
        func: Takes ``primals``, returns a Tensor or a tree of them.
        *primals: Tensors, or trees of them.

    Returns:
        (output, jvp_fn): ``jvp_fn(*tangents)`` takes tangents in the structure of the primals and
        returns the product in the structure of the output. ``func`` is not run again.

    Memory:
        The graphs of ``func`` and of its backward live as long as ``jvp_fn``.
    """
    outer = local.state.grad
    with enable_grad():
        args, sources, _ = _own(primals, tuple(range(len(primals))), outer)
        leaves, restore = flatten(func(*args))
        create = outer and _leads_elsewhere(leaves, sources)
        dummies = [zeros_of(y._spec.like()).requires_grad_() for y in leaves]
        linear = _gradients(leaves, sources, dummies, True)

    def jvp_fn(*tangents: Any) -> Any:
        vectors, _ = flatten(tangents)
        if [v.shape for v in vectors] != [x.shape for x in sources]:
            raise RuntimeError(
                "linearize: expected tangents in the structure and shapes of the primals "
                f"{[tuple(x.shape) for x in sources]}; got {[tuple(v.shape) for v in vectors]}."
            )
        again = local.state.grad and (create or any(v.requires_grad for v in vectors))
        with enable_grad():
            return restore(_gradients(linear, dummies, vectors, again))

    return restore([y if create else y.detach() for y in leaves]), jvp_fn


def jacrev(
    func: Function,
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Function:
    """Return a function that computes the Jacobian of ``func`` by rows, in reverse mode.

    Args:
        func: Returns a Tensor or a tree of them.
        argnums: Which argument to differentiate, or a tuple of several.
        has_aux: ``func`` returns (output, aux).
        chunk_size: Rows in a pass; None for all of one output at once.

    Returns:
        A function of the same arguments: a Tensor of shape (*output, *input), in the structure
        of the output with that of the argument inside; with ``has_aux``, (Jacobian, aux).

    Memory:
        A backward pass takes ``chunk_size`` times what it takes for one row.
    """
    return _jacobian(func, argnums, has_aux, chunk_size, rows_of)


def jacfwd(
    func: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Function:
    """Return a function that computes the Jacobian of ``func`` by columns.

    For functions with more outputs than inputs: one column per element of the inputs. Columns are
    products with the Jacobian, by the double-backward trick (see ``autograd.functional``).

    Args:
        func: As of :func:`jacrev`, like the others.
        argnums: Which argument to differentiate, or a tuple of several.
        has_aux: ``func`` returns (output, aux).
        randomness: Accepted: ``func`` runs once, so all columns have its draws.
        chunk_size: Columns in a pass; None for all of one input at once.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            f"jacfwd: randomness is 'error', 'different', or 'same'. Got {randomness!r}."
        )
    return _jacobian(func, argnums, has_aux, chunk_size, columns_of)


def _jacobian(
    func: Function, argnums: Argnums, has_aux: bool, chunk_size: int | None, blocks_of: Any
) -> Function:
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(
            f"jacrev and jacfwd: chunk_size should be None or greater than 0; got {chunk_size}."
        )

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        outer = local.state.grad
        with enable_grad():
            args, sources, rebuild = _own(args, argnums, outer)
            output, aux = _split(func(*args, **kwargs), has_aux)
            leaves, restore = flatten(output)
            create = outer and _leads_elsewhere(leaves, sources)
            found = restore([rebuild(b) for b in blocks_of(leaves, sources, create, chunk_size)])
        return (found, _cut(aux, create)) if has_aux else found

    return jacobian


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """Return a function that computes the Hessian of a scalar ``func``.

    Args:
        func: Returns a Tensor of a single element.
        argnums: Which argument to differentiate, or a tuple of several.
    """
    return jacrev(jacrev(func, argnums), argnums)


# Inputs of our own, and what depends on them


def _own(args: tuple[Any, ...], argnums: Argnums, outer: bool) -> tuple[Any, list[Tensor], Any]:
    """Replace the arguments to differentiate by new leaf tensors.

    Returns:
        (arguments, sources, rebuild): ``rebuild`` puts one value per source back in the
        structure of the arguments.
    """
    single = isinstance(argnums, int)
    numbers: tuple[int, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    out = list(args)
    sources: list[Tensor] = []
    parts = []
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise RuntimeError(
                f"Got argnum={n}, but only {len(args)} positional inputs. Pass that argument by "
                "position."
            )
        leaves, restore = flatten(args[n])
        own = []
        for x in leaves:
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"Argument {n} is to be differentiated, so it must hold Tensors; got "
                    f"{type(x).__name__}."
                )
            if outer and x.requires_grad:
                own.append(x.view_as(x))
            else:
                own.append(fresh_leaf(x))
        out[n] = restore(own)
        parts.append((restore, len(own)))
        sources += own

    def rebuild(values: Sequence[Any]) -> Any:
        rest = iter(values)
        trees = [restore([next(rest) for _ in range(count)]) for restore, count in parts]
        return trees[0] if single else tuple(trees)

    return tuple(out), sources, rebuild


def _split(output: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        raise RuntimeError("with has_aux=True the function must return a tuple (output, aux).")
    return output


def _gradients(
    outputs: Sequence[Tensor], sources: list[Tensor], vectors: Sequence[Any], create: bool
) -> list[Tensor]:
    pairs = [(y, v) for y, v in zip(outputs, vectors, strict=True) if y.requires_grad]
    if not pairs:
        return [zeros_of(x._spec.like()) for x in sources]
    found = autograd_grad(
        [y for y, _ in pairs],
        sources,
        [v for _, v in pairs],
        retain_graph=True,
        create_graph=create,
        materialize_grads=True,
    )
    return list(found)  # type: ignore[arg-type]


def _leads_elsewhere(outputs: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    """True if outputs depend on a leaf that is not among the sources."""
    own = {id(value_of(x)) for x in sources}
    if any(value_of(x)._node is not None for x in sources):
        return True
    stack: list[Any] = [edge_to(value_of(y))[0] for y in outputs if y.requires_grad]
    seen = set(map(id, stack))
    while stack:
        target = stack.pop()
        if not target._is_node:
            if id(target) not in own:
                return True
            continue
        for t, _ in target.edges:
            if id(t) not in seen:
                seen.add(id(t))
                stack.append(t)
    return False


def _cut(aux: Any, create: bool) -> Any:
    if create:
        return aux
    leaves, restore = flatten(aux)
    return restore([x.detach() if isinstance(x, Tensor) else x for x in leaves])


# Trees


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Flatten nested tuples, lists and dicts into leaves, and a function that unflattens them."""
    if isinstance(tree, dict):
        keys: list[Any] = list(tree)
        children = [tree[k] for k in keys]

        def build(parts: list[Any]) -> Any:
            made = type(tree)() if not hasattr(tree, "default_factory") else tree.copy()
            made.update(zip(keys, parts, strict=True))
            return made

    elif isinstance(tree, tuple | list):
        children = list(tree)

        def build(parts: list[Any]) -> Any:
            return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)

    else:
        return [tree], lambda leaves: leaves[0]
    flat = [flatten(c) for c in children]
    counts = [len(leaves) for leaves, _ in flat]

    def restore(leaves: Sequence[Any]) -> Any:
        parts, start = [], 0
        for (_, inner), count in zip(flat, counts, strict=True):
            parts.append(inner(leaves[start : start + count]))
            start += count
        return build(parts)

    return [x for leaves, _ in flat for x in leaves], restore
