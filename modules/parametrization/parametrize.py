"""Parametrizations: parameters and buffers that are computed from others on each access.

``register_parametrization(module, "weight", f)`` moves the tensor to
``module.parametrizations.weight.original`` and makes ``module.weight`` a property that computes
``f(original)``. The property lives on a class made for this one module, so other modules of its
class do not notice. The original keeps its identity: an optimizer goes on knowing it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

from ...framework.interrupts import WholeContext
from ...framework.modes import local, no_grad
from ...framework.tensor import Tensor
from ..container import ModuleDict, ModuleList
from ..module import Module
from ..parameter import Parameter

_cached_inside = 0
_kept: list[weakref.ref[Module]] = []  # modules with an entry in `_CACHE` of their own
_CACHE = "_cached_parametrizations"


class cached(WholeContext):
    """Cache parametrized tensors inside: each is computed once.

    For modules that read a weight several times. What was kept goes at the end of the outermost.
    A tensor is computed again when what it is computed from has changed (a write, ``.data``,
    ``load_state_dict``, ``.double()``, ``.train()``), or gradients and autocast are on or off.
    """

    def _enter(self) -> None:
        global _cached_inside
        _cached_inside += 1

    def _leave(self) -> None:
        global _cached_inside
        _cached_inside -= 1
        if not _cached_inside:
            while _kept:
                module = _kept.pop()()
                if module is not None:
                    module.__dict__.pop(_CACHE, None)


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, with the original tensors.

    Args:
        modules: Parametrizations, called one after the other.
        original: The tensor to parametrize. Where they have a ``right_inverse``, it decides what is
            kept; else this tensor itself.
        unsafe: Do not check that the result has the shape and dtype of the original.

    Attributes:
        original: What is kept, if it is one tensor; else there are ``original0``, ``original1``...

    Raises:
        ValueError: There are no modules, or what they return does not fit.
    """

    original: Tensor
    unsafe: bool

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = original.shape, original.dtype
        with no_grad():
            kept = _inverted(self, original)
        if isinstance(kept, Tensor):
            if kept.dtype is not dtype:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
                    f"original.dtype: {dtype}\nright_inverse(original).dtype: {kept.dtype}"
                )
            self.is_tensor = True
            with no_grad():
                original.data = kept.detach()
            _register(self, "original", original)
        elif isinstance(kept, Sequence):
            self.is_tensor = False
            self.ntensors = len(kept)
            for k, value in enumerate(kept):
                if not isinstance(value, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, "
                        f"tuple...). Got element {k} of the sequence with type "
                        f"{type(value).__name__}."
                    )
                if isinstance(original, Parameter):
                    value = Parameter(value, original.requires_grad)
                else:
                    value = value.detach().requires_grad_(original.requires_grad)
                _register(self, f"original{k}", value)
        else:
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(kept).__name__}."
            )
        if not unsafe:
            with no_grad():
                _need_like("A parametrization", self(), shape, dtype)

    def right_inverse(self, value: Tensor) -> None:
        """Set the original tensors so that the parametrized one becomes ``value``.

        Raises:
            RuntimeError: A parametrization has no ``right_inverse``.
            ValueError: What it returns does not fit.
        """
        for module in self:
            if not hasattr(module, "right_inverse"):
                raise RuntimeError(
                    f"parametrization {type(module).__name__} does not implement right_inverse."
                )
        with no_grad():
            for module in reversed(list(self)):
                value = module.right_inverse(value)
            values = [value] if self.is_tensor else list(value)
            originals = self._originals()
            if len(values) != len(originals):
                raise ValueError(
                    "'right_inverse' must return a sequence of tensors of length "
                    f"{len(originals)}. Got a sequence of length {len(values)}."
                )
            for k, (old, new) in enumerate(zip(originals, values, strict=True)):
                if not isinstance(new, Tensor):
                    raise ValueError(
                        f"`right_inverse` should return tensors. Got {type(new)} at {k}."
                    )
                if new.dtype is not old.dtype:
                    raise ValueError(
                        f"The tensor returned by `right_inverse` has dtype {new.dtype} while "
                        f"`original` has dtype {old.dtype}."
                    )
                old.data = new.detach()

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{k}") for k in range(self.ntensors)]

    def forward(self) -> Tensor:
        """Compute the parametrized tensor."""
        values: Any = self._originals()
        for module in self:
            values = (module(*values),)
        return values[0]


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Register a parametrization of a parameter or buffer of a module.

    Args:
        module: Whose tensor.
        tensor_name: Its name in the module.
        parametrization: Maps what is kept to the tensor. With a ``right_inverse`` it also says what
            is kept at first, and the tensor can be assigned to. A tensor parametrized already is
            passed through this one last.
        unsafe: Do not check that it keeps shape and dtype.

    Returns:
        ``module``.

    Raises:
        ValueError: There is no such tensor, or the parametrization changes shape or dtype.

    Example:
        >>> import lowtide as lt
        >>> class Symmetric(lt.nn.Module):
        ...     def forward(self, x):
        ...         return x.triu() + x.triu(1).mT
        >>> layer = lt.nn.Linear(3, 3)
        >>> _ = lt.nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
        >>> bool((layer.weight == layer.weight.mT).all())
        True
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        found: Any = module.parametrizations[tensor_name]
        if not unsafe:
            _check_next(parametrization, getattr(module, tensor_name))
        found.append(parametrization)
        found.unsafe |= unsafe
        return module
    if tensor_name not in module._buffers and tensor_name not in module._parameters:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    original = getattr(module, tensor_name)
    made = ParametrizationList([parametrization], original, unsafe=unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _give_own_class(module)
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = made
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """True if a module has a parametrized tensor, or if the named one is."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Remove the parametrizations of a tensor.

    Args:
        module: Whose tensor.
        tensor_name: Its name in the module.
        leave_parametrized: It keeps the computed value; else it goes back to the original's.

    Returns:
        ``module``.

    Raises:
        ValueError: It is not parametrized; or ``leave_parametrized`` is False and several tensors
            are kept for it.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    kept = module.parametrizations[tensor_name]
    if not kept.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    original = kept._originals()[0]
    if leave_parametrized:
        value = getattr(module, tensor_name)
        if kept.is_tensor:
            with no_grad():
                original.data = value.detach()
        else:
            original = Parameter(value) if value.requires_grad else value
    own = type(module)
    delattr(own, tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = own.__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """Return the class of a module before it was parametrized."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


# The class that one parametrized module has for itself


def _give_own_class(module: Module) -> None:
    base = type(module)
    names = {"__getstate__": _refuse_pickle, "__module__": base.__module__}
    if not hasattr(base, "__deepcopy__"):
        names["__deepcopy__"] = _deepcopy
    module.__class__ = type(f"Parametrized{base.__name__}", (base,), names)


def _refuse_pickle(module: Module) -> Any:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict()."
    )


def _deepcopy(module: Module, memo: dict[int, Any]) -> Module:
    # The copy gets a class of its own too: parametrizations can be removed from either.
    own = type(module)
    names = {k: v for k, v in vars(own).items() if k not in ("__dict__", "__weakref__")}
    twin: Module = object.__new__(type(own.__name__, own.__bases__, names))
    memo[id(module)] = twin
    held = {key: value for key, value in module.__dict__.items() if key != _CACHE}
    twin.__dict__.update(copy.deepcopy(held, memo))
    return twin


def _property(name: str) -> property:
    def read(module: Module) -> Any:
        if not _cached_inside:
            return module.parametrizations[name]()
        entries = module.__dict__.get(_CACHE)
        if entries is None:
            entries = module.__dict__[_CACHE] = {}
            _kept.append(weakref.ref(module))
        computation = module.parametrizations[name]
        known = entries.get(name)
        if known is not None and _same(known[1], _sources(computation)):
            return known[0]
        found = computation()
        # afterwards: computing may itself write, as the power iteration of spectral_norm does
        entries[name] = found, _sources(computation)
        return found

    def write(module: Module, value: Tensor) -> None:
        module.parametrizations[name].right_inverse(value)

    return property(read, write)


def _sources(computation: Module) -> list[Any]:
    # What a parametrized tensor depends on.
    state = local.state
    found: list[Any] = [state.grad, state.inference, state.autocast and dict(state.autocast)]
    found += [module.training for module in computation.modules()]
    for tensor in (*computation.parameters(), *computation.buffers()):
        found += [tensor, tensor._storage, tensor._version, tensor.requires_grad]
    return found


def _same(before: list[Any], now: list[Any]) -> bool:
    return len(before) == len(now) and all(
        a is b or (isinstance(a, bool | int | dict) and a == b)  # tensors, storages: the same one
        for a, b in zip(before, now, strict=True)
    )


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _inverted(modules: ModuleList, value: Any) -> Any:
    # What to keep so that the modules give `value`, as far as they can tell.
    for module in reversed(list(modules)):
        if hasattr(module, "right_inverse"):
            try:
                value = module.right_inverse(value)
            except NotImplementedError:
                continue
    return value


def _need_like(what: str, value: Any, shape: Any, dtype: Any) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{what} must return a tensor. Got {type(value).__name__}.")
    if value.dtype is not dtype:
        raise ValueError(
            f"{what} may not change the dtype of the tensor, unless `unsafe=True`: it was {dtype}, "
            f"and becomes {value.dtype}."
        )
    if value.shape != shape:
        raise ValueError(
            f"{what} may not change the shape of the tensor, unless `unsafe=True`: it was "
            f"{tuple(shape)}, and becomes {tuple(value.shape)}."
        )


def _check_next(parametrization: Module, now: Tensor) -> None:
    with no_grad():
        after = parametrization(now)
        _need_like("A parametrization", after, now.shape, now.dtype)
        if hasattr(parametrization, "right_inverse"):
            try:
                back = parametrization.right_inverse(after)
            except NotImplementedError:
                return
            _need_like("parametrization.right_inverse", back, now.shape, now.dtype)


__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "type_before_parametrizations",
]
