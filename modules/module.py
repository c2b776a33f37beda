"""Module: a tree of parameters, buffers and submodules with a ``forward``.

What is assigned as an attribute is registered by its type, in the order of assignment. There is
no global mode: ``train()`` and ``eval()`` set ``training`` on each module of the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..framework.autograd.modes import no_grad
from ..framework.memory.ledger import BUFFER, INPUT, SAVED, TEMPORARY
from ..framework.tensor import Tensor
from .parameter import Parameter

T = TypeVar("T", bound="Module")


class Module:
    """Base class of layers and models: assign parameters and submodules, define ``forward``.

    Attributes:
        training: True in training mode; layers such as dropout look at it.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]

    def __init__(self) -> None:
        object.__setattr__(self, "training", True)
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_non_persistent", set())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; subclasses define it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function.'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``."""
        return self.forward(*args, **kwargs)

    # Registration

    def __setattr__(self, name: str, value: Any) -> None:
        registries = self.__dict__
        if "_parameters" not in registries:
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    f"cannot assign {name} before Module.__init__() call. "
                    "Call super().__init__() first."
                )
            object.__setattr__(self, name, value)
            return
        if isinstance(value, Parameter):
            self._forget(name)
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._forget(name)
            self._modules[name] = value
        elif name in self._parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' "
                    "(lowtide.nn.Parameter or None expected). Wrap it in nn.Parameter."
                )
            self._parameters[name] = None
        elif name in self._modules and value is None:
            self._modules[name] = None
        elif name in self._buffers and (value is None or isinstance(value, Tensor)):
            self._set_buffer(name, value)
        else:
            self._forget(name)
            object.__setattr__(self, name, value)

    def _forget(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            registry.pop(name, None)
        self.__dict__.pop(name, None)

    def _set_buffer(self, name: str, value: Tensor | None) -> None:
        if value is not None and value._storage.role in (TEMPORARY, SAVED, INPUT):
            value._storage.set_role(BUFFER)
        self._buffers[name] = value

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(registry)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*self._parameters, *self._buffers, *self._modules}
        return sorted({*super().__dir__(), *names})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, or None in its place, under ``name``."""
        self._check_new(name)
        self._forget(name)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but no parameter, such as running statistics.

        Args:
            name: The attribute's name.
            tensor: The values, or None.
            persistent: Whether it is part of ``state_dict``.
        """
        self._check_new(name)
        self._set_buffer(name, tensor)
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def _check_new(self, name: str) -> None:
        if "." in name or not name:
            raise KeyError(f"a name may not be empty or contain a dot; got {name!r}.")
        if hasattr(self, name) and name not in (*self._parameters, *self._buffers):
            raise KeyError(f"attribute '{name}' already exists. Choose another name.")

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a submodule under ``name``."""
        self._check_new(name)
        self._modules[name] = module

    register_module = add_module

    # Walking the tree

    def named_modules(self, prefix: str = "", _seen: set[int] | None = None) -> Iterator[Any]:
        """Yield (path, module) for this module and everything below it, each once."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """Yield this module and everything below it, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of the direct submodules."""
        return ((n, m) for n, m in self._modules.items() if m is not None)

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        return (m for _, m in self.named_children())

    def _named(self, registry: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name, value in getattr(module, registry).items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))  # a tied parameter appears once
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (path, parameter), tied ones once."""
        return self._named("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, tied ones once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield (path, buffer)."""
        return self._named("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; this one for the empty path.

        Raises:
            AttributeError: There is none.
        """
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no submodule '{name}'.")
            module = found
        return module

    def apply(self: T, fn: Callable[[Module], None]) -> T:
        """Call ``fn`` on every module below, then on this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # Modes, conversion, gradients

    def train(self: T, mode: bool = True) -> T:
        """Set training mode on the whole tree."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self: T) -> T:
        """Set evaluation mode on the whole tree."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Set ``requires_grad`` of every parameter."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of every parameter, or fill them with zeros."""
        for p in self.parameters():
            if p._grad is not None:
                if set_to_none:
                    p._grad = None
                else:
                    p._grad = p._grad.detach().zero_()

    def _convert(self: T, change: Callable[[Tensor], Tensor]) -> T:
        with no_grad():
            for module in self.modules():
                for p in module._parameters.values():
                    if p is not None:
                        grad = p._grad
                        p._grad = None
                        p.data = change(p.detach())
                        if grad is not None:
                            p.grad = change(grad)
                for name, b in module._buffers.items():
                    if b is not None:
                        module._set_buffer(name, change(b))
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Move and convert parameters and buffers; dtypes apply to floating ones only."""
        from ..framework.dtypes import dtype as dtype_class

        def change(t: Tensor) -> Tensor:
            if t.dtype.is_differentiable:
                return t.to(*args, **kwargs)
            kept = [a for a in args if not isinstance(a, dtype_class | type)]
            places = {k: v for k, v in kwargs.items() if k != "dtype"}
            if not kept and not places:
                return t
            return t.to(*kept, **places)

        return self._convert(change)

    def cpu(self: T) -> T:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self: T, device: Any = None) -> T:
        """Move to a CUDA device."""
        return self.to("cuda" if device is None else device)

    def float(self: T) -> T:
        """Convert floating parameters and buffers to float32."""
        from ..framework.dtypes import float32

        return self.to(float32)

    def double(self: T) -> T:
        """Convert floating parameters and buffers to float64."""
        from ..framework.dtypes import float64

        return self.to(float64)

    # State

    def state_dict(self, prefix: str = "") -> OrderedDict[str, Tensor]:
        """Parameters and persistent buffers by path, detached, sharing memory."""
        state: OrderedDict[str, Tensor] = OrderedDict()
        for name, p in self._parameters.items():
            if p is not None:
                state[prefix + name] = p.detach()
        for name, b in self._buffers.items():
            if b is not None and name not in self._non_persistent:
                state[prefix + name] = b.detach()
        for name, child in self.named_children():
            state.update(child.state_dict(f"{prefix}{name}."))
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Copy values in, by path.

        Args:
            state_dict: Tensors by path.
            strict: Missing and unexpected keys are errors.
            assign: Take the given tensors over instead of copying into the present ones.

        Returns:
            (missing_keys, unexpected_keys).

        Raises:
            RuntimeError: One message with every missing, unexpected and mis-shaped key.
        """
        from .state import load_state

        return load_state(self, state_dict, strict, assign)

    def extra_repr(self) -> str:
        """What ``repr`` shows of this module beside its name."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._modules.items()]
        if not children:
            return f"{type(self).__name__}({extra})"
        lines = "\n  ".join(([extra] if extra else []) + children)
        return f"{type(self).__name__}(\n  {lines}\n)"
