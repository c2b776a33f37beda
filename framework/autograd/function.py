"""Custom autograd functions: ``autograd.Function``, forward and backward as static methods.

The context that both receive *is* the node of the graph, as in PyTorch: what forward sets on it,
backward finds, and ``y.grad_fn`` shows. Saved tensors go through the same handles as those of
every op, so version checks, ``saved_tensors_hooks`` and activation checkpointing see them. An
output that is saved refers to its node by position and not by reference, so there is no cycle; a
tensor set as a plain attribute of the context has no such protection.
"""

from __future__ import annotations

import inspect
from typing import Any

from ..modes import local
from ..tensor import Tensor
from . import given_ops
from .anomaly import remember
from .dependence import Dependence
from .function_context import FunctionCtx


class Function:
    """A custom op with a hand-written gradient.

    Subclass it with two static methods, and call ``apply``. ``forward`` runs without recording;
    ``backward`` gets one gradient per output and returns one per argument of ``forward``, with
    None where there is none. It is recorded under ``create_graph``, so it can be differentiated
    again if it is made of lowtide's ops.

    ``forward`` takes ``ctx`` first; or, if there is a static method
    ``setup_context(ctx, inputs, output)``, it takes the arguments alone.

    Attributes:
        recompute: Activation checkpointing may run forward again instead of keeping its outputs.
            Set it to False for a forward that is not repeatable.
        generate_vmap_rule: Inside ``vmap``, run forward and backward on batched tensors: for
            functions made of lowtide's ops, with ``setup_context``. Else write a static method
            ``vmap(info, in_dims, *args)`` that returns (output, out_dims), as in PyTorch.

    Memory:
        Keeps what ``ctx.save_for_backward`` is given, and whatever is set on ``ctx``.

    Example:
        >>> import lowtide as lt
        >>> class Cube(lt.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g * 3 * x * x
        >>> x = lt.tensor(2.0, requires_grad=True)
        >>> Cube.apply(x).backward()
        >>> x.grad.item()
        12.0
    """

    recompute = True
    generate_vmap_rule = False
    _node_class: type[FunctionCtx]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._node_class = type(f"{cls.__name__}Backward", (FunctionCtx,), {"function": cls})

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"{type(self).__name__} is not to be instantiated: its methods are static (Legacy "
            f"autograd function). Call {type(self).__name__}.apply(...)."
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs: ``forward(ctx, *args)``, or ``forward(*args)``."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs, after a ``forward`` that takes no ``ctx``."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradient of each argument of forward."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and record a graph node if an argument requires grad.

        Args:
            *args: Arguments of forward: tensors, and anything else.
            **kwargs: Only with ``setup_context``: arguments of forward by name.

        Returns:
            What forward returned.
        """
        separate = cls.setup_context is not Function.setup_context
        if kwargs:
            if not separate:
                raise TypeError(
                    f"{cls.__name__}.apply() takes no keyword arguments. Pass them by position, "
                    "or write setup_context."
                )
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        if local.state.levels:
            found = given_ops.function_in_vmap(cls, args, separate)
            if found is not NotImplemented:
                return found
        ctx = cls._node_class()
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        recording = local.state.grad and any(ctx.needs_input_grad)
        versions = [a._storage.version if isinstance(a, Tensor) else 0 for a in args]
        ctx._connect(args)
        state, name = local.state, cls.__name__
        # What is saved belongs to the function by its name, and a forward is one though no gradient
        # is recorded in it. A region of activation checkpointing notes nothing of a forward that
        # may not run again: what it makes is kept.
        before = state.function, state.phase, state.grad, state.recorder
        outer, notes = state.dependence, state.notes_results
        dependence = None if recording else outer
        if recording and not hasattr(cls.backward, "differentiable_once"):
            dependence = Dependence(args, ctx.needs_input_grad)
        state.function = name
        if recording and state.phase is None:
            state.phase = "forward"
        try:
            state.dependence, state.notes_results = dependence, notes or dependence is not None
            state.grad = False
            if not cls.recompute:
                state.recorder = None
            try:
                if separate:
                    output = cls.forward(*args)
                    cls.setup_context(ctx, args, output)
                else:
                    output = cls.forward(ctx, *args)
            finally:
                state.grad, state.recorder = before[2:]
            several = isinstance(output, tuple | list)
            outputs = ctx._finish(args, list(output) if several else [output], versions, recording)
        finally:
            state.dependence, state.notes_results = outer, notes
            state.function, state.phase = before[:2]
        if recording and state.anomaly:
            remember(ctx)
        return _rebuilt(output, outputs) if several else outputs[0]


def _rebuilt(output: Any, outputs: list[Any]) -> Any:
    """Return the outputs in the kind of sequence that forward returned."""
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*outputs)
    return tuple(outputs)


__all__ = ["Function", "FunctionCtx"]
