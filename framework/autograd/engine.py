"""The autograd engine: ``backward`` and ``grad``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from .. import interrupts
from ..devices import backend, on_device
from ..memory.ledger import TEMPORARY
from ..memory.short_traceback import shorten
from ..modes import local, run_kernel
from ..spec import Spec
from ..tensor import Tensor, wrap
from . import given_ops
from .accumulate import accumulate
from .backward_pass import BackwardPass
from .pass_watchers import watchers


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate the gradients of the sum of ``tensors`` into ``.grad`` of the leaves.

    Args:
        tensors: One tensor, or several.
        grad_tensors: The gradient arriving at each, in its shape; None for single elements.
        retain_graph: Keep saved values for another backward; defaults to ``create_graph``.
        create_graph: Record the backward itself, for higher derivatives.
        inputs: Accumulate into these tensors only.

    Raises:
        RuntimeError: A tensor has no graph, or more than one element and no gradient.
        GradientError: The graph was freed, or a saved value was overwritten.

    Memory:
        A leaf takes its first gradient over without a copy if no one else can see its bytes; later
        ones are added to it in place. With ``create_graph``, a leaf's ``.grad`` has a graph that
        may lead back to the leaf: a cycle, until ``.grad`` is set to None. ``grad`` makes none.
    """
    roots = _as_list(tensors)
    targets = None if inputs is None else _as_list(inputs)
    if any(t._spec.runs is not None for t in roots):
        roots, grad_tensors = given_ops.roots_of_sparse(roots, grad_tensors)
    if targets is not None and not targets:
        raise RuntimeError(
            "'inputs' argument to backward cannot be empty. Leave it out for all leaves."
        )
    gradients = _root_gradients(roots, grad_tensors, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    if targets is None:
        _run(roots, gradients, retain, create_graph, None)
        return
    targets = list(dict.fromkeys(targets))
    _check_inputs(targets)
    captured = _run(roots, gradients, retain, create_graph, targets)
    del gradients
    for target in targets:
        g = captured.pop(0)
        if g is not None:
            accumulate(target, g, create_graph)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of ``outputs`` with respect to ``inputs``, leaving ``.grad`` as it is.

    Args:
        outputs: One tensor, or several.
        inputs: One tensor, or several, leaves or not.
        grad_outputs: The gradient arriving at each output; None for single elements.
        retain_graph: Keep saved values; defaults to ``create_graph``.
        create_graph: Record the backward itself, for higher derivatives.
        only_inputs: Deprecated; gradients are those of the inputs alone, always.
        allow_unused: Return None for an input that no output depends on, instead of raising.
        is_grads_batched: The first dimension of each ``grad_outputs`` counts independent vectors.
        materialize_grads: Return zeros instead of None.

    Returns:
        One gradient per input, in its shape and dtype.

    Raises:
        RuntimeError: An input does not require grad, or is unused and that is not allowed.
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored: gradients are computed for inputs "
            "only. To accumulate others, call autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    roots, targets = _as_list(outputs), _as_list(inputs)
    options = (retain_graph, create_graph, allow_unused, materialize_grads)
    if is_grads_batched:
        return given_ops.batched_grad(roots, targets, _as_list(grad_outputs), *options)  # type: ignore[no-any-return]
    if local.state.levels:
        return given_ops.grad_in_vmap(roots, targets, grad_outputs, *options)  # type: ignore[no-any-return]
    if any(t._spec.runs is not None for t in (*roots, *targets)):
        return given_ops.grad_of_sparse(roots, targets, grad_outputs, *options)  # type: ignore[no-any-return]
    return gradients_of(roots, targets, grad_outputs, *options)


def gradients_of(
    roots: list[Tensor],
    targets: list[Tensor],
    grad_outputs: Any,
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
    arrived: Sequence[tuple[Any, Tensor]] = (),
) -> tuple[Tensor | None, ...]:
    """Compute what :func:`grad` returns, of tensors that have memory: none is batched by ``vmap``.

    The arguments are those of :func:`grad`, and ``arrived`` as of :class:`BackwardPass`.
    """
    if not targets:
        raise RuntimeError(
            "'inputs' argument to grad cannot be empty. Pass what to differentiate with respect to."
        )
    if materialize_grads and allow_unused is False:
        raise ValueError("materialize_grads=True needs allow_unused to be None or True.")
    _check_inputs(targets)
    gradients = _root_gradients(roots, grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    results = _run(roots, gradients, retain, create_graph, targets, arrived)
    for k, (target, g) in enumerate(zip(targets, results, strict=True)):
        if g is None and materialize_grads:
            results[k] = zeros_of(target._spec)
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph: "
                f"input {k} of shape {tuple(target.shape)}. Set allow_unused=True if this is "
                "desired; its gradient is None then."
            )
    return tuple(results)


def _check_inputs(targets: list[Tensor]) -> None:
    for t in targets:
        if not t.requires_grad:
            raise RuntimeError(
                "One of the differentiated Tensors does not require grad: an input of shape "
                f"{tuple(t.shape)}. Call .requires_grad_() on it before computing the outputs."
            )


def _as_list(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    found = list(tensors) if isinstance(tensors, Iterable) else [tensors]
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(f"backward and grad take Tensors; got {type(t).__name__}.")
    return found


def zeros_of(spec: Spec) -> Tensor:
    """Make a new tensor of zeros of a spec."""
    be = backend(spec.device)
    storage, array = be.empty(spec, TEMPORARY)
    if be.xp is not None:
        run_kernel(on_device(be, _fill), array, 0)
    return wrap(array, spec, storage)


def _root_gradients(roots: list[Tensor], given: Any, create: bool) -> list[Tensor]:
    if given is None:
        gradients: list[Any] = [None] * len(roots)
    else:
        several = isinstance(given, Iterable) and not isinstance(given, Tensor)
        gradients = list(given) if several else [given]
    if len(gradients) != len(roots):
        raise RuntimeError(
            f"backward needs one gradient per tensor; got {len(roots)} tensors and "
            f"{len(gradients)} gradients. Pass None for those of a single element."
        )
    for k, (root, g) in enumerate(zip(roots, gradients, strict=True)):
        if not root.requires_grad:
            raise RuntimeError(
                f"element {k} of tensors does not require grad and does not have a grad_fn. "
                "Compute it from a tensor that requires grad, outside no_grad."
            )
        if g is None:
            if root._spec.numel != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs; got shape "
                    f"{tuple(root.shape)}. Reduce it with .sum(), or pass gradient=."
                )
            if root._spec.dtype.is_complex:
                raise RuntimeError(
                    "grad can be implicitly created only for real scalar outputs but got "
                    f"{root.dtype}. Pass gradient=."
                )
            gradients[k] = ones_of(root._spec)
        else:
            if not isinstance(g, Tensor):
                raise TypeError(
                    f"gradients can be either Tensors or None, but got {type(g).__name__} for "
                    f"element {k}. Wrap it in lowtide.tensor()."
                )
            if g._spec.shape != root._spec.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{k}] has a shape of {tuple(g.shape)} and "
                    f"output[{k}] has a shape of {tuple(root.shape)}. They must be equal."
                )
            if g._spec.device is not root._spec.device:
                raise RuntimeError(
                    f"grad_output[{k}] is on {g.device} and output[{k}] on {root.device}. "
                    "Move one with .to()."
                )
            if g._spec is not root._spec:
                g = g.to(root.dtype)
            gradients[k] = g if create else g.detach()
    return gradients


def ones_of(spec: Spec) -> Tensor:
    """Make a new tensor of ones of a spec."""
    out = zeros_of(spec)
    if spec.device.type != "meta":  # type: ignore[union-attr]
        run_kernel(on_device(backend(spec.device), _fill), out._array, 1)
    return out


def _fill(array: Any, value: int) -> None:
    array.fill(value)


def _run(
    roots: list[Tensor],
    gradients: list[Tensor],
    retain: bool,
    create: bool,
    inputs: list[Tensor] | None,
    arrived: Sequence[tuple[Any, Tensor]] = (),
) -> list[Tensor | None]:
    told = watchers.joined
    for watcher in told:
        watcher.begin_pass(roots, retain, create, inputs)
    try:
        interrupts.listen()
        state = local.state
        before = (state.grad, state.saver, state.running, state.autocast)
        recorder = state.recorder
        if recorder is None or not (create and recorder.records_backward):
            state.recorder = None
            state.notes_results = state.inference or state.dependence is not None
            if recorder is not None and state.saver is recorder:
                state.saver = None
        phase, site = state.phase, state.site
        state.phase, state.site = "backward", None
        state.autocast = None  # rules compute in the types of the forward
        state.grad = create and not state.inference
        if not create:
            state.saver = None
        running = state.running
        try:
            return BackwardPass(roots, gradients, retain, create, inputs, arrived).results()
        except MemoryError as error:
            shorten(error)
            raise
        finally:
            done = state.running
            state.grad, state.saver, state.running, state.autocast = before  # no call in between
            state.phase, state.site = phase, site
            state.recorder = recorder
            state.notes_results = (
                state.inference or recorder is not None or state.dependence is not None
            )
            if done is not running:
                for reference in done.replayed:
                    value = reference()
                    if value is not None and not value.kept:
                        value.drop()
                if recorder is not None:
                    recorder.pass_ended()
    finally:
        for watcher in told:
            watcher.end_pass(inputs is None)
