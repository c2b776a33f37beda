"""The context of an ``autograd.Function``: a node of the graph that calls the user's backward.

Saved tensors go through the same handles as those of every op. What forward computed without a
history and backward uses, as a saved tensor or an attribute, cannot be differentiated again: under
``create_graph`` it gets a history that raises (``dependence.py`` says which values these are).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import GradientError
from ..memory_format import strided
from ..modes import local, no_grad
from ..tensor import Tensor
from .dependence import Dependence
from .engine import zeros_of
from .node import Node, SavedValue, _sequence, attach, describe_saved, edge_to
from .once_differentiable import without_derivative
from .saved import OWN, Held, check_savable
from .view_history import check_writable, mark_outputs, rebase

if TYPE_CHECKING:
    from .function import Function


class FunctionCtx(Node):
    """The context of a :class:`Function`: what forward saves for backward.

    Attributes:
        needs_input_grad: For each argument of forward, whether it is a tensor that requires grad.
        materialize_grads: Backward gets zeros instead of None for an output that was not used.
    """

    # No __slots__: users set attributes of their own.
    function: type[Function]
    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads = True
    runs_without_gradient = True
    _create = False  # backward runs, and is recorded
    # Values made by forward, without a history: bits of the arguments they depend on, by position
    # among the saved tensors, and with a reference by name of the attribute.
    _made: Mapping[int, int] = MappingProxyType({})
    _made_attributes: Mapping[str, list[tuple[Any, int]]] = MappingProxyType({})

    def __init__(self) -> None:
        self.edges = []
        self.edge_specs = []
        self._begin(numbered=False)
        self._to_save: tuple[Any, ...] = ()
        self._handles: list[Any] | None = None
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._inputs: tuple[int | None, ...] = ()  # per argument its edge, or None
        self._outputs: tuple[Any, ...] = ()  # per output its spec, None if it is no tensor
        self.needs_input_grad = ()
        self._own = len(self.__dict__) + 1  # what follows among the attributes is the user's

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
        labels = self._labels()
        values = [
            None if h is None else h.unpack(self, label)
            for h, label in zip(handles, labels, strict=True)
        ]
        if self._create and local.state.grad:
            for k, bits in self._made.items():
                values[k] = self._without_derivative(values[k], bits, labels[k])
        return tuple(values)

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
        attributes = self._hide_histories() if create and self._made_attributes else ()
        self._create = create
        try:
            results = self.function.backward(self, *grads)
        finally:
            self._create = False
            for name, before, shown in attributes:
                if vars(self).get(name) is shown:
                    setattr(self, name, before)
            if not retain:
                self.release()
        return self._sorted(results if isinstance(results, tuple | list) else (results,))

    def release(self) -> None:
        """Free the saved tensors."""
        if self._handles:
            self._handles = None

    def _without_derivative(self, value: Any, bits: int, what: str) -> Tensor:
        # Backward may use the value, but not be differentiated through it.
        positions = [k for k in range(len(self._inputs)) if bits >> k & 1]
        chosen: list[Any] = [self._inputs[k] for k in positions]
        name = self.function.__name__
        several = "s" if len(positions) > 1 else ""
        return without_derivative(
            value,
            [self.edges[k] for k in chosen],
            [self.edge_specs[k] for k in chosen],
            f"{name}.backward cannot be differentiated: {what} (shape {tuple(value.shape)}) was "
            f"computed in forward from argument{several} {', '.join(map(str, positions))}, "
            "without a history, so its part of the second derivative would be missing. Save the "
            "inputs and compute it again in backward, or return it as a further output and save "
            "it; or put @once_differentiable on backward. If it counts as a constant, call "
            ".detach() on it there.",
        )

    def _hide_histories(self) -> list[tuple[str, Any, Any]]:
        # For the time of backward: (name, the attribute, what stands in its place).
        changed = []
        for name, made in self._made_attributes.items():
            before = vars(self).get(name)

            def show(t: Tensor, made: Any = made, name: str = name) -> Tensor:
                bits = next((bits for reference, bits in made if reference() is t), 0)
                return self._without_derivative(t, bits, f"ctx.{name}") if bits else t

            shown = _mapped(show, before)
            setattr(self, name, shown)
            changed.append((name, before, shown))
        return changed

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
                        "its .values() as a separate input, and make the tensor in forward."
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
        self._note_writes(args, outputs, versions, dirty)
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
        dependence = local.state.dependence
        if recording:
            if dependence is not None:
                self._look_for_made(dependence, to_save, given | _ids(outputs))
            self._save(to_save, saved_as, given - dirty)
            del to_save  # it may hold what the outputs are views of
            mark_outputs(self.function.__name__, made)
        elif dependence is not None:
            dependence.passed(
                args, [o for o in results if isinstance(o, Tensor) and id(o) not in constant]
            )
        return results

    def _note_writes(
        self, args: tuple[Any, ...], outputs: list[Any], versions: list[int], dirty: set[int]
    ) -> None:
        # Inputs that forward says it has written are outputs, and their version grows.
        if not dirty <= _ids(outputs):
            raise RuntimeError(
                f"{self.name()}: Some elements marked as dirty during the forward method were not "
                "returned as output. The inputs that are modified inplace must all be outputs of "
                "the Function. Return them."
            )
        for x, version in zip(args, versions, strict=True):
            if id(x) in dirty and x._storage.version == version:
                x._storage.version += 1  # written through its array

    def _look_for_made(
        self, dependence: Dependence, to_save: tuple[Any, ...], known: set[int]
    ) -> None:
        # Inputs and outputs have a history; what requires grad brings its own.
        if len(vars(self)) <= self._own and all(id(t) in known for t in to_save):
            return

        def bits_of(t: Any) -> int:
            is_made = isinstance(t, Tensor) and t.layout is strided and id(t) not in known
            return dependence.of(t) if is_made and not t._requires_grad else 0

        self._made = {k: bits for k, t in enumerate(to_save) if (bits := bits_of(t))}
        by_name = {}
        for name, value in islice(tuple(vars(self).items()), self._own, None):
            if isinstance(value, Tensor):
                value = (value,)
            elif type(value) is dict:
                value = value.values()
            elif type(value) not in (list, tuple):
                continue
            found = [(weakref.ref(t), bits) for t in value if (bits := bits_of(t))]
            if found:
                by_name[name] = found
        if by_name:
            self._made_attributes = by_name

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
                if t._extra is not None and source is None:
                    check_savable(t, f"{self.name()}.saved tensor {len(handles)}")
                handles.append(Held(t, source, index or 0))
            else:
                handles.append(saver.save(t, source, index or 0))
        self._handles = handles


def _ids(tensors: Sequence[Any]) -> set[int]:
    return {id(t) for t in tensors if isinstance(t, Tensor)}


def _mapped(f: Any, value: Any) -> Any:
    """Return an attribute with ``f`` of its tensors: itself, or elements of it."""
    if isinstance(value, Tensor):
        return f(value)
    if type(value) in (list, tuple):
        return type(value)(f(v) if isinstance(v, Tensor) else v for v in value)
    if type(value) is dict:
        return {k: f(v) if isinstance(v, Tensor) else v for k, v in value.items()}
    return value


def _alias(tensor: Tensor) -> Tensor:
    with no_grad():
        return tensor.view_as(tensor)
