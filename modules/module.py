"""Module: a tree of parameters, buffers and submodules with a ``forward``.

What is assigned as an attribute is registered by its type, in the order of assignment. There is
no global mode: ``train()`` and ``eval()`` set ``training`` on each module of the tree. Hooks are in
``hooks.py``, the state dict in ``state.py``, moving and converting in ``conversion.py``; this file
is the tree itself.

Whatever PyTorch calls on each child by name (``train``, ``_apply``, ``state_dict``, ...) is called
so here, because models override it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from ..framework.attribution.scopes import recording
from ..framework.capture.compiling import compiled_function
from ..framework.capture.trail import module_calls
from ..framework.memory.short_traceback import shorten
from ..framework.serialization.own_classes import restores_whole
from ..framework.tensor import Tensor
from .conversion import ConversionMixin
from .hooks import HooksMixin, call_hooked, call_watched, compile_calls, run_hooked
from .hooks import register_module_forward_hook as register_module_forward_hook
from .hooks import register_module_forward_pre_hook as register_module_forward_pre_hook
from .hooks import register_module_full_backward_hook as register_module_full_backward_hook
from .hooks import register_module_full_backward_pre_hook as register_module_full_backward_pre_hook
from .parameter import Buffer, Parameter, keep_buffer
from .state import StateDictMixin

T = TypeVar("T", bound="Module")
_REGISTRIES = ("_parameters", "_buffers", "_modules")


def not_a_module(value: Any) -> str:
    """The message for a value that stands where a module is needed."""
    name = getattr(value, "__name__", None) or type(value).__name__
    return (
        f"{name} is not a Module subclass. Pass an instance; a function has a module of its kind, "
        "as nn.ReLU() for F.relu, or call it in forward."
    )


class Module(HooksMixin, StateDictMixin, ConversionMixin):
    """Base class of all modules: assign parameters and submodules, define ``forward``.

    Attributes:
        training: True in training mode; layers such as dropout look at it.

    Example:
        >>> import lowtide as lt
        >>> class Scale(lt.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = lt.nn.Parameter(lt.tensor(3.0))
        ...
        ...     def forward(self, x):
        ...         return x * self.factor
        >>> Scale()(lt.tensor(2.0)).item()
        6.0
    """

    training: bool
    _version = 1

    def __init__(self) -> None:
        # Straight in __dict__: nothing to register yet, and models are made of many modules.
        own = self.__dict__
        own["training"] = True
        own["_parameters"], own["_buffers"], own["_modules"] = {}, {}, {}
        own["_non_persistent_buffers_set"] = set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; subclasses define it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function. '
            "Define forward(self, ...) with the arguments that it is called with."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``, and the hooks around it; for a profiler, in the module's scope."""
        try:
            if recording.calls:
                return call_watched(self, args, kwargs)
            if self._call_hooks is not None:
                return call_hooked(self, args, kwargs)
            return self.forward(*args, **kwargs)
        except MemoryError as error:
            shorten(error)
            raise

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        parameters = own.get("_parameters")
        if isinstance(value, Parameter):
            _need_init(self, name, "parameter")
            _forget(self, name, "_parameters")
            self.register_parameter(name, value)
        elif parameters is not None and name in parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' "
                    "(lowtide.nn.Parameter or None expected). Wrap it in nn.Parameter, or delete "
                    "the parameter first."
                )
            parameters[name] = None
        elif isinstance(value, Module):
            _need_init(self, name, "module")
            _forget(self, name, "_modules")
            own["_modules"][name] = value  # also under a method's name, which add_module refuses
        elif parameters is None:
            object.__setattr__(self, name, value)
        elif name in own["_modules"]:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as child module '{name}' "
                    "(lowtide.nn.Module or None expected). Delete the module first."
                )
            own["_modules"][name] = None
        elif name in own["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as buffer '{name}' "
                    "(lowtide.Tensor or None expected). Make a tensor of it."
                )
            keep_buffer(self, name, value)
        elif isinstance(value, Buffer):
            _forget(self, name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for registry in _REGISTRIES:
            if registry in own and name in own[registry]:
                return own[registry][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for registry in _REGISTRIES:
            if name in self.__dict__.get(registry, ()):
                del self.__dict__[registry][name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(n for n in names if not n[:1].isdigit())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # Registration

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, or None in its place, under ``name``.

        Raises:
            TypeError: ``param`` is something else.
            KeyError: The name is taken, empty, or has a dot.
            ValueError: ``param`` is no leaf.
        """
        _check_new(self, name, "parameter", "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' "
                "(lowtide.nn.Parameter or None required). Wrap it in nn.Parameter."
            )
        if param is not None and param._node is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. To express '{name}' as a "
                "function of another Tensor, compute the value in forward."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer: a tensor that is state but no parameter, such as a running mean.

        Args:
            name: The attribute's name.
            tensor: The values, or None.
            persistent: Whether it is part of ``state_dict``.

        Raises:
            TypeError: ``tensor`` is something else.
            KeyError: The name is taken, empty, or has a dot.
        """
        _check_new(self, name, "buffer", "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' "
                "(lowtide.Tensor or None required). Make a tensor of it."
            )
        keep_buffer(self, name, tensor)
        change = self._non_persistent_buffers_set
        (change.discard if persistent else change.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a submodule, or None in its place, under ``name``."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(not_a_module(module))
        _check_new(self, name, "module", "_modules")
        self._modules[name] = module

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a submodule; same as ``add_module``."""
        self.add_module(name, module)

    # Walking the tree

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield (path, module) of this module and all submodules, each once.

        Args:
            memo: Modules to leave out; those that were yielded are added.
            prefix: What each path begins with.
            remove_duplicate: False yields a shared module under each of its paths.
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, path, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """Yield this module and all submodules, each once."""
        return (m for _, m in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of the direct submodules, each once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules, each once."""
        return (m for _, m in self.named_children())

    def _named_members(
        self,
        get_members_fn: Callable[[Module], Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        pairs: Any = [(prefix, self)]
        if recurse:
            pairs = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        for path, module in pairs:
            for name, value in get_members_fn(module):
                if value is not None and id(value) not in seen:
                    if remove_duplicate:
                        seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (path, parameter), tied ones once unless ``remove_duplicate`` is False."""
        return self._named_members(
            lambda m: m._parameters.items(), prefix, recurse, remove_duplicate
        )

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, tied ones once; those of this module alone without ``recurse``."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (path, buffer), shared ones once unless ``remove_duplicate`` is False."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, shared ones once; those of this module alone without ``recurse``."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """Return the module at a dotted path; this one for the empty path.

        Raises:
            AttributeError: There is none.
        """
        module: Module = self
        for name in target.split(".") if target else ():
            found = getattr(module, name, None)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            if not isinstance(found, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
            module = found
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Set the module at a dotted path.

        Args:
            target: The path; all but its last name must exist.
            module: What to put there.
            strict: The last name must exist too.

        Raises:
            ValueError: The path is empty, or ``module`` is no Module.
            AttributeError: The path leads to nothing, or to something else than a module.
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}.")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{type(parent).__name__} has no attribute `{name}`")
        if not isinstance(getattr(parent, name, module), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a dotted path.

        Raises:
            AttributeError: There is none.
        """
        found = _member(self, target)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{target.rpartition('.')[2]}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a dotted path.

        Raises:
            AttributeError: There is none.
        """
        path, _, name = target.rpartition(".")
        found = _member(self, target)
        if name not in self.get_submodule(path)._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return found

    def apply(self: T, fn: Callable[[Module], Any]) -> T:
        """Call ``fn`` on every submodule, then on this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # Modes and gradients

    def train(self: T, mode: bool = True) -> T:
        """Set training mode on this module and all submodules."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: T) -> T:
        """Set evaluation mode on this module and all submodules."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Set ``requires_grad`` of every parameter."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of every parameter to None, or to zeros."""
        for p in self.parameters():
            grad = p._grad
            if grad is None:
                continue
            if set_to_none:
                p._grad = None
                continue
            if grad._node is not None:
                grad.detach_()
            grad.requires_grad_(False)
            grad.zero_()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let calls of this module be recorded and replayed from now on.

        Args:
            *args: Accepted.
            **kwargs: Options of ``lowtide.compile``, of which ``fullgraph`` and ``check`` count.
        """
        options = {name: kwargs[name] for name in ("fullgraph", "check") if name in kwargs}
        compile_calls(self, compiled_function(partial(run_hooked, self), module=self, **options))

    def share_memory(self: T) -> T:
        """Do nothing; accepted for compatibility with PyTorch."""
        return self

    # What it looks like

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows besides the module's name."""
        return ""

    def _get_name(self) -> str:
        return self.__class__.__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._modules.items()]
        lines = (extra.split("\n") if extra else []) + children
        if not children and len(lines) < 2:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


# Functions and not methods: a model may have a method of any name.


def _need_init(module: Module, name: str, what: str) -> None:
    if "_parameters" not in module.__dict__:
        raise AttributeError(
            f"cannot assign {what} '{name}' before Module.__init__() call. "
            "Call super().__init__() first."
        )


def _forget(module: Module, name: str, kept: str) -> None:
    # A name means one thing. In its own registry it keeps its place in the order.
    own = module.__dict__
    own.pop(name, None)
    for registry in _REGISTRIES:
        if registry != kept:
            own[registry].pop(name, None)
    module._non_persistent_buffers_set.discard(name)


def _check_new(module: Module, name: str, what: str, registry: str) -> None:
    own = module.__dict__
    _need_init(module, name, what)
    if not isinstance(name, str):
        raise TypeError(f"{what} name should be a string. Got {type(name).__name__}.")
    if "." in name:
        raise KeyError(f'{what} name can\'t contain ".", got: {name}')
    if not name:
        raise KeyError(f'{what} name can\'t be empty string ""')
    if name not in own[registry] and hasattr(module, name):
        raise KeyError(f"attribute '{name}' already exists. Choose another name.")


def _member(module: Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    owner = module.get_submodule(path)
    if not hasattr(owner, name):
        raise AttributeError(f"{type(owner).__name__} has no attribute `{name}`")
    return getattr(owner, name)


# Whole modules in files


def _why_not_saved(module: Module) -> str:
    own = module.__dict__
    if own.get("_call_hooks") or any(own.get("_state_hooks", {}).values()):
        return (
            "It has hooks or activation checkpointing, which are functions: remove them, or save "
            "its state_dict()"
        )
    return ""


def _check_loaded(module: Module) -> None:
    """Check the registries of a module from a file, and give buffers their role."""
    own = module.__dict__
    if "_call_hooks" in own or own.get("_state_hooks"):
        raise ValueError(f"a {type(module).__name__} has hooks")
    kinds = {"_parameters": Parameter, "_buffers": Tensor, "_modules": Module}
    for registry, kind in kinds.items():
        values = own.get(registry)
        if not isinstance(values, dict) or not all(
            type(name) is str and (value is None or isinstance(value, kind))
            for name, value in values.items()
        ):
            raise ValueError(f"the {registry} of a {type(module).__name__} are no dict of such")
    names = own.get("_non_persistent_buffers_set")
    if type(own.get("training")) is not bool or type(names) is not set:
        raise ValueError(f"a {type(module).__name__} without training or buffer names")
    for name, value in own["_buffers"].items():
        keep_buffer(module, name, value)


module_calls[Module.__call__.__code__] = "self"
restores_whole(Module, _why_not_saved, _check_loaded)
