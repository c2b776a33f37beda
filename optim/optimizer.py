"""Optimizer base class: parameter groups, lazy state, hooks, and one update per parameter.

A step is complete or has no effect. What can fail or takes memory (the closure, state, workspace,
checks) is done for all parameters first, by :meth:`Optimizer.prepare`; then come writes that cannot
fail, while Ctrl-C waits. A subclass defines ``prepare``, or, without that promise,
:meth:`Optimizer.update`, which changes one parameter in place; an optimizer that sees all
parameters at once, and one written for PyTorch, overrides ``step``. Hooks around ``step`` hold for
all: they are put around each class's ``step`` when the class is made.

Where it differs from PyTorch: state keeps the dtype it was saved with; ``load_state_dict`` copies
tensors instead of sharing them with the dict; counters are Python numbers, where PyTorch has 0-d
tensors (both load). ``foreach, fused, capturable, differentiable`` only choose an implementation
there: here they are options without effect.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any

from ..framework.attribution import scopes
from ..framework.autograd.removable_handle import RemovableHandle, add_hook
from ..framework.distributed.shards import mark, refuse_shards, shard_of
from ..framework.interrupts import defer_interrupts
from ..framework.memory.ledger import OPTIMIZER, PARAMETER, SAVED, TEMPORARY
from ..framework.memory.short_traceback import shorten
from ..framework.modes import enable_grad, local, no_grad
from ..framework.tensor import Tensor

Todo = tuple[Any, dict[str, Any]]  # a parameter with its group
_OF_GROUPS = {"params", "param_names"}  # what is no option

_everywhere: dict[str, OrderedDict[int, Any]] = {}  # hooks on the steps of all optimizers


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def _hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        self = args[0]
        capture = local.state.capture
        if capture is not None and not self.__dict__.get("_in_step"):
            return capture.live(call, self, args[1:], kwargs)
        # super().step() of a subclass, whose hooks ran; or a wrapper that is an Optimizer by its
        # class alone, whose inner one has the hooks.
        if self.__dict__.get("_in_step") or "_hooks" not in self.__dict__:
            out = step(*args, **kwargs)
            self._opt_called = True  # the schedulers ask a wrapper too
            return out
        # No call from here to the try: an interrupt comes before all of it is set, or is undone.
        state = local.state
        phase, recorder, saver = state.phase, state.recorder, state.saver
        self._in_step = True
        state.phase = "optimizer"
        if recorder is not None:  # a region around the step: what a step computes is not recomputed
            state.recorder, state.notes_results = None, state.inference
            state.saver = None if saver is recorder else saver
        try:
            for hook in (*_hooks(_everywhere, "before"), *_hooks(self._hooks, "before")):
                result = hook(self, args, kwargs)
                if result is not None:
                    if not (isinstance(result, tuple) and len(result) == 2):
                        raise RuntimeError(
                            f"{type(self).__name__}.step: a pre-hook must return None or a tuple "
                            f"of (new_args, new_kwargs), but got {result}."
                        )
                    args, kwargs = result
            if recorder is not None:
                recorder.before_step(
                    p for group in self.param_groups for p in group["params"] if p._grad is not None
                )
            out = step(*args, **kwargs)
            self._opt_called = True  # the schedulers ask
            for hook in (*_hooks(self._hooks, "after"), *_hooks(_everywhere, "after")):
                hook(self, args, kwargs)
            if scopes.listening():
                scopes.stepped(self)
            return out
        except MemoryError as error:
            shorten(error)
            raise
        finally:
            self._in_step = False
            state.phase = phase
            if recorder is not None:
                state.recorder, state.saver, state.notes_results = recorder, saver, True

    return call


def _hooks(owner: dict[str, OrderedDict[int, Any]], kind: str) -> list[Any]:
    found = owner.get(kind)
    return list(found.values()) if found else []


def register_optimizer_step_pre_hook(hook: Any) -> RemovableHandle:
    """Register ``hook(optimizer, args, kwargs)``, called before steps of all optimizers."""
    return add_hook(_everywhere, "before", hook)


def register_optimizer_step_post_hook(hook: Any) -> RemovableHandle:
    """Register ``hook(optimizer, args, kwargs)``, called after steps of all optimizers."""
    return add_hook(_everywhere, "after", hook)


SCALARS = ("step", "eta", "mu", "mu_product")  # of state; 0-d tensors in PyTorch's state dicts


class Optimizer:
    """Base class of optimizers: parameter groups, state, and :meth:`update` per parameter.

    Args:
        params: Tensors, (name, tensor) pairs, or dicts with ``params`` and separate options.
        defaults: Options of groups that do not set them.

    Attributes:
        param_groups: Dicts of ``params`` and options.
        state: Each parameter's state.
        elements: Of all parameters.
    """

    _in_backward: Any = None  # the hook of fuse_into_backward, and where its parameters are
    _places: dict[int, tuple[dict[str, Any], int]]
    _updated: set[int] | None = None  # ids of the parameters that backward updated since step()
    _opt_called: bool
    _captured_live: tuple[str, ...] = ()  # replays of compiled functions call step() anew
    reads_whole = False  # an update of some rows depends on others: no shard can be stepped alone
    _takes_sparse = False  # whether prepare() takes sparse gradients
    _prepares = False  # whether the class defines prepare(), and no update() that would replace it

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.elements = 0
        self._hooks: dict[str, OrderedDict[int, Any]] = {}
        scopes.optimizers.add(self)
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                "dicts; got a Tensor. Wrap it in a list."
            )
        if isinstance(getattr(params, "parameters", None), MethodType):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts; got a {type(params).__name__}. Pass its parameters()."
            )
        groups = list(params)
        if not groups:
            raise ValueError(
                "optimizer got an empty parameter list. Pass model.parameters(). If that is what "
                "was passed, the model registers none: layers in a plain list or dict are not "
                "seen (use nn.ModuleList, nn.ModuleDict or nn.Sequential), nor are tensors that "
                "are no nn.Parameter."
            )
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "update" in cls.__dict__ or "prepare" in cls.__dict__:
            cls._prepares = "update" not in cls.__dict__
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.step)  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own options.

        Raises:
            TypeError: It is no dict, its parameters are a set, or something in it is no tensor.
            ValueError: A tensor is no leaf, or is in another group already; some have names and
                others do not; an option without a default is missing.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}.")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the order "
                "of tensors in sets changes between runs. Use a list instead."
            )
        params = [params] if isinstance(params, Tensor) else list(params)
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names and len(names) != len(params):
            raise ValueError(
                f"all optimizer params should be with/without names; {len(params) - len(names)} "
                f"of {len(params)} have none."
            )
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            self.check_parameter(p)
        group = {**param_group, "params": params}
        if names:
            group["param_names"] = names
        for name, default in self.defaults.items():
            if default is required and name not in group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter "
                    f"{name}."
                )
            group.setdefault(name, default)
        ids = {id(p) for p in params}
        if len(ids) < len(params):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; each is stepped "
                "as often as it is listed.",
                UserWarning,
                stacklevel=3,
            )
        for other in self.param_groups:
            if ("param_names" in group) != ("param_names" in other):
                raise ValueError(
                    "all optimizer param groups should be with/without names; cannot add a group "
                    f"{'with' if names else 'without'} names to this optimizer."
                )
            if not ids.isdisjoint(id(p) for p in other["params"]):
                raise ValueError(
                    "some parameters appear in more than one parameter group. List each in one."
                )
        if self._in_backward is not None:
            self._in_backward.check(group)
            self._in_backward.take(group)
        self.elements += sum(p.numel() for p in params)
        for p in params:
            if p._storage.role in (TEMPORARY, SAVED):  # a plain tensor is one from now on
                p._storage.set_role(PARAMETER)
        self.param_groups.append(group)

    def check_parameter(self, p: Any) -> None:
        """Raise an error for what cannot be optimized; subclasses may refuse more.

        Raises:
            TypeError: It is no tensor.
            ValueError: It is no leaf.
        """
        if not isinstance(p, Tensor):
            raise TypeError(
                f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}."
            )
        if not (p.is_leaf or p.retains_grad or self.defaults.get("differentiable")):
            raise ValueError("can't optimize a non-leaf Tensor. Pass the leaf it is made from.")
        if self.reads_whole:
            refuse_shards(
                [p],
                type(self).__name__,
                "It needs all of a parameter: use DistributedDataParallel, with "
                "ZeroRedundancyOptimizer for its state.",
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters to None, or to zeros."""
        with_gradient = [
            p for group in self.param_groups for p in group["params"] if p._grad is not None
        ]
        if set_to_none:
            for p in with_gradient:
                p._grad = None
            return
        detached = [p._grad.detach() for p in with_gradient]
        with defer_interrupts():
            for p, g in zip(with_gradient, detached, strict=True):
                p._grad = g.zero_()

    @_hooked
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient; all of them, or none if it raises.

        Args:
            closure: Computes the loss again and returns it, after its own ``zero_grad``.

        Returns:
            What ``closure`` returned, or None.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if self._updated:
            self._updated.clear()
        state = local.state
        before, state.grad = state.grad, False
        try:
            if self._prepares:
                self._step_whole()
            else:
                for group in self.param_groups:
                    for p in group["params"]:
                        if p._grad is not None:
                            self.update(p, p._grad, self.state[p], group)
        finally:
            state.grad = before
        return loss

    def _step_whole(self) -> None:
        todo = [(p, g) for g in self.param_groups for p in g["params"] if p._grad is not None]
        if len({id(p) for p, _ in todo}) == len(todo):
            self._round(todo)
            return
        while todo:  # what is listed twice is stepped again, in a round of its own
            now = {id(one[0]): one for one in reversed(todo)}
            self._round([one for one in todo if now[id(one[0])] is one])
            todo = [one for one in todo if now[id(one[0])] is not one]

    def _round(self, todo: list[Todo]) -> None:
        together, rest = self._together(todo)
        states, prepare = self.state, self.prepare
        planned: list[Any] = []
        draft: dict[str, Any] = {}
        try:
            for p, group in rest:
                state = states.get(p)
                draft = {} if state is None else state.copy()
                if p._grad._spec.runs is not None and not self._takes_sparse:
                    refuse_sparse(self, p)
                planned.append((p, state, draft, prepare(p, p._grad, draft, group)))
        except BaseException:
            # Now, and not when the error's frames go: so the ledger is at once as it was.
            planned.clear()
            draft.clear()
            raise
        with defer_interrupts():
            for batch in together:
                batch.count(states)
            for p, state, draft, _ in planned:
                if state is None:
                    states[p] = draft
                else:
                    state.update(draft)
            for batch in together:
                batch.update.run()
            for _, _, _, (run, *arguments) in planned:
                run(*arguments)

    def _together(self, todo: Sequence[Todo]) -> tuple[list[Any], Sequence[Todo]]:
        # Batches of parameters that one call updates (``elementwise.Batch``), and all others.
        return [], todo

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Do what may fail or allocate for one parameter; subclasses define it.

        Nothing that existed may be written, and no gradient mode changed.

        Args:
            p: The parameter.
            g: Its gradient.
            state: A draft of the parameter's state, empty at first: a copy of the dict, which takes
                its place with the write. Tensors in it are the state's own: not to be written.
            group: Options.

        Returns:
            (function, arguments): a call that writes, and can neither fail nor take memory.
        """
        raise NotImplementedError(
            f"{type(self).__name__} defines none of prepare(p, g, state, group), "
            "update(p, g, state, group) and step(closure)."
        )

    def update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter in place, entirely or not at all; subclasses may define it."""
        draft = dict(state)
        run, *arguments = self.prepare(p, g, draft, group)
        with defer_interrupts():
            state.update(draft)
            run(*arguments)

    # Saved state

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, with parameters numbered in group order; tensors are shared."""
        for hook in _hooks(self._hooks, "before_state_dict"):
            hook(self)
        number: dict[int, int] = {}
        groups = []
        start = 0
        for group in self.param_groups:
            for k, p in enumerate(group["params"], start):
                number.setdefault(id(p), k)
            start += len(group["params"])
            options = {k: v for k, v in group.items() if k != "params"}
            groups.append({**options, "params": [number[id(p)] for p in group["params"]]})
        self._mark_shards()
        state = {
            number[id(p)] if isinstance(p, Tensor) else p: dict(s) if isinstance(s, dict) else s
            for p, s in self.state.items()
            if not isinstance(p, Tensor) or id(p) in number
        }
        found: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in _hooks(self._hooks, "after_state_dict"):
            result = hook(self, found)
            found = found if result is None else result
        return found

    def _mark_shards(self) -> None:
        # The state of a shard is that of some rows too, and must not pass for all there is.
        for p, state in self.state.items():
            shard = shard_of(p)
            if shard is None:
                continue
            for value in state.values():
                if isinstance(value, Tensor) and value.dim():
                    mark(value, shard)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and a copy of the state; tensors keep their saved dtype.

        All or nothing: until the copy is there, nothing changes.

        Raises:
            ValueError: Groups or their sizes differ, or a state does not fit its parameter.
        """
        state_dict = dict(state_dict)
        for hook in _hooks(self._hooks, "before_load"):
            result = hook(self, state_dict)
            state_dict = state_dict if result is None else result
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                "loaded state dict has a different number of parameter groups: "
                f"{len(groups)}, where this optimizer has {len(self.param_groups)}."
            )
        mine = [len(g["params"]) for g in self.param_groups]
        saved_sizes = [len(g["params"]) for g in groups]
        if mine != saved_sizes:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                f"optimizer's group: sizes {saved_sizes}, where this optimizer has {mine}."
            )
        by_number: dict[Any, Any] = {}
        for group, saved in zip(self.param_groups, groups, strict=True):
            by_number.update(zip(saved["params"], group["params"], strict=True))
        loaded = {}
        with no_grad():
            for number, saved_state in state_dict["state"].items():
                p = by_number.get(number)
                if p is not None:
                    self._check_state(number, p, saved_state)
                loaded[number if p is None else p] = (
                    saved_state if p is None else _taken_over(saved_state, p)
                )
        options = [{k: v for k, v in saved.items() if k != "params"} for saved in groups]
        with defer_interrupts():
            for group, found in zip(self.param_groups, options, strict=True):
                # What a scheduler noted goes, unless it was saved; options of later versions stay.
                for key in group.keys() - found.keys() - self.defaults.keys() - _OF_GROUPS:
                    del group[key]
                group.update(found)
            self.state.clear()
            self.state.update(loaded)
        for hook in _hooks(self._hooks, "after_load"):
            hook(self)

    def state_shape(self, key: str, p: Tensor) -> tuple[int, ...] | None:
        """Return the shape of a state tensor of a parameter; None if any will do.

        ``load_state_dict`` refuses a state of another shape. Subclasses define it.
        """
        return None

    def _check_state(self, number: Any, p: Tensor, state: Any) -> None:
        for key, value in state.items() if isinstance(state, dict) else ():
            wanted = self.state_shape(key, p) if isinstance(value, Tensor) else None
            if wanted is not None and tuple(value.shape) != wanted:
                raise ValueError(
                    f"loaded state dict has {key} of shape {tuple(value.shape)} for parameter "
                    f"{number} of shape {tuple(p.shape)}, which takes {wanted}. Make the optimizer "
                    "with the parameters, in the order, that it was saved with."
                )

    # Hooks

    def register_step_pre_hook(self, hook: Any) -> RemovableHandle:
        """Register ``hook(optimizer, args, kwargs)`` before each step; may return new ones."""
        return add_hook(self._hooks, "before", hook)

    def register_step_post_hook(self, hook: Any) -> RemovableHandle:
        """Register ``hook(optimizer, args, kwargs)``, called after each step."""
        return add_hook(self._hooks, "after", hook)

    def register_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Register ``hook(optimizer)``, called before a state dict is made."""
        return self._add("before_state_dict", hook, prepend)

    def register_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Register ``hook(optimizer, state_dict)`` after ``state_dict``; may replace the dict."""
        return self._add("after_state_dict", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Any, prepend: bool = False
    ) -> RemovableHandle:
        """Register ``hook(optimizer, state_dict)`` before loading; may replace the dict."""
        return self._add("before_load", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Any, prepend: bool = False
    ) -> RemovableHandle:
        """Register ``hook(optimizer)``, called after loading."""
        return self._add("after_load", hook, prepend)

    def _add(self, kind: str, hook: Any, prepend: bool) -> RemovableHandle:
        handle = add_hook(self._hooks, kind, hook)
        if prepend:
            self._hooks[kind].move_to_end(handle.id, last=False)
        return handle

    def __getstate__(self) -> dict[str, Any]:
        kept = {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}
        return {**kept, "elements": self.elements}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_hooks": {}, **state})
        scopes.optimizers.add(self)

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {n}: {v}" for n, v in sorted(group.items()) if n != "params"]
        return "\n".join([*lines, ")"])


def refuse_sparse(optimizer: Optimizer, p: Any) -> None:
    """Raise the error of an optimizer whose steps need every element's gradient.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        f"{type(optimizer).__name__} does not support sparse gradients (a parameter of shape "
        f"{tuple(p.shape)} has one), please consider SparseAdam instead. Or give its module "
        "sparse=False."
    )


def own(tensor: Any, of: Any = None) -> Any:
    """Set the role of a tensor to optimizer state, owned by a parameter's module."""
    if of is not None and scopes.listening():
        scopes.belongs(tensor, of)
    tensor._storage.set_role(OPTIMIZER)
    return tensor


def number(value: Any) -> Any:
    """Return an option or counter, possibly a one-element tensor, as a Python number."""
    return value.item() if isinstance(value, Tensor) else value


def check_options(name: str, lr: Any, **at_least_zero: Any) -> None:
    """Raise an error for a learning rate that is no number, and for negative options.

    Raises:
        ValueError: As said; the message names the optimizer, the option and its value.
    """
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(
            f"{name}: Tensor lr must be 1-element; got shape {tuple(lr.shape)}. "
            "Put parameters with other rates into a separate group."
        )
    if isinstance(lr, str):
        raise TypeError(f"{name}: Invalid learning rate: {lr!r}, a str. Pass float({lr!r}).")
    if not number(lr) >= 0:
        raise ValueError(f"{name}: Invalid learning rate: {number(lr)}. It must be >= 0.")
    for option, value in at_least_zero.items():
        if not number(value) >= 0:
            raise ValueError(f"{name}: Invalid {option} value: {number(value)}. It must be >= 0.")


def need_pair(name: str, option: str, value: Any) -> None:
    """Raise an error unless an option is two values.

    Raises:
        ValueError: It is more or fewer, or one that is no sequence.
    """
    count = len(value) if isinstance(value, list | tuple) else None
    if count != 2:
        raise ValueError(
            f"{name}: {option} must be a tuple of two values; got {value!r}. Pass both."
        )


def check_betas(name: str, betas: Any) -> tuple[float, float]:
    """Return the two betas as Python numbers, after checking them.

    Raises:
        ValueError: They are not two, or one is outside [0, 1).
    """
    need_pair(name, "betas", betas)
    for k in (0, 1):
        if not 0 <= number(betas[k]) < 1:
            raise ValueError(
                f"{name}: Invalid beta parameter at index {k}: {number(betas[k])}. "
                "It must be in [0, 1)."
            )
    return number(betas[0]), number(betas[1])


def _taken_over(value: Any, p: Tensor) -> Any:
    if isinstance(value, dict):
        return {k: number(v) if k in SCALARS else _taken_over(v, p) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_taken_over(v, p) for v in value)
    if isinstance(value, Tensor):
        if value.device != p.device:
            return own(value.detach().to(p.device), p)
        return own(value.detach().clone(), p)
    return value
