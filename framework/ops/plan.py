"""Plans: all that is known of a call from its specs and attributes, decided once.

Which device and kernel, what results look like, which inputs are converted and to what (PyTorch's
promotion; float32 for half precision), which gradient rules apply. User errors about devices,
dtypes and shapes are raised here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..device import device
from ..devices import backend, on_device
from ..dtypes import INT, combine, dtype, float32, get_default_dtype
from ..kernels.common.mixed_dtype import in_pieces, worth_pieces
from ..kernels.common.parallel import in_parts
from ..spec import NONE, ScalarSpec, Spec
from .registry import Op
from .rules import RuleSet


class Plan:
    """What a call of an op with given specs and attributes comes down to.

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
        layout: Predicate that input arrays must meet, or None.
        differentiable: Some result can carry a gradient.
        rules: Rule sets by the bit mask of inputs that need a gradient.
    """

    __slots__ = (
        "attributes",
        "backend",
        "casts",
        "compute",
        "differentiable",
        "kernel",
        "layout",
        "one_write",
        "op",
        "results",
        "rules",
        "run",
        "scratch",
        "simple",
        "specs",
        "xp",
    )

    def __init__(self, op: Op, specs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self.op = op
        self.specs = specs
        self.attributes = attributes
        self.rules: dict[int, RuleSet] = {}
        where = _common_device(op, specs)
        be = self.backend = backend(where)
        names = op.names_of(len(specs))
        for k, (n, s) in enumerate(zip(names, specs, strict=True)):
            if n in op.tensors and not isinstance(s, Spec):
                raise TypeError(
                    f"{op.shown}(): argument '{n}' (position {k + 1}) must be Tensor, not {s.name}."
                    " Wrap it in lowtide.tensor()."
                )
        common = _promoted(op, names, specs)
        seen = tuple(
            s if c is None else Spec(s.shape, c, where) for s, c in zip(specs, common, strict=True)
        )
        seen = tuple(None if s is NONE else s for s in seen)
        inferred = () if op.infer is None else op.infer(*seen, **attributes)
        if isinstance(inferred, Spec):
            inferred = (inferred,)
        inferred = tuple(s.on(where) for s in inferred)
        count = len(op.returns) + len(op.aux)
        self.results = inferred[:count]
        direct = op.half_kernel_for(seen, attributes) if be.kernel_key == "cpu" else None
        up = op.half == "float32" and direct is None
        self.scratch = tuple(
            s.like(dtype=float32) if up and s.dtype.is_half else s for s in inferred[count:]
        )
        casts = [_kernel_spec(s, c, up) for s, c in zip(specs, common, strict=True)]
        self.casts = tuple(casts) if any(casts) else None
        compute = [r.like(dtype=float32) if up and r.dtype.is_half else None for r in self.results]
        self.compute = tuple(compute) if any(compute) else None
        kernel_sees = tuple(
            c or (None if s is NONE else s) for c, s in zip(casts, seen, strict=True)
        )
        kernel, self.layout = op.kernel_for(be.kernel_key, kernel_sees, attributes)
        if direct is not None:
            kernel, self.layout, self.scratch = direct
        elif op.lean:  # meta foretells what the CPU takes
            key = "cpu" if where.type == "meta" else be.kernel_key
            if op.kernel_for(key, kernel_sees, attributes)[0] in op.lean:
                self.scratch = tuple(s.like((0,)) for s in self.scratch)
        converts = self.casts is not None or self.compute is not None
        if op.elementwise and converts and be.kernel_key == "cpu" and worth_pieces(self.results):
            made = None if self.compute is None else self.compute[0]
            kernel, self.scratch = in_pieces(
                kernel,
                self.results,
                self.casts or (None,) * len(specs),
                made,
                self.scratch,
                op.name,
                op.elementwise == "tiles",
            )
            if all(casts[k] for k, s in enumerate(specs) if isinstance(s, Spec)):
                self.layout = None  # what is converted lies as it should
            self.casts = self.compute = None
        elif op.elementwise is True and where.type == "cpu" and kernel is op.plain:
            kernel = in_parts(kernel, self.results[0].shape, self.layout is not None)
        kernel = on_device(be, kernel)
        self.kernel, self.xp = kernel, be.xp
        self.one_write = op.one_write and kernel is op.plain
        self.run = None if be.xp is None else partial(kernel, be.xp, **attributes)
        self.simple = len(self.results) == 1 and not (
            self.scratch or self.casts or self.compute or self.layout or op.adopt
        )
        self.differentiable = bool(op.rules) and (
            op.infer is None or any(r.dtype.is_differentiable for r in self.results)
        )

    def rule_set(self, mask: int) -> RuleSet:
        """The rules for the inputs in ``mask``."""
        found = self.rules.get(mask)
        if found is None:
            found = self.rules[mask] = RuleSet(
                self.op, self.specs, self.attributes, self.results, mask
            )
        return found


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
                    f"{op.shown} needs all tensors on one device (Expected all tensors to be on "
                    f"the same device); got {listed}. Move one with .to()."
                )
    if found is None:
        raise TypeError(
            f"{op.shown}: at least one input must be a Tensor; got only scalars. Wrap one in "
            "lowtide.tensor()."
        )
    return found


def _promoted(op: Op, names: Any, specs: tuple[Any, ...]) -> list[dtype | None]:
    """The common dtype of each input that takes part in promotion; None for the others."""
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
                f"{op.shown}: expected its inputs to have the same dtype; got {listed}. "
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
    if up and wanted.is_half:
        wanted = float32
    return None if wanted is spec.dtype else spec.like(dtype=wanted)
