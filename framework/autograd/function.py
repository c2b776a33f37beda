"""Custom autograd functions: ``autograd.Function``, forward and backward as static methods.

The context that both receive *is* the node of the graph, as in PyTorch: what forward sets on it,
backward finds, and ``y.grad_fn`` shows. Saved tensors go through the same handles as those of
every op, so version checks, ``saved_tensors_hooks`` and activation checkpointing see them. An
output that is saved refers to its node by position and not by reference, so there is no cycle; a
tensor set as a plain attribute of the context has no such protection.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import GradientError
from ..memory_format import strided
from ..modes import local, no_grad
from ..tensor import Tensor
from . import given_ops
from .anomaly import remember
from .engine import zeros_of
from .node import Node, SavedValue, _sequence, attach, describe_saved, edge_to
from .saved import OWN, Held
from .view_history import check_writable, mark_outputs, rebase


class FunctionCtx(Node):
    """The context of a :class:`Function`: what forward saves for backward.

    Attributes:
        needs_input_grad: For each argument of forward, whether it is a tensor that requires grad.
        materialize_grads: Backward gets zeros instead of None for an output that nobody used.
    """

    # No __slots__: users set attributes of their own.
    function: type[Function]
    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads = True
    runs_without_gradient = True

    def __init__(self) -> None:
        self.edges = []
        self.edge_specs = []
        self.seq = 0
        self.extra = None
        self._to_save: tuple[Any, ...] = ()
        self._handles: list[Any] | None = None
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._inputs: tuple[int | None, ...] = ()  # per argument its edge, or None
        self._outputs: tuple[Any, ...] = ()  # per output its spec, None if it is no tensor

    # What forward and setup_context call

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for backward, where ``ctx.saved_tensors`` returns them.

        Args:
            *tensors: Inputs, outputs or intermediate results; None is allowed.

        Raises:
            TypeError: One is something else. Set that as an attribute of ``ctx``.
        """
        for k, t in enumerate(tensors):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {k} is of type "
                    f"{type(t).__name__}. Set it as an attribute of ctx."
                )
        self._to_save = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Mark inputs that forward modified in place; each must be an output too."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Mark outputs that have no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose zeros (True, the default) or None for missing gradients in backward."""
        self.materialize_grads = value

    # What backward reads

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to ``save_for_backward``.

        Raises:
            GradientError: It was freed by an earlier backward, or written in place since.
        """
        handles = self._handles
        if handles is None:
            raise GradientError(
                f"The graph of {self.name()} was freed by an earlier backward (Trying to backward "
                "through the graph a second time). Pass retain_graph=True there, or compute the "
                "loss again."
            )
        return tuple(
            None if h is None else h.unpack(self, label)
            for h, label in zip(handles, self._labels(), strict=True)
        )

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """The values saved for backward: label, shape, dtype and bytes of each."""
        return describe_saved(self._handles, self._labels())

    def _labels(self) -> list[str]:
        count = len(self._handles or ())
        return [f"{self.function.__name__}.saved_tensors[{k}]" for k in range(count)]

    # What the engine calls

    @property
    def output_count(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return len(self._outputs)

    def name(self) -> str:
        """``<class of the function>Backward``."""
        return f"{self.function.__name__}Backward"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node, output index) per tensor argument; (None, 0) for one without a gradient."""
        edges = super().next_functions
        return tuple((None, 0) if k is None else edges[k] for k in self._inputs if k != -1)

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Call the user's backward and match the gradients it returns to edges."""
        if self.materialize_grads:
            grads = [
                zeros_of(spec) if g is None and spec is not None else g
                for g, spec in zip(grads, self._outputs, strict=True)
            ]
        try:
            results = self.function.backward(self, *grads)
        finally:
            if not retain:
                self.release()
        return self._sorted(results if isinstance(results, tuple | list) else (results,))

    def release(self) -> None:
        """Free the saved tensors."""
        if self._handles:
            self._handles = None

    def _sorted(self, results: Sequence[Any]) -> list[Tensor | None]:
        expected, got = len(self._inputs), len(results)
        if got < expected or any(r is not None for r in results[expected:]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected "
                f"{expected}, got {got}). Return one per argument of forward, None where there is "
                "no gradient."
            )
        found: list[Tensor | None] = [None] * len(self.edges)
        for k, (edge, g) in enumerate(zip(self._inputs, results, strict=False)):
            if g is None:
                continue
            if edge == -1:
                raise RuntimeError(
                    f"function {self.name()} returned a gradient different than None at position "
                    f"{k + 1}, but the corresponding forward input was not a Variable. Return "
                    "None there."
                )
            if not isinstance(g, Tensor):
                raise RuntimeError(
                    f"function {self.name()}: expected Variable or None (got {type(g).__name__}) "
                    f"as gradient {k}."
                )
            if edge is not None:
                found[edge] = g
        return found

    # What Function.apply does after forward

    def _connect(self, args: tuple[Any, ...]) -> None:
        # Edges as they are before forward writes in place.
        inputs: list[int | None] = []
        for x, needed in zip(args, self.needs_input_grad, strict=True):
            if needed:
                if x.layout is not strided:
                    raise NotImplementedError(
                        f"{self.name()}: a sparse input that requires grad is not supported. Pass "
                        "its .values() as an input of its own, and make the tensor in forward."
                    )
                inputs.append(len(self.edges))
                self.edges.append(edge_to(x))  # type: ignore[attr-defined]
                self.edge_specs.append(x._spec)  # type: ignore[attr-defined]
            else:
                inputs.append(None if isinstance(x, Tensor) else -1)
        self._inputs = tuple(inputs)

    def _finish(
        self, args: tuple[Any, ...], outputs: list[Any], versions: list[int], recording: bool
    ) -> list[Any]:
        """Attach the outputs to the graph and pack the saved tensors."""
        dirty, constant = _ids(self._dirty), _ids(self._constant)
        to_save, self._to_save = self._to_save, ()
        self._dirty = self._constant = ()  # they may be outputs, which refer to this node
        given = {id(x) for x in args if isinstance(x, Tensor)}
        if not dirty <= _ids(outputs):
            raise RuntimeError(
                f"{self.name()}: Some elements marked as dirty during the forward method were not "
                "returned as output. The inputs that are modified inplace must all be outputs of "
                "the Function. Return them."
            )
        for x, version in zip(args, versions, strict=True):
            if id(x) in dirty and x._storage.version == version:
                x._storage.version += 1  # written behind our back, through its array
        self._outputs = tuple(o._spec if isinstance(o, Tensor) else None for o in outputs)
        self.seq = next(_sequence)
        saved_as: dict[int, int] = {}
        made: dict[int, Tensor] = {}
        results = list(outputs)
        for k, out in enumerate(outputs):
            if not isinstance(out, Tensor):
                continue
            plain = id(out) in constant or not out.dtype.is_differentiable or not recording
            if not plain and out.layout is not strided:
                raise NotImplementedError(
                    f"{self.name()}: forward returned a sparse tensor, which no Function can make "
                    "part of the graph. Return its values, or mark it as not differentiable."
                )
            if id(out) in dirty:
                self._rewrite(out, k, plain)
            elif id(out) in given or out._requires_grad or id(out) in saved_as:
                # The same tensor cannot have two histories.
                results[k] = out.detach() if plain else _alias(out)
                if not plain:
                    attach(results[k], self, k)
            elif not plain:
                attach(out, self, k)
            if not plain:
                saved_as.setdefault(id(out), k)
                if id(out) not in dirty:
                    made[k] = results[k]
        if recording:
            self._save(to_save, saved_as, given - dirty)
            del to_save  # it may hold what the outputs are views of
            mark_outputs(self.function.__name__, made)
        return results

    def _rewrite(self, out: Tensor, k: int, plain: bool) -> None:
        # An input written in place: the function becomes its history.
        check_writable(out, self.name(), not plain)
        if not plain:
            rebase(out, self, k)

    def _save(self, tensors: tuple[Any, ...], outputs: dict[int, int], inputs: set[int]) -> None:
        saver = local.state.saver
        handles: list[Any] = []
        for t in tensors:
            if t is None:
                handles.append(None)
                continue
            index = outputs.get(id(t)) if id(t) not in inputs else None
            source = None if index is None else OWN
            if t.layout is not strided:  # its parts are saved
                sparse: Any = t
                handles.append(sparse.saved(Held if saver is None else saver.save))
            elif saver is None:
                handles.append(Held(t, source, index or 0))
            else:
                handles.append(saver.save(t, source, index or 0))
        self._handles = handles


def _ids(tensors: Sequence[Any]) -> set[int]:
    return {id(t) for t in tensors if isinstance(t, Tensor)}


def _alias(tensor: Tensor) -> Tensor:
    with no_grad():
        return tensor.view_as(tensor)


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
        state.function = name
        if recording and state.phase is None:
            state.phase = "forward"
        try:
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
