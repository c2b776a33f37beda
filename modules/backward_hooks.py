"""Backward hooks of modules: where gradients enter and leave a call.

Where a module has backward hooks, its inputs and its outputs each pass through a node that does
nothing forward. Backward reaches the outputs' node first: it notes the gradients with the running
pass (never in the graph, which would keep them alive), and the inputs' node calls the hooks with
both. The tensors on the other side are views, so writing them in place works as without hooks.

Not optimal: the two nodes cost a view for each tensor that crosses the border.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..framework.autograd.engine import zeros_of
from ..framework.autograd.node import Node, attach, edge_to
from ..framework.modes import local
from ..framework.tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

Hook = Callable[..., Any]


class ModuleBackwardHooks:
    """The backward hooks of one call, shared by its two nodes; holds no tensor."""

    __slots__ = ("before", "hooks", "inputs", "module", "n_inputs", "n_outputs", "outputs")

    def __init__(self, module: Module, hooks: list[Hook], before: list[Hook]) -> None:
        self.module = module
        self.hooks = hooks
        self.before = before
        self.inputs: list[int] = []  # which positional arguments need a gradient
        self.outputs: list[int] = []
        self.n_inputs = self.n_outputs = 0

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pass the arguments through the node of the inputs."""
        self.n_inputs = len(args)
        if not self.hooks:
            return args
        self.inputs, args = _through(args, self._at_inputs, zeros=True)
        return args

    def leave(self, result: Any) -> Any:
        """Pass the result through the node of the outputs."""
        if isinstance(result, tuple):
            outputs = result
        elif isinstance(result, Tensor):
            outputs = (result,)
        else:
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}",
                stacklevel=4,
            )
            return result
        self.n_outputs = len(outputs)
        self.outputs, outputs = _through(outputs, self._at_outputs)
        if not isinstance(result, tuple):
            return outputs[0]
        return type(result)(*outputs) if hasattr(result, "_fields") else outputs

    def _at_outputs(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        grad_outputs = _spread(self.outputs, grads, self.n_outputs)
        for hook in self.before:
            found = hook(self.module, grad_outputs)
            if found is not None:
                grad_outputs = _checked("Backward pre hook", "grad_output", found, self.n_outputs)
        if self.hooks and self.inputs:
            local.state.running.notes[self] = dict(enumerate(grad_outputs))
        elif self.hooks:
            self._without_inputs(grad_outputs)
        return [grad_outputs[k] for k in self.outputs]

    def _at_inputs(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        noted = local.state.running.notes.pop(self, None)
        if noted is None:  # this gradient did not come from the module's outputs
            return grads
        grad_outputs = tuple(noted.values())
        grad_inputs = _spread(self.inputs, grads, self.n_inputs)
        for hook in self.hooks:
            found = hook(self.module, grad_inputs, grad_outputs)
            if found is not None:
                grad_inputs = _checked("Backward hook", "grad_input", found, self.n_inputs)
        return [grad_inputs[k] for k in self.inputs]

    def _without_inputs(self, grad_outputs: tuple[Tensor | None, ...]) -> None:
        # No input needs a gradient, so this is the only border that backward passes.
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module "
            "outputs since no inputs require gradients.",
            stacklevel=2,
        )
        for hook in self.hooks:
            found = hook(self.module, (None,) * self.n_inputs, grad_outputs)
            if found is not None and not (
                isinstance(found, tuple) and all(g is None for g in found)
            ):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always "
                    "return None or None for all gradients."
                )


class _BackwardHookNode(Node):
    """A node that passes gradients on and shows them to hooks.

    With ``zeros``, a missing gradient is shown, and goes on, as zeros; so PyTorch treats inputs.
    """

    __slots__ = ("edge_specs", "show", "zeros")

    def __init__(self, tensors: list[Tensor], show: Hook, zeros: bool) -> None:
        self.edges = [edge_to(t) for t in tensors]
        self.edge_specs = [t._spec for t in tensors]
        self.show = show
        self.zeros = zeros
        self._begin()

    @property
    def output_count(self) -> int:  # type: ignore[override]
        """The number of outputs, equal to that of inputs."""
        return len(self.edges)

    def name(self) -> str:
        """Return PyTorch's name of the corresponding node."""
        return "BackwardHookFunctionBackward"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Call the hooks on the gradients and return what they give."""
        if self.zeros:
            specs = self.edge_specs
            grads = [zeros_of(s) if g is None else g for g, s in zip(grads, specs, strict=True)]
        return self.show(grads)


def _through(
    values: tuple[Any, ...], show: Hook, zeros: bool = False
) -> tuple[list[int], tuple[Any, ...]]:
    # (positions of the values that need a gradient, the values with those behind a node)
    if not local.state.grad:
        return [], values
    places = [k for k, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    if not places:
        return [], values
    views = [values[k].view_as(values[k]) for k in places]
    node = _BackwardHookNode([values[k] for k in places], show, zeros)
    out = list(values)
    for index, (k, view) in enumerate(zip(places, views, strict=True)):
        attach(view, node, index)
        out[k] = view
    return places, tuple(out)


def _spread(places: list[int], grads: Sequence[Tensor | None], n: int) -> tuple[Tensor | None, ...]:
    full: list[Tensor | None] = [None] * n
    for k, g in zip(places, grads, strict=True):
        full[k] = g
    return tuple(full)


def _checked(what: str, name: str, found: Any, n: int) -> tuple[Tensor | None, ...]:
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    if len(found) != n:
        raise RuntimeError(
            f"{what} returned an invalid number of {name}, got {len(found)}, but expected {n}. "
            "Return one for each, None where there is no gradient; or None to change nothing."
        )
    return found
