"""Plans: everything that depends only on a call's specs and attributes, computed once.

Which device and kernel, what results look like, which inputs are converted and to what (PyTorch's
promotion; float32 for half precision), which gradient rules apply. User errors about devices,
dtypes and shapes are raised here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .. import execution
from ..device import device
from ..devices import backend, on_device
from ..dtypes import INT, as_dtype, combine, dtype, float32, get_default_dtype
from ..kernels.common.mixed_dtype import in_tiles, worth_tiles
from ..kernels.common.shared_ufuncs import with_shared_ufuncs
from ..memory.events import publish_overwrite
from ..memory.ledger import WORKSPACE
from ..modes import local, run_kernel
from ..spec import NONE, ScalarSpec, Spec
from ..tensor import Tensor, wrap
from .kernel_choice import Kernel, choose, mixed_kernel
from .limited_dtypes import check_limited
from .rules import RuleSet

if TYPE_CHECKING:
    from .registry import Op


class Plan:
    """The plan of calls of an op with given specs and attributes.

    Attributes:
        kernel: The kernel, as declared.
        xp: The device's array module; None on meta, where no kernel runs.
        one_write: The kernel is plain, and declared to write its result in one call.
        run: The kernel with ``xp`` and the attributes filled in; None on meta.
        backend: The device's backend.
        results: Specs of visible results and aux values.
        simple: One result, and nothing of what follows: the dispatcher's short road.
        casts: Per input the spec that the kernel wants it in, or None.
        compute: Per result the spec that the kernel writes, where that is another dtype.
        scratch: Specs of the scratch buffers.
        overwrites: The inputs over which the kernel can write its first result.
        layout: Predicate that input arrays must meet, or None.
        layouts: Those of some inputs by number, in place of it.
        differentiable: Some result can carry a gradient.
        rules: Rule sets by the bit mask of inputs that need a gradient.
    """

    __slots__ = (
        "attributes", "backend", "casts", "compute", "differentiable", "kernel", "layout",
        "layouts", "one_write", "op", "overwrites", "results", "rules", "run", "scratch", "simple",
        "specs", "xp",
    )  # fmt: skip

    def __init__(self, op: Op, specs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self.op = op
        self.specs = specs
        self.attributes = attributes
        self.rules: dict[int, RuleSet] = {}
        where = _common_device(op, specs)
        be = self.backend = backend(where)
        names = op.names_of(len(specs))
        _check_tensors(op, names, specs)
        common = _promoted(op, names, specs)
        seen = tuple(
            s if c is None else Spec(s.shape, c, where) for s, c in zip(specs, common, strict=True)
        )
        seen = tuple(None if s is NONE else s for s in seen)
        inferred = _inferred(op, seen, attributes, where)
        count = len(op.returns) + len(op.aux)
        self.results = inferred[:count]
        check_limited(op, specs, seen, self.results)
        chosen, up = self._choose(seen, common)
        self.layout, self.overwrites = chosen.layout, chosen.overwrites
        self.layouts = {names.index(k): lies for k, lies in chosen.layouts.items()}
        if op.one_write and chosen.function is op.plain:  # a ufunc, which may write over an operand
            self.overwrites = op.inputs
        self.scratch = _scratch_of(op, inferred, chosen, inferred[count:], up, seen, attributes)
        kernel = on_device(be, self._in_pieces(chosen.function))
        self.kernel, self.xp = kernel, be.xp
        self.one_write = op.one_write and kernel is op.plain
        self.run = None if be.xp is None else partial(kernel, be.xp, **attributes)
        self.simple = len(self.results) == 1 and not (
            self.scratch or self.casts or self.compute or self.layout or op.adopt
        )
        self.differentiable = bool(op.rules) and (
            op.infer is None or any(r.dtype.is_differentiable for r in self.results)
        )
        execution.current.plan_made(self)

    def _choose(self, seen: tuple[Any, ...], common: list[Any]) -> tuple[Kernel, bool]:
        # The kernel, and whether halves become float32 for it; sets what is converted.
        op, specs = self.op, self.specs
        up = op.half == "float32"
        casts = [_kernel_spec(s, c, up) for s, c in zip(specs, common, strict=True)]
        converted = tuple(c or (None if s is NONE else s) for c, s in zip(casts, seen, strict=True))
        key = self.backend.kernel_key
        chosen = choose(op.kernels, key, seen, converted, self.attributes)
        chosen = chosen or Kernel(op.plain, layout=op.layout)
        if up and chosen.dtypes == "half":
            up = False
            casts = [_kernel_spec(s, c, up) for s, c in zip(specs, common, strict=True)]
        self.casts = tuple(casts) if any(casts) else None
        compute = [
            r.like(dtype=float32) if up and r.dtype.is_narrow else None for r in self.results
        ]
        self.compute = tuple(compute) if any(compute) else None
        return chosen, up

    def _in_pieces(self, kernel: Any) -> Any:
        # An elementwise kernel works off tiles, each converted, or chunks that threads share.
        op, key = self.op, self.backend.kernel_key
        if not op.elementwise:
            return kernel
        converts = self.casts is not None or self.compute is not None
        buffers = op.formula is not None and bool(self.scratch)  # in a tile's size they are small
        if (converts or buffers) and key == "cpu" and worth_tiles(self.results):
            casts = self.casts or (None,) * len(self.specs)
            kernel, self.scratch = in_tiles(
                kernel,
                self.results,
                casts,
                None if self.compute is None else self.compute[0],
                self.scratch,
                mixed_kernel(op.kernels, key),
                op.elementwise == "bitmask",
            )
            if all(casts[k] for k, s in enumerate(self.specs) if isinstance(s, Spec)):
                self.layout = None  # what is converted lies as it should
            self.casts = self.compute = None
        elif op.elementwise is True and self.backend.device.type == "cpu" and kernel is op.plain:
            kernel = with_shared_ufuncs(kernel, self.results[0].shape)
        return kernel

    def rule_set(self, mask: int) -> RuleSet:
        """Return the gradient rules for the inputs in ``mask``."""
        found = self.rules.get(mask)
        if found is None:
            found = self.rules[mask] = RuleSet(
                self.op, self.specs, self.attributes, self.results, mask
            )
        return found

    def storages(self, arrays: list[Any]) -> list[Any]:
        """Run the kernel; return the storages of its results, aux values included."""
        return [r._storage for r in run_kernel(execute, self, arrays, None)]

    def results_over(self, arrays: list[Any], storage: Any, array: Any) -> list[Tensor]:
        """Run the kernel, its first result written to ``array``, which is all of ``storage``.

        What was there is lost: an input that ``overwrites`` names, or nothing that the call reads.
        """
        others = [self.backend.empty(spec) for spec in self.results[1:]]  # may be refused: first
        storage.version += 1
        if storage.ledger.observers:
            publish_overwrite(storage.ledger, storage)
        capture = local.state.capture
        if capture is not None:
            capture.overwrites(storage)
        made: list[Tensor] = run_kernel(execute, self, arrays, [(storage, array), *others])
        return made

    def write(self, arrays: list[Any], storage: Any, array: Any, spec: Any) -> None:
        """Run the kernel into ``array`` of ``storage``; ``spec`` describes it."""
        if self.results[0].dtype is spec.dtype and len(self.results) == 1:
            run_kernel(execute, self, arrays, [(storage, array)])
            return
        result = run_kernel(execute, self, arrays, None)[0]
        if self.backend.xp is not None:
            run_kernel(self.backend.copy, array, result._array)


def _check_tensors(op: Op, names: Any, specs: tuple[Any, ...]) -> None:
    for k, (name, spec) in enumerate(zip(names, specs, strict=True)):
        if name in op.tensors and not isinstance(spec, Spec):
            raise TypeError(
                f"{op.display_name}(): argument '{name}' (position {k + 1}) must be Tensor, "
                f"not {spec.name}. Wrap it in lowtide.tensor()."
            )


def _inferred(
    op: Op, seen: tuple[Any, ...], attributes: dict[str, Any], where: Any
) -> tuple[Spec, ...]:
    # Specs of results, aux values and scratch buffers.
    inferred = () if op.infer is None else op.infer(*seen, **attributes)
    if isinstance(inferred, Spec):
        inferred = (inferred,)
    return tuple(s.on(where) for s in inferred)


def _scratch_of(
    op: Op,
    inferred: tuple[Spec, ...],
    chosen: Kernel,
    declared: tuple[Spec, ...],
    up: bool,
    seen: tuple[Any, ...],
    attributes: dict[str, Any],
) -> tuple[Spec, ...]:
    # The buffers that a kernel gets: those of the op, or its own, or none.
    if not chosen.scratch:
        return ()
    if op.formula is not None and not callable(chosen.scratch):
        out = inferred[0].like(dtype=float32) if up and inferred[0].dtype.is_narrow else inferred[0]
        return op.formula.scratch(out, attributes)
    if callable(chosen.scratch):
        return tuple(chosen.scratch(*seen, **attributes))
    return tuple(s.like(dtype=float32) if up and s.dtype.is_narrow else s for s in declared)


def execute(  # noqa: C901 - every op that needs more than a plain call goes through here
    plan: Plan, arrays: list[Any], targets: Any, take: Any = None
) -> list[Tensor]:
    """Run a kernel with everything it may need: conversions, scratch, several results.

    Args:
        plan: Of the call.
        arrays: Its arrays and numbers.
        targets: (storage, array) of each result, to write there; None to allocate them.
        take: ``take(spec, WORKSPACE)`` returns (storage, array) of workspace; None allocates it.
    """
    be, op = plan.backend, plan.op
    take = be.empty if take is None else take
    held = []  # workspace, given back when this function ends
    arrays = list(arrays)
    if plan.casts is not None:
        for i, spec in enumerate(plan.casts):
            if spec is not None:
                storage, array = take(spec, WORKSPACE)
                held.append(storage)
                if be.xp is not None:
                    be.copy(array, arrays[i])
                arrays[i] = array
    if plan.layout is not None:
        for i, array in enumerate(arrays):
            if hasattr(array, "shape") and not plan.layouts.get(i, plan.layout)(array):
                spec = plan.specs[i] if plan.casts is None else plan.casts[i] or plan.specs[i]
                storage, fresh = take(spec, WORKSPACE)
                held.append(storage)
                if be.xp is not None:
                    be.copy(fresh, array)
                arrays[i] = fresh
    if op.adopt:
        return _adopt(plan, arrays, targets)
    outs = targets or [be.empty(spec) for spec in plan.results]
    buffers = [array for _, array in outs]
    if plan.compute is not None:
        for i, spec in enumerate(plan.compute):
            if spec is not None:
                storage, buffers[i] = take(spec, WORKSPACE)
                held.append(storage)
    for spec in plan.scratch:
        storage, array = take(spec, WORKSPACE)
        held.append(storage)
        buffers.append(array)
    if plan.run is not None:
        plan.run(*buffers, *arrays)
        if plan.compute is not None:
            for i, spec in enumerate(plan.compute):
                if spec is not None:
                    be.copy(outs[i][1], buffers[i])
    return [wrap(a, s, st) for (st, a), s in zip(outs, plan.results, strict=True)]


def _adopt(plan: Plan, arrays: list[Any], targets: Any) -> list[Tensor]:
    # A library allocated the result: its bytes move to the pool, where the ledger sees them.
    be = plan.backend
    if plan.run is None:
        if not plan.results:
            raise NotImplementedError(
                f"{plan.op.display_name} on meta: the shape of its result depends on values, "
                "and meta has none. Run it on cpu or cuda."
            )
        outs = targets or [be.empty(spec) for spec in plan.results]
        return [wrap(a, s, st) for s, (st, a) in zip(plan.results, outs, strict=True)]
    made = plan.run(*arrays)
    made = made if isinstance(made, tuple) else (made,)
    results = []
    for k, array in enumerate(made):
        spec = (
            plan.results[k] if plan.results else Spec(array.shape, as_dtype(array.dtype), be.device)
        )
        storage, out = targets[k] if targets else be.empty(spec)
        be.copy(out, array)
        results.append(wrap(out, spec, storage))
    return results


def _common_device(op: Op, specs: tuple[Any, ...]) -> device:
    found: device | None = None
    for s in specs:
        if isinstance(s, Spec):
            if found is None:
                found = s.device
            elif s.device is not found:
                listed = ", ".join(
                    f"{n} on {s.device}"
                    for n, s in zip(op.names_of(len(specs)), specs, strict=True)
                    if isinstance(s, Spec)
                )
                raise RuntimeError(
                    f"{op.display_name} needs all tensors on one device (Expected all tensors to "
                    f"be on the same device); got {listed}. Move one with .to()."
                )
    if found is None:
        raise TypeError(
            f"{op.display_name}: at least one input must be a Tensor; got only scalars. Wrap one "
            "in lowtide.tensor()."
        )
    return found


def _promoted(op: Op, names: Any, specs: tuple[Any, ...]) -> list[dtype | None]:
    """Return the promoted dtype of each input; None for those without promotion."""
    if op.promote is None:
        return [None] * len(specs)
    rule, among = (op.promote, None) if isinstance(op.promote, str) else op.promote
    takes = [
        not (isinstance(s, ScalarSpec) and s.category < 0) and (among is None or n in among)
        for n, s in zip(names, specs, strict=True)
    ]
    group = [s for s, t in zip(specs, takes, strict=True) if t]
    if rule == "same":
        types = {s.dtype for s in group if isinstance(s, Spec)}
        if len(types) > 1:
            listed = ", ".join(
                f"{n} {s.dtype}" for n, s, t in zip(names, specs, takes, strict=True) if t
            )
            raise RuntimeError(
                f"{op.display_name}: expected its inputs to have the same dtype; got {listed}. "
                "Convert one with .to()."
            )
        common = types.pop()
    else:
        common = combine(
            [s.dtype for s in group if isinstance(s, Spec) and s.ndim],
            [s.dtype for s in group if isinstance(s, Spec) and not s.ndim],
            [s.category for s in group if isinstance(s, ScalarSpec)],
        )
        kinds = [s.dtype.category if isinstance(s, Spec) else s.category for s in group]
        if rule == "number" and 0 in kinds and any(kinds):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
                "trying to invert a mask, use the `~` or `logical_not()` operator instead."
            )
        if rule == "float" and common.category <= INT:
            common = get_default_dtype()
    return [common if t else None for t in takes]


def _kernel_spec(spec: Any, common: dtype | None, up: bool) -> Spec | None:
    # The spec a tensor input is converted to for the kernel, or None if it is right as it is.
    if not isinstance(spec, Spec):
        return None
    wanted = common or spec.dtype
    if up and wanted.is_narrow:
        wanted = float32
    return None if wanted is spec.dtype else spec.like(dtype=wanted)
