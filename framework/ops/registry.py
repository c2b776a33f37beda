"""Declaring an op: one decorator yields the function, method, operator, gradient and meta run.

    @op(operator="__mul__", infer=broadcast, flops=per_element(1), samples=pairs)
    def mul(xp, out, input, other):
        '''Multiply elementwise.'''
        xp.multiply(input, other, out=out)

    @mul.vjp("input")
    def _(g, other):
        return g * other

The parameters of the kernel are, in this order: ``xp`` (the device's array module); one array per
result, ``aux`` value and ``scratch`` buffer; one raw array, Python scalar or None per input; and,
keyword only, the attributes. A kernel fills its results, returns nothing, allocates nothing,
leaves its inputs alone. An elementwise op can be a formula in place of a kernel
(``kernels/formula``). ``docs/add_an_op.md`` is the long form of this page.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import execution
from ..dtypes import bool_
from ..kernels.common.elementwise import give_loops, vectorized
from ..kernels.formula.formula import Formula
from ..spec import Spec
from ..tensor import Tensor, install_method, named
from .autocast_policy import casts
from .functions import hide_old, in_place_twin, make_functions, other_names, with_short_traceback
from .kernel_choice import DEVICES, DTYPES, Kernel
from .rules import Rule
from .signatures import broadcast, broadcast_bool, refusing_complex

OPS: dict[str, Op] = {}  # every primitive, by name
FUNCTIONS: dict[str, Any] = {}  # every public function of ops, by name: primitives and compositions

_CHOICES: dict[str, tuple[Any, ...]] = {  # of the decorator's arguments
    "promote": (None, "same", "arith", "float", "number"),
    "half": (None, "float32", "tiles", "exact"),
    "autocast": (None, "low", "float32", "promote", "refuse"),
}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Op:
    """A declared op. Made by :func:`op`; the fields are that decorator's arguments.

    Attributes:
        name: Name of the function.
        display_name: The same for messages, without the underscore of a private op.
        inputs: Names of the tensor inputs (a scalar or None may stand for one).
        attributes: Names of the attributes, with their defaults (``inspect.Parameter.empty``).
        returns: Names of the visible results; ``("out",)`` for most.
        aux: Names of the results that only gradient rules see.
        scratch: Names of the buffers given back when the kernel ends.
        variadic: Name of the input that takes any number of tensors (``*tensors``), or None.
        formula: The formula that its kernels are printed from, or None.
        kernels: Those beside the plain one, in the order in which they are tried.
        rules: The gradient rules.
        plans: What is known for each (specs, attributes) met so far.
        function: The public function.
    """

    def __init__(self, kernel: Callable[..., Any], options: dict[str, Any]) -> None:
        self.formula = kernel if isinstance(kernel, Formula) else None
        if self.formula is not None:
            kernel = self.formula.plain
            self.formula.over_input = bool(options["inplace"])
            options = options | {"elementwise": True}
        self.plain = kernel
        self.name: str = options["name"] or kernel.__name__
        for argument, choices in _CHOICES.items():
            _check_choice(self.name, argument, options[argument], choices)
        self.display_name = self.name.strip("_")  # in messages: what the user called
        self.infer = options["infer"]
        if self.infer in (broadcast, broadcast_bool):  # their errors name the op
            self.infer = partial(self.infer, op_name=self.display_name)
        self.returns: tuple[str, ...] = options["returns"]
        self.aux: tuple[str, ...] = options["aux"]
        self.scratch: tuple[str, ...] = options["scratch"]
        self.view: bool = options["view"]
        self.adopt: bool = options["adopt"]
        self.inplace: str | None = options["inplace"]
        self.promote = options["promote"]
        self.half: str = options["half"] or ("exact" if self.view else "float32")
        self.autocast: Any = options["autocast"]
        self.tensors: tuple[str, ...] = options["tensors"]
        self.layout = options["layout"]
        self.flops = options["flops"]
        self.samples = options["samples"]
        self.elementwise: bool | str = options["elementwise"]
        self.one_write: bool = options["one_write"]
        self.old: tuple[str, ...] = options["old"]
        if options["real"]:
            self.infer = refusing_complex(self.name.strip("_"), self.infer)
        self.doc = inspect.getdoc(kernel) or ""
        self.kernels: list[Kernel] = []
        self.rules: list[Rule] = []
        self.composition: Any = None
        self.plans: dict[Any, Any] = {}
        self.function: Any = None
        self._read_signature(kernel)

    def _read_signature(self, kernel: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(kernel).parameters.values())
        leading = ["xp"]
        if not (self.view or self.adopt):
            leading += [*self.returns, *self.aux, *self.scratch]
        got = [p.name for p in parameters[: len(leading)]]
        if got != leading:
            raise TypeError(
                f"{self.name}: the kernel's first parameters must be {leading}; got {got}."
            )
        rest = parameters[len(leading) :]
        self.variadic: str | None = None
        self.inputs: tuple[str, ...] = tuple(p.name for p in rest if p.kind in _POSITIONAL)
        self.input_defaults = {p.name: p.default for p in rest if p.kind in _POSITIONAL}
        for p in rest:
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                self.variadic = p.name
                self.inputs = (*self.inputs, p.name)
        self.attributes: dict[str, Any] = {
            p.name: p.default for p in rest if p.kind is inspect.Parameter.KEYWORD_ONLY
        }
        if "out" in (*self.inputs, *self.attributes):
            raise TypeError(
                f"{self.name}: an input or attribute may not be named out, which is the argument "
                "that takes the result. Call it result."
            )

    def _check_parameters(self, function: Any, scratch: tuple[str, ...]) -> None:
        # By the code object: a signature takes ten times as long, and there are 200 at import.
        code = function.__code__
        taken = 1 if self.view or self.adopt else 1 + len(self.returns + self.aux + scratch)
        taken += len(self.inputs) - (self.variadic is not None)
        named = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        if not code.co_flags & inspect.CO_VARARGS and code.co_argcount != taken:
            problem = f"{code.co_argcount} positional ones instead of {taken}"
        elif not code.co_flags & inspect.CO_VARKEYWORDS and {*named} != {*self.attributes}:
            problem = f"{sorted(named)} by keyword instead of {sorted(self.attributes)}"
        else:
            return
        raise TypeError(
            f"{self.name}: a further kernel takes the parameters of the plain one, "
            f"{inspect.signature(self.plain)}, without the buffers if scratch=False; this one has "
            f"{problem}."
        )

    def workspace_names(self) -> tuple[str, ...]:
        """Return a name for each buffer of :meth:`workspace`."""
        if self.formula is not None:
            buffers = self.formula.scratch(Spec((), bool_), {})
            return tuple(f"buffer_{k}" for k in range(len(buffers)))
        return self.scratch

    def workspace(self, found: Spec | tuple[Spec, ...]) -> tuple[Spec, ...]:
        """Return the specs of the plain kernel's scratch buffers.

        Args:
            found: What ``infer`` gave. A formula tells its buffers itself; where they depend on
                attributes, ask it (``formula.scratch``).
        """
        found = (found,) if isinstance(found, Spec) else found
        if self.formula is not None:
            return self.formula.scratch(found[0], {})
        return found[len(self.returns) + len(self.aux) :]

    def names_of(self, count: int) -> tuple[str, ...]:
        """The input's name for each of ``count`` positions of a call."""
        if self.variadic is None:
            return self.inputs[:count]
        fixed = self.inputs[:-1]
        return (*fixed, *[self.variadic] * (count - len(fixed)))

    # Decorators on the public function

    def vjp(self, *inputs: str, room: tuple[str, ...] = ()) -> Callable[[Any], Any]:
        """Declare the gradient rule of one input, or of several together (it returns a tuple).

        Args:
            *inputs: Their names.
            room: Names of values over which the rule may write its result, the best first. It
                names ``room``, which is one of them or None (``overwrite.write_over``).
        """

        def declare(function: Any) -> Any:
            self.rules.append(Rule(self, inputs, function, room))
            return function

        return declare

    def kernel(self, device: str, **options: Any) -> Callable[[Any], Any]:
        """Declare a further kernel of the same signature for one device; the first that fits runs.

        Those that take halves as they are come before all others.

        Args:
            device: "cpu" or "cuda".
            **options: ``when``, ``layout``, ``layouts``, ``scratch``, ``dtypes`` and ``overwrites``
                of :class:`~lowtide.framework.ops.kernel_choice.Kernel`.
        """
        _check_choice(self.name, "device", device, DEVICES)
        _check_choice(self.name, "dtypes", options.get("dtypes", "own"), DTYPES)

        def declare(function: Any) -> Any:
            made = Kernel(function, device, **options)
            if not callable(made.scratch) and made.dtypes != "mixed":
                self._check_parameters(function, self.scratch if made.scratch else ())
            halves = sum(k.dtypes == "half" for k in self.kernels)
            self.kernels.insert(halves if made.dtypes == "half" else len(self.kernels), made)
            return function

        return declare

    def loop(
        self, *, when: Callable[..., bool] = vectorized, fused: bool = True
    ) -> Callable[[Any], Any]:
        """Declare the formula of compiled loops for an op whose plain kernel is a call of NumPy's.

        Args:
            when: Called with the specs and attributes: whether a call is worth such a loop.
            fused: A product and a sum may round once.
        """

        def declare(function: Any) -> Any:
            made = Formula(function, self.name, fused, when)
            give_loops(self.function, made.loop_of, when=when, of_halves=made.half_loop_of)
            return made

        return declare

    def composite(self, function: Any) -> Any:
        """Declare the plain composition: oracle in tests, path of double backward."""
        self.composition = function
        return function

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def _check_choice(name: str, argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    given = value[0] if argument == "promote" and isinstance(value, tuple) else value
    if any(x not in choices for x in (given.values() if isinstance(given, dict) else [given])):
        raise ValueError(f"{name}: {argument} is one of {choices}; got {value!r}.")


def op(
    *,
    infer: Any = None,
    name: str | None = None,
    method: str | bool | None = None,
    operator: str | None = None,
    inplace: str | None = None,
    returns: tuple[str, ...] = ("out",),
    aux: tuple[str, ...] = (),
    scratch: tuple[str, ...] = (),
    view: bool = False,
    adopt: bool = False,
    promote: Any = None,
    half: str | None = None,
    autocast: Any = None,
    layout: Any = None,
    out: bool = True,
    public: bool | None = None,
    flops: Any = None,
    samples: Any = None,
    real: bool = False,
    tensors: tuple[str, ...] = (),
    elementwise: bool | str = False,
    one_write: bool = False,
    old: tuple[str, ...] = (),
) -> Callable[[Any], Any]:
    """Declare an op from its kernel.

    Args:
        infer: Maps the inputs' specs and the attributes to the spec of the result, or to a tuple
            (results, aux, scratch). Words the user's errors. None with ``adopt`` if the shape
            depends on values.
        name: The op's name, if not the kernel's. A leading underscore makes the op private.
        method: Also a Tensor method: True for the same name, or a name, or False. By default a
            public op is one.
        operator: Also an operator: ``"__mul__"`` installs ``__rmul__`` and ``__imul__`` along.
        inplace: Name of the in-place twin, for kernels that read each element before writing it.
        returns: Names of the visible results.
        aux: Names of results that only gradient rules see.
        scratch: Names of buffers that end with the kernel.
        view: The kernel ``(xp, input, *, attributes)`` returns a view; nothing is allocated.
        adopt: The kernel ``(xp, *inputs, attributes)`` returns new arrays, which the ledger
            counts at once.
        promote: None: inputs are taken as they are. ``"same"``: their dtypes must be equal.
            ``"arith"``: to their common type, as PyTorch does. ``"float"``: the same, integers
            to the default float. ``"number"``: as ``"arith"``, but bool is refused. A tuple
            (rule, names) restricts it to some inputs.
        half: What float16 and bfloat16 mean to the kernel: ``"float32"`` (it computes in float32
            and rounds once; the dispatcher converts), ``"tiles"`` (the same, and it converts a
            tile at a time by itself) or ``"exact"`` (it moves or compares values). ``"float32"``
            is the default, of views ``"exact"``.
        autocast: What an autocast region makes of its float inputs: ``"low"``, ``"float32"``,
            ``"promote"``, or a dict of these by device type (``framework/amp/autocast.py``).
        layout: Predicate on input arrays; those that fail are copied to workspace first.
        out: The function takes ``out=``.
        public: The function is part of ``lowtide``; the default, unless the op is private.
        flops: Called with the specs and attributes; the number of operations.
        samples: Yields (inputs, attributes) for the generated tests, given ``make``.
        real: Complex inputs are refused: what it asks of numbers, only real ones have.
        tensors: Inputs for which a number may not stand, as in PyTorch.
        elementwise: What the plain kernel writes at a place depends on that place of the inputs
            alone (they broadcast), and it never fails halfway: on the CPU, large calls run in
            chunks on several threads (``kernels/common/schedule.py``). Scratch looks like the
            result. ``"bitmask"``: so for 4096 elements in C order and the bytes with their bits
            (``ops/elementwise/bitmask.py``).
        one_write: The plain kernel writes its result by one call of C code, after all else: an
            interrupt finds it written or not. In-place calls of other kernels hold Ctrl-C back,
            which costs a microsecond.
        old: Attributes that PyTorch's old calls have by position (``ops/old_calls.py``).

    Returns:
        A decorator; it returns the public function, which has the decorators ``vjp``, ``kernel``,
        ``loop`` and ``composite``.
    """
    options = {k: v for k, v in locals().items() if k not in ("method", "operator", "public")}

    def declare(kernel: Any) -> Any:
        declared = Op(kernel, options)
        if declared.name in OPS:
            raise TypeError(f"an op named {declared.name} is declared twice.")
        OPS[declared.name] = declared
        function, in_place = make_functions(declared, allow_out=out and not view)
        declared.function = function
        function.op, function.vjp = declared, declared.vjp
        function.kernel, function.composite = declared.kernel, declared.composite
        function.loop = declared.loop
        if declared.formula is not None:
            made = declared.formula
            by_channel = made.channel_loop_of if made.channels else None
            give_loops(
                function,
                made.loop_of,
                when=made.when,
                by_channel=by_channel,
                of_halves=made.half_loop_of,
            )
        shown = not declared.name.startswith("_") if public is None else public
        if shown:
            _publish(declared.name, function)
        as_method = shown if method is None else method
        _install(declared.name, function, as_method, operator, inplace, in_place)
        return function

    return declare


@execution.when_installed
def _run_by(executor: execution.Executor) -> None:
    for op in OPS.values():
        for plan in op.plans.values():
            executor.plan_made(plan)


def _install(
    name: str, function: Any, method: Any, operator: str | None, inplace: Any, in_place: Any
) -> None:
    """Make a function a method of Tensor, and an operator."""
    if method:
        install_method(name if method is True else method, function)
    if inplace:
        install_method(inplace, in_place)
        if not inplace.startswith("_"):
            _publish(inplace, in_place)
    if operator:
        install_method(operator, function)
        plain = operator.strip("_")
        if plain not in ("neg", "abs", "pos"):
            install_method(f"__r{plain}__", _reflected(function))
            if inplace:
                install_method(f"__i{plain}__", in_place)


def _publish(name: str, value: Any) -> None:
    if name in FUNCTIONS:
        raise TypeError(f"a function named {name} is declared twice.")
    named(value, name)
    FUNCTIONS[name] = value


def _reflected(function: Any) -> Any:
    def reflected(self: Any, other: Any) -> Any:
        if not isinstance(self, Tensor):
            raise TypeError(f"a reflected operator is a Tensor's; got {type(self).__name__}.")
        return function(other, self)

    return reflected


def function(
    *,
    method: str | bool = False,
    property: bool = False,
    operator: str | None = None,
    inplace: str | None = None,
    public: bool | None = None,
    samples: Any = None,
    autocast: Any = None,
    deep: bool = False,
    names: dict[str, str] | None = None,
    out: bool = False,
) -> Callable[[Any], Any]:
    """Declare a composition: a public function made of ops, with the same extras as an op.

    Args:
        method: Also a Tensor method: True for the same name, or a name.
        property: Also an attribute of Tensor: ``x.real`` for ``real(x)``.
        operator: Also an operator.
        inplace: Name of an in-place twin, which computes the result and copies it in.
        public: It is part of ``lowtide``; the default, unless its name begins with an underscore.
        samples: Yields (inputs, attributes) for the generated tests, given ``make``.
        autocast: As of an op; the ops inside then run without it.
        deep: More functions lie between it and its ops than an out-of-memory error should show: the
            error's traceback is cut here too, at the cost of one more frame a call.
        names: Further names of parameters, with the parameter's own: those that other overloads of
            PyTorch's function have, such as ``split_size`` for ``split_size_or_sections``.
        out: It also takes ``out=``: its result, or each of several, is written there.
    """

    def declare(f: Any) -> Any:
        if autocast is not None:
            f = casts(autocast)(f)
        if deep:
            f = with_short_traceback(f)
        hide_old(f)
        f = other_names(f, names or {}, out)
        if public or (public is None and not f.__name__.startswith("_")):
            _publish(f.__name__, f)
        f.samples = samples
        in_place = in_place_twin(f, inplace) if inplace else None
        _install(f.__name__, f, method, operator, inplace, in_place)
        if property:
            install_method(f.__name__, builtins.property(f))
        return f

    return declare


def alias(name: str, of: Any) -> None:
    """Give a public function, its method and its in-place twin a further name."""
    _publish(name, of)
    install_method(name, of)
    in_place = Tensor.__dict__.get(f"{of.__name__}_")
    if in_place is not None:
        install_method(f"{name}_", in_place)
        _publish(f"{name}_", in_place)


def public(cls: type) -> type:
    """Make a class part of ``lowtide``; a decorator. Functions are, by their own declarations."""
    _publish(cls.__name__, cls)
    return cls
