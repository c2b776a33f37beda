"""What if: a step with a part of it under ``no_grad``, detached, checkpointed, or narrower.

:func:`compare` estimates the step twice (``prediction.py``), as it is and with the change made in
the forked copy, by the means a user would have: ``forward`` of a module is wrapped, a parameter's
``requires_grad`` taken away, a module converted. So the difference is the real one, to the byte.

A change that touches nothing is an error: a parent that reads a child's parameters itself, as
attention does with its output projection, never calls the child.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..framework import scopes
from ..framework.autograd.hooks import register_post_accumulate_hook
from ..framework.autograd.modes import no_grad as no_grad_mode
from ..framework.checkpointing.regions import checkpointing
from ..framework.dtypes import dtype as dtype_class
from ..framework.memory.ledger import format_bytes
from ..framework.tensor import Tensor
from .apart import run_apart
from .prediction import Estimate, imagined
from .tables import Table


@dataclass
class Comparison:
    """A step as it is, and with a change.

    Attributes:
        change: What was changed, in words.
        before: The :class:`~lowtide.profiling.Estimate` of the step as it is.
        after: That of the changed step.
        lost: Names of the parameters that receive a gradient before and none after.
        trained: How many parameters receive one after.
    """

    change: str
    before: Estimate
    after: Estimate
    lost: list[str]
    trained: int

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak is; negative if it is higher."""
        return self.before.peak(self.device).nbytes - self.after.peak(self.device).nbytes

    @property
    def device(self) -> str:
        """The device that questions mean: the fullest before the change."""
        return self.before.device

    @property
    def flops_added(self) -> int:
        """Operations that the change adds to the step; negative if it removes some."""
        return self.after.flops - self.before.flops

    def saved(self, by: str | Sequence[str] = "module", depth: int | None = None) -> Table:
        """Bytes that the peak loses by the change, by owner; negative where it gains some.

        Args:
            by: ``role``, ``module``, ``op``, ``line`` or ``phase``, or several of them.
            depth: How many segments of module paths to show.
        """
        return self.before.diff(self.after, by, depth, self.device)

    def __str__(self) -> str:
        before, after = (e.peak(self.device).nbytes for e in (self.before, self.after))
        verb = "saves" if before >= after else "costs"
        flops = "no FLOPs more or less"
        if self.flops_added:
            verb_of = "adds" if self.flops_added > 0 else "removes"
            changed, total = abs(self.flops_added) / 1e9, self.before.flops / 1e9
            flops = f"{verb_of} {changed:.3f} of {total:.3f} GFLOP"
        saved, share = format_bytes(abs(before - after)), abs(before - after) / max(before, 1)
        lines = [
            f"{self.change} {verb} {saved} ({share:.1%}) of the peak of {self.device}: "
            f"{format_bytes(before)} before, {format_bytes(after)} after; {flops}."
        ]
        if self.lost:
            shown = ", ".join(self.lost[:8]) + (", ..." if len(self.lost) > 8 else "")
            one = len(self.lost) == 1
            what = "1 parameter loses its" if one else f"{len(self.lost)} parameters lose their"
            lines.append(f"{what} gradient: {shown}.")
        else:
            lines.append(f"All {self.trained} parameters that receive a gradient still do.")
        for by in ("role", "module", "line"):
            table = self.saved(by)
            if table.rows:
                lines += ["", f"Saved by {by}:", table.text(10, signed=True)]
        return "\n".join(lines)


def compare(
    step: Callable[..., Any],
    /,
    *args: Any,
    no_grad: Any = None,
    detach: Any = None,
    dtype: Any = None,
    checkpoint: Any = None,
    model: Any = None,
    **kwargs: Any,
) -> Comparison:
    """Predict what a change would save, without computing anything or changing the program.

    A *part* is a module, its path (``"encoder.blocks.2"``), the name of a variable of the step's
    that holds it, or a list of those. Paths are looked up in ``model``, else in the modules that
    ``step`` reaches: its arguments, closure, globals and ``self``.

    Args:
        step: As for :func:`estimate`.
        *args: What to call it with.
        no_grad: Parts whose ``forward`` runs under ``no_grad``; also names of
            ``lowtide.profiling.scope`` blocks.
        detach: Parts whose results are detached; also tensors that exist before the step, which
            then require no gradient.
        dtype: A floating dtype for all of the model, or a dict of part and dtype. The part is
            converted as by ``module.to(dtype)``; floating tensors are converted on their way in,
            and, for a part of a model, results on their way out to what came in.
        checkpoint: Parts whose activations are recomputed in backward, each a region of its own; of
            a part that nobody calls, such as a ``ModuleList``, each item is one. Or a dict of part
            and policy (``lowtide.checkpointing``), None for all.
        model: Where to look up paths; a dict of names and modules if there are several.
        **kwargs: What to call the step with, by name.

    Returns:
        A :class:`Comparison`; print it for the tables.

    Raises:
        ValueError: No change is asked for, a name means nothing, or several things; or the step
            never came by the part.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(lt.nn.Linear(64, 64), lt.nn.Tanh(), lt.nn.Linear(64, 1))
        >>> x = lt.randn(256, 64)
        >>> found = lt.profiling.compare(lambda: net(x).sum().backward(), detach="1")
        >>> found.lost
        ['0.weight', '0.bias']
    """
    if no_grad is None and detach is None and dtype is None and checkpoint is None:
        raise ValueError("compare needs a change: no_grad=, detach=, checkpoint= or dtype=.")
    roots = _roots(step, args, kwargs, model)
    changes: list[_Change] = [_NoGrad(part, roots) for part in _parts(no_grad)]
    changes += [_Detached(part, roots) for part in _parts(detach)]
    if not isinstance(checkpoint, dict):
        checkpoint = dict.fromkeys(_parts(checkpoint))
    changes += [c for part, policy in checkpoint.items() for c in _regions(part, roots, policy)]
    if dtype is not None and not isinstance(dtype, dict):
        dtype = dict.fromkeys(_only(roots, "dtype").values(), dtype)
    changes += [_Narrow(part, roots, to) for part, to in (dtype or {}).items()]
    before, reached = run_apart(lambda: _with(step, args, kwargs, roots, []))
    after, still = run_apart(lambda: _with(step, args, kwargs, roots, changes))
    words = " and ".join(dict.fromkeys(c.words for c in changes))
    lost = [name for name in reached if name not in set(still)]
    return Comparison(words, before, after, lost, len(still))


def _with(
    step: Callable[..., Any], args: Any, kwargs: Any, roots: _Models, changes: list[_Change]
) -> tuple[Estimate, list[str]]:
    # In the copy: the estimate of the changed step, and the parameters that got a gradient.
    reached: set[str] = set()
    names = dict(_parameters(roots))

    def prepare() -> None:
        for name, p in names.items():
            if p.requires_grad and p._node is None:
                register_post_accumulate_hook(p, lambda _, name=name: reached.add(name))
        for change in changes:
            change.make()

    found = imagined(step, args, kwargs, prepare)
    for change in changes:
        change.check()
    return found, [name for name in names if name in reached]


# What a user may name


def _parts(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple | set) else [given]


def _is_module(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("named_modules", "forward", "parameters")
    )


class _Models(dict[str, Any]):
    """The outermost modules that a step reaches, by the names it has for them.

    Attributes:
        variables: All modules that the step could name, by name.
    """

    variables: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed


def _roots(step: Any, args: Any, kwargs: Any, model: Any) -> _Models:
    if isinstance(model, dict):
        return _Models(model)
    if model is not None:
        return _Models(model=model)
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in _reached(step, args, kwargs, set()):
        if _is_module(value) and id(value) not in seen:
            seen.add(id(value))
            found[name if name not in found else f"{name}#{len(found)}"] = value
    inner = {id(m) for root in found.values() for n, m in root.named_modules() if n}
    roots = _Models({name: root for name, root in found.items() if id(root) not in inner})
    around = getattr(step, "__globals__", {})
    inside = {n: m for n, m in around.items() if _is_module(m) and id(m) in inner}
    roots.variables = {**inside, **found}
    return roots


def _reached(f: Any, args: Any, kwargs: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    yield from ((f"args[{k}]", a) for k, a in enumerate(args))
    yield from kwargs.items()
    if isinstance(f, functools.partial):
        yield from _reached(f.func, f.args, f.keywords, seen)
        return
    if id(f) in seen:
        return
    seen.add(id(f))
    owner = getattr(f, "__self__", None)
    if owner is not None:
        yield "self", owner
        yield from getattr(owner, "__dict__", {}).items()
    f = inspect.unwrap(getattr(f, "__func__", f))
    code = getattr(f, "__code__", None)
    if code is None:
        if _is_module(f):
            yield type(f).__name__, f
        return
    cells = inspect.getclosurevars(f)
    values = {**cells.globals, **cells.nonlocals}
    for inner in _codes(code):
        values.update({n: f.__globals__[n] for n in inner.co_names if n in f.__globals__})
    for name, value in values.items():
        yield name, value
        if inspect.isfunction(value) and not value.__module__.startswith("lowtide."):
            yield from _reached(value, (), {}, seen)


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _codes(inner)


def _only(roots: _Models, argument: str) -> dict[str, Any]:
    if len(roots) != 1:
        have = ", ".join(roots) or "none"
        raise ValueError(
            f"compare({argument}=...) needs to know the model; the step reaches: {have}. Pass "
            "model=, or name the part."
        )
    return roots


def _parameters(roots: _Models) -> Iterator[tuple[str, Any]]:
    for name, root in roots.items():
        for path, p in root.named_parameters():
            yield (path if len(roots) == 1 else f"{name}.{path}"), p


def _module(part: Any, roots: _Models) -> tuple[str, Any]:
    """(path, the module that a part means); None for a name that is no module's.

    Raises:
        ValueError: It means several.
        TypeError: It is no name and no module.
    """
    if _is_module(part):
        names = [n for root in roots.values() for n, m in root.named_modules() if m is part]
        names += [n for n, root in roots.items() if root is part]
        return next((n for n in names if n), type(part).__name__), part
    if not isinstance(part, str):
        raise TypeError(
            f"compare: a part is a module, its path or a tensor; got {type(part).__name__}."
        )
    found: dict[int, Any] = {}
    for name, root in roots.items():
        for path, m in root.named_modules():
            if part in ({name, f"{name}.{path}", path} if path else {name}):
                found[id(m)] = m
    if not found:
        name, _, rest = part.partition(".")
        inside = dict(roots.variables[name].named_modules()) if name in roots.variables else {}
        if rest in inside:
            found[id(inside[rest])] = inside[rest]
    if len(found) > 1:
        raise ValueError(
            f"compare: {part!r} is a module of {len(found)} models ({', '.join(roots)}). Put the "
            "model's name before it, or pass model=."
        )
    return part, next(iter(found.values()), None)


def _need(part: Any, module: Any, roots: _Models) -> Any:
    if module is None:
        have = [f"{n}: {', '.join(p for p, _ in m.named_modules() if p)}" for n, m in roots.items()]
        raise ValueError(
            f"compare: the step reaches no module {part!r}. It reaches {'; '.join(have) or 'none'}."
            " Pass the module itself, or model=."
        )
    return module


# Changes, made in the copy


class _Change:
    """A change to the program: wraps ``forward`` of a module, if nothing else.

    Attributes:
        words: What it is, for a title.
    """

    words: str
    module: Any = None
    met = False

    def make(self) -> None:
        """Change the program."""
        inner = self.module.forward

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.met = True
            return self.around(inner, args, kwargs)

        object.__setattr__(self.module, "forward", forward)

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` with the change."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse a change that the step never came by."""
        if not self.met:
            raise ValueError(
                f"compare: {self.words}: the step never called it. A parent that reads a child's "
                "parameters itself does not call it: name the parent."
            )


class _NoGrad(_Change):
    def __init__(self, part: Any, roots: _Models) -> None:
        self.name, self.module = _module(part, roots)
        self.words = f"no_grad in {self.name}"

    def make(self) -> None:
        if self.module is not None:
            super().make()
            return
        enter, leave, change = scopes.scope.__enter__, scopes.scope.__exit__, self
        open_modes: dict[int, list[Any]] = {}

        def entered(self: Any) -> Any:
            result = enter(self)
            mode = None
            top = scopes.current()
            if change.name in (self.name, top.path if top is not None else None):
                change.met = True
                mode = no_grad_mode()
                mode.__enter__()
            open_modes.setdefault(id(self), []).append(mode)
            return result

        def left(self: Any, *exc: object) -> None:
            mode = open_modes[id(self)].pop()
            if mode is not None:
                mode.__exit__(*exc)
            leave(self, *exc)

        scopes.scope.__enter__ = entered  # type: ignore[method-assign]
        scopes.scope.__exit__ = left  # type: ignore[method-assign]

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        with no_grad_mode():
            return forward(*args, **kwargs)

    def check(self) -> None:
        if not self.met and self.module is None:
            raise ValueError(
                f"compare: {self.words}: the step has no module and no scope of that name."
            )
        super().check()


class _Detached(_Change):
    def __init__(self, part: Any, roots: _Models) -> None:
        if isinstance(part, Tensor) and not _is_module(part):
            self.tensor: Any = part
            names = [n for n, p in _parameters(roots) if p is part]
            self.name = names[0] if names else f"a tensor of shape {tuple(part.shape)}"
        else:
            self.tensor = None
            self.name, module = _module(part, roots)
            self.module = _need(part, module, roots)
        self.words = f"detach of {self.name}"

    def make(self) -> None:
        if self.tensor is None:
            super().make()
            return
        self.met = True
        self.tensor._node = None
        self.tensor._requires_grad = False

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        return _mapped(forward(*args, **kwargs), lambda t: t.detach())


class _Checkpointed(_Change):
    def __init__(self, part: Any, roots: _Models, policy: Any = None) -> None:
        self.name, module = _module(part, roots)
        self.module = _need(part, module, roots)
        self.policy = policy
        self.words = f"checkpoint of {self.name}"

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        with checkpointing(self.policy):
            return forward(*args, **kwargs)


def _regions(part: Any, roots: _Models, policy: Any) -> list[_Checkpointed]:
    # One for a part that is called, one for each item of a list of modules.
    name, module = _module(part, roots)
    found = [_Checkpointed(m, roots, policy) for m in called(_need(part, module, roots))]
    for change in found:
        change.words = f"checkpoint of {'each of ' if len(found) > 1 else ''}{name}"
    return found


def called(module: Any) -> list[Any]:
    """The module itself; for one without a ``forward``, such as a list of modules, its items."""
    if type(module).forward.__qualname__ != "Module.forward":
        return [module]
    return [m for child in module.children() for m in called(child)]


class _Narrow(_Change):
    def __init__(self, part: Any, roots: _Models, to: Any) -> None:
        if not isinstance(to, dtype_class) or not to.is_floating_point:
            raise TypeError(f"compare(dtype=...) takes a floating dtype; got {to!r}.")
        self.name, module = _module(part, roots)
        self.module = _need(part, module, roots)
        self.whole = any(self.module is root for root in roots.values())
        self.to = to
        self.words = f"{to.name} in {self.name}"

    def make(self) -> None:
        self.module.to(self.to)
        super().make()

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        came: list[Any] = []

        def narrow(t: Any) -> Any:
            if not t.is_floating_point():
                return t
            came.append(t.dtype)
            return t.to(self.to)

        result = forward(*_mapped(args, narrow), **_mapped(kwargs, narrow))
        if self.whole or not came:
            return result
        return _mapped(result, lambda t: t.to(came[0]) if t.is_floating_point() else t)


def _mapped(tree: Any, f: Callable[[Any], Any]) -> Any:
    # The same tuples, lists and dicts with f of each tensor.
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[_mapped(t, f) for t in tree])
    if isinstance(tree, list | tuple):
        return type(tree)([_mapped(t, f) for t in tree])
    if isinstance(tree, dict):
        return type(tree)({k: _mapped(v, f) for k, v in tree.items()})
    return tree
