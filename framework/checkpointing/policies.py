"""Checkpoint policies: which values of a region are saved, recomputed or stashed.

A policy is a function of a :class:`Value` (op, name, shape, dtype, bytes, module, number) that
returns a decision:

- ``"recompute"``: free it, and recompute it in backward;
- ``"save"``: keep it, if backward wants it;
- ``"prefer_save"``: as the policy of the region around says; kept if there is none;
- a stash, such as ``pack()``, ``offload()`` or ``offload_to_disk(dir)``: keep it in that form.

:func:`policy` makes one of rules. What is kept costs only where backward wants it, or makes
something from it: any other value is let go under every policy. A stash takes what backward wants.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..autograd.remat.recorder import PREFER_SAVE, RECOMPUTE, SAVE, Value
from ..autograd.remat.replay import asks_for_modules
from ..memory.sizes import unit_of
from ..ops.registry import OPS
from .offload import offload
from .packing import pack

Decision = Any  # a string, a stash, or a policy that is asked in turn
Test = Callable[[Value], bool]

PRODUCTS = frozenset({"matmul", "addmatmul", "linear"})
# Beside these, what is made of products inside. Attention's result and its row statistics come
# from one op, recurrent layers' gates and cells too: keeping one needs all. A transposed
# convolution is the gradient of a convolution.
HEAVY = PRODUCTS | {
    "attention",
    "cdist",
    "conv",
    "conv_input_grad",
    "conv_weight_grad",
    "gru",
    "linear_cross_entropy",
    "lstm",
    "rnn",
    "trilinear",
}
# Results beside the first, of bends, pools and norms: bits, places and statistics.
SMALL = frozenset({"above", "apart", "bitmask", "index", "mean", "rstd"})
ROW_NORMS = frozenset({"layer_norm", "rms_norm"})  # their results are wanted anyway, by products
# Public functions that are one op of another name, or one of several by their arguments.
SYNONYMS = {
    "addbmm": "addmatmul", "addmm": "addmatmul", "addmv": "addmatmul", "baddbmm": "addmatmul",
    "bilinear": "trilinear", "bmm": "matmul", "celu": "elu", "dot": "matmul", "inner": "matmul",
    "interpolate": "resize", "mm": "matmul", "mv": "matmul", "relu6": "hardtanh",
    "scaled_dot_product_attention": "attention", "selu": "elu", "to": "convert",
    "unfold": "columns",
    **{
        f"{function}{n}d": op
        for n in (1, 2, 3)
        for function, op in {
            "adaptive_avg_pool": "adaptive_avg_pool|avg_pool",
            "adaptive_max_pool": "adaptive_max_pool|max_pool", "avg_pool": "avg_pool",
            "conv": "conv", "conv_transpose": "conv_input_grad", "dropout": "channel_dropout",
            "max_pool": "max_pool",
        }.items()
    },
}  # fmt: skip
_COMPARE = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_NUMERIC = re.compile(r"(bytes|numel|ndim|depth|number)\s*(<=|>=|==|!=|<|>)\s*([\d.]+)\s*(\w*)")
_TEXTUAL = re.compile(r"(op|name|module|dtype):\s*(.+)")


def everything(value: Value) -> str:
    """Recompute everything; the default policy of a region."""
    return RECOMPUTE


def save_matmuls(value: Value) -> str:
    """Save results of matrix products, convolutions, attention and recurrent layers.

    No product is computed twice. Attention keeps its result and a statistic of each row. The bits
    of a ReLU, the places of a maximum and the statistics of a batch, a 16th of what they are of or
    less, are kept too: where backward asks for them alone, what leads to them is not run again.

    A product that backward asks for itself, as before a GELU or a norm, is kept, and what is made
    from it recomputed. One that only leads to such values, as before a ReLU, is not: there the
    value that backward asks for is kept in its place, as without a region.
    """
    if value.op in HEAVY:
        return SAVE
    small = value.name.rpartition(".")[2] in SMALL and value.op not in ROW_NORMS
    return SAVE if small else RECOMPUTE


def rule_repr(value: Any) -> str:
    """Format a part of a policy for ``repr``: functions by their names."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{rule_repr(k)}: {rule_repr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(rule_repr, value)) + ("," if len(value) == 1 else "") + ")"
    return getattr(value, "__name__", None) or repr(value)


class Policy:
    """Base class of policies that are objects: they print, compare and pickle.

    Attributes:
        by_module: It asks for ``value.module``: a region then follows the modules that are called.
            Where a policy does not say, a region looks for ``.module`` in its code.
        reconsiders: A value that it keeps may get a name, and then be recomputed after all.
    """

    by_module: bool
    reconsiders = False

    def __call__(self, value: Value) -> Any:
        """Decide about one value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        own = {k: v for k, v in self.__dict__.items() if k[0] != "_" and k != "by_module"}
        return f"{type(self).__name__}({', '.join(f'{k}={rule_repr(v)}' for k, v in own.items())})"

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class save_every(Policy):
    """Save every k-th value that a region computes, and recompute the others from these.

    Args:
        k: How many values from one to the next, at least 1. About the square root of the number of
            values takes the least memory in a chain of equal ones.
    """

    def __init__(self, k: int) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"save_every: k is a number of values, at least 1; got {k!r}.")
        self.k = k

    def __call__(self, value: Value) -> str:
        """Decide about one value."""
        return SAVE if value.number % self.k == self.k - 1 else RECOMPUTE


class policy(Policy):
    """A policy made of rules: the first rule that matches a value decides.

    A rule's key selects values. It is a function of a value that returns a bool, or a string of
    conditions joined by ``&``:

    - ``op:linear`` or ``op:relu|gelu``: the op, by its name or that of its function; ``op:relu``
      finds ``relu_`` too;
    - ``module:blocks.*.mlp``: inside of a module. Names match as in ``named_modules()`` of the
      outermost module called in the region, or any stretch of them: ``mlp`` is found anywhere;
    - ``name:max_pool.index``: op and result, or what ``checkpoint_name`` gave;
    - ``dtype:float32``;
    - ``bytes>=1MiB``, ``numel<100``, ``ndim==4``, ``depth>0``, ``number<10``;
    - ``*``: every value.

    ``|`` separates alternatives, and in names ``*``, ``?`` and ``[...]`` match as in file names.

    Args:
        rules: Decisions by selector: a string as above, "offload" or "pack", a stash, or another
            policy.
        default: The decision where no rule fits.

    Raises:
        ValueError: A selector or a decision is none.

    Example:
        >>> import lowtide as lt
        >>> from lowtide.checkpointing import offload, policy
        >>> mixed = policy({
        ...     "module:mlp & op:linear": "save",
        ...     "bytes>=1MiB": offload(),
        ... })
        >>> block = lt.nn.Sequential(lt.nn.Linear(8, 8), lt.nn.Tanh())
        >>> y = lt.checkpoint(block, lt.ones(2, 8), policy=mixed)
    """

    def __init__(self, rules: Mapping[Any, Decision], default: Decision = RECOMPUTE) -> None:
        self.rules = {key: decision_of(d) for key, d in rules.items()}
        self.default = decision_of(default)
        self._tests = [selector(key) for key in self.rules]
        asked = [key for key in self.rules if isinstance(key, str) and "module:" in key]
        inner = [*self.rules.values(), self.default, *self.rules]
        self.by_module = bool(asked) or any(map(asks_for_modules, inner))

    @property
    def reconsiders(self) -> bool:  # type: ignore[override]
        """True if a rule matches by name."""
        inner = [*self.rules.values(), self.default, *self.rules]
        return any(isinstance(key, str) and "name:" in key for key in self.rules) or any(
            getattr(d, "reconsiders", False) for d in inner
        )

    def __call__(self, value: Value) -> Any:
        """Decide about one value."""
        for test, decision in zip(self._tests, self.rules.values(), strict=True):
            if test(value):
                return decision if isinstance(decision, str) else decision(value)
        return self.default if isinstance(self.default, str) else self.default(value)

    def __repr__(self) -> str:
        return f"policy({rule_repr(self.rules)}, default={rule_repr(self.default)})"

    def __reduce__(self) -> Any:
        return policy, (self.rules, self.default)

    def __eq__(self, other: Any) -> bool:
        mine = (self.rules, self.default)
        return isinstance(other, policy) and mine == (other.rules, other.default)

    __hash__ = None


def decision_of(given: Any) -> Decision:
    """Validate a decision, or a policy, that a policy returned.

    Raises:
        ValueError: It is none.
    """
    if given in (SAVE, PREFER_SAVE, RECOMPUTE) or callable(given):
        return given
    if given == "offload":
        return offload()
    if given == "pack":
        return pack()
    raise ValueError(
        f"a checkpointing policy decides 'save', 'prefer_save', 'recompute', 'offload', 'pack', a "
        f"stash such as pack('bfloat16'), or what another policy says; got {given!r}."
    )


def selector(key: Any) -> Test:
    """Build a predicate for values from a rule's key.

    Raises:
        ValueError: It is no selector.
    """
    if callable(key):
        return key  # type: ignore[no-any-return]
    if not isinstance(key, str):
        raise ValueError(f"a selector is a string or a function of a value; got {key!r}.")
    tests = [_condition(part.strip(), key) for part in key.split("&")]
    return tests[0] if len(tests) == 1 else lambda value: all(test(value) for test in tests)


def _condition(text: str, key: str) -> Test:
    if text == "*":
        return lambda value: True
    found = _NUMERIC.fullmatch(text)
    unit = None if found is None else unit_of(found[4]) if found[1] == "bytes" else 1
    if found is not None and unit is not None and (found[1] == "bytes" or not found[4]):
        return _compared(found[1], _COMPARE[found[2]], float(found[3]) * unit)
    found = _TEXTUAL.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{key!r} selects no values. Write conditions like 'op:linear', 'module:blocks.*.mlp', "
            "'name:softmax.out', 'dtype:float32', 'bytes>=1MiB', 'ndim==4', joined by &."
        )
    wanted = [word.strip() for word in found[2].split("|")]
    if found[1] == "op":
        wanted = [op for word in wanted for op in ops_named(word)]
        return lambda value: any(
            fnmatchcase(value.op, word) or fnmatchcase(value.op.removesuffix("_"), word)
            for word in wanted
        )
    if found[1] == "name":
        return lambda value: any(
            fnmatchcase(name, word) for word in wanted for name in names_of(value)
        )
    if found[1] == "dtype":
        return lambda value: any(fnmatchcase(value.dtype.name, word) for word in wanted)
    return _Inside(wanted)


def ops_named(name: str) -> list[str]:
    """Return the ops that a name stands for: an op, a function, or a pattern of names.

    Raises:
        ValueError: No op has that name, so a rule for it would never be asked.
    """
    if set(name) & set("*?["):
        return [name]
    ops = SYNONYMS.get(name, name).split("|")
    known = {op.display_name for op in OPS.values()}
    if ops[0].removesuffix("_") not in known:
        near = difflib.get_close_matches(name, sorted(known | set(SYNONYMS)))
        raise ValueError(
            f"no op is called {name!r}. "
            + (f"Did you mean {' or '.join(map(repr, near))}? " if near else "")
            + "A function that is made of several ops has no name here: select its module, or "
            "give its result one by checkpoint_name. A policy that prints value.op shows them all."
        )
    return ops


def _compared(what: str, test: Any, bound: float) -> Test:
    if what == "bytes":
        return lambda value: test(value.nbytes, bound)
    if what == "numel":
        return lambda value: test(value.spec.numel, bound)
    if what == "ndim":
        return lambda value: test(value.spec.ndim, bound)
    return lambda value: test(getattr(value, what), bound)


class _Inside:
    # True for values of modules whose path has a stretch that one of the patterns matches.
    def __init__(self, patterns: list[str]) -> None:
        self.patterns = [p.split(".") for p in patterns]
        self.known: dict[str, bool] = {}

    def __call__(self, value: Value) -> bool:
        path = value.module
        found = self.known.get(path)
        if found is None:
            found = self.known[path] = self._matches(path.split("."))
        return found

    def _matches(self, path: list[str]) -> bool:
        return any(
            all(map(fnmatchcase, path[start:], pattern))
            for pattern in self.patterns
            for start in range(len(path) - len(pattern) + 1)
        )


def names_of(value: Value) -> list[str]:
    """Return the names that match a value: its given name, its op and result, its op."""
    given = getattr(value, "given", None)
    return [value.name, value.op] if given is None else [given, value.name, value.op]


__all__ = [
    "Policy",
    "decision_of",
    "everything",
    "ops_named",
    "policy",
    "save_every",
    "save_matmuls",
]
