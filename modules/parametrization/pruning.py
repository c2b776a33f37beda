"""Pruning: entries of a parameter are set to zero by a mask, and stay so while it is trained.

A pruned parameter ``name`` of a module becomes ``name_orig``, which is trained, and a buffer
``name_mask`` of zeros and ones in its shape; a hook sets ``name`` to their product before each
forward. So the gradient of what is masked is zero, and both are saved. ``remove`` makes the product
the parameter again. Names, defaults and behaviour are those of PyTorch's ``torch.nn.utils.prune``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from typing import Any

from ...framework import ops as _ops
from ...framework.modes import no_grad
from ..module import Module
from ..parameter import Parameter

ops: Any = _ops


def _counted(amount: float | int, size: int) -> int:
    """Return how many of ``size`` units an amount means.

    Raises:
        TypeError: It is no number.
        ValueError: It is a share outside of [0, 1], a negative number, or more than there are.
    """
    if not isinstance(amount, numbers.Real) or isinstance(amount, bool):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    whole = isinstance(amount, numbers.Integral)
    if amount < 0 or (not whole and amount > 1):
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative "
            "integer"
        )
    if whole and amount > size:
        raise ValueError(
            f"amount={amount} should be smaller than the number of parameters to prune={size}"
        )
    return int(amount) if whole else round(float(amount) * size)


class BasePruningMethod:
    """A way to prune: it makes masks, and is the hook that applies them.

    Attributes:
        PRUNING_TYPE: What a mask goes by when others went before: "unstructured" (the entries that
            are left), "structured" (the channels that are left), "global" (all).
    """

    PRUNING_TYPE = "unstructured"
    _tensor_name: str = ""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return the mask of ``t``: ``default_mask`` with more zeros."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no compute_mask(t, default_mask)."
        )

    def __call__(self, module: Any, inputs: Any) -> None:
        """Set the module's attribute to the masked parameter."""
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Any) -> Any:
        """Return the parameter times its mask."""
        if not self._tensor_name:
            raise AssertionError(f"Module {module} has to be pruned")
        mask = getattr(module, f"{self._tensor_name}_mask")
        original = getattr(module, f"{self._tensor_name}_orig")
        return mask.to(original.dtype) * original

    @classmethod
    def apply(
        cls, module: Any, name: str, *args: Any, importance_scores: Any = None, **kwargs: Any
    ) -> Any:
        """Prune a module's parameter by this method, after those that did before.

        Args:
            module: The module.
            name: Its parameter.
            *args: What the method takes.
            importance_scores: Numbers in the parameter's shape to choose by; itself by default.
            **kwargs: What the method takes.

        Raises:
            AttributeError: The module has no such parameter.
            ValueError: The scores have another shape.
        """
        before = _hook_of(module, name)
        method = cls(*args, **kwargs)
        method._tensor_name = name
        found = getattr(module, f"{name}_orig") if before else getattr(module, name)
        scores = found if importance_scores is None else importance_scores
        if scores.shape != found.shape:
            raise ValueError(
                f"importance_scores should have the same shape as parameter {name} of {module}: "
                f"got {tuple(scores.shape)}, not {tuple(found.shape)}."
            )
        with no_grad():
            old = getattr(module, f"{name}_mask") if before else ops.ones_like(found)
            scores = scores.detach() * old if importance_scores is None else scores.detach()
            after: Any = method
            if before:
                after = before[1] if isinstance(before[1], PruningContainer) else None
                if after is None:
                    after = PruningContainer(before[1])
                mask = PruningContainer.combined(method, scores, old)
                after.add_pruning_method(method)
            else:
                mask = method.compute_mask(scores, old)
        if before:
            del module._forward_pre_hooks[before[0]]
        else:
            if not isinstance(found, Parameter):
                found = Parameter(found)
            del module._parameters[name]
            module.register_parameter(f"{name}_orig", found)
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, after.apply_mask(module))
        module.register_forward_pre_hook(after)
        return after

    def prune(self, t: Any, default_mask: Any = None, importance_scores: Any = None) -> Any:
        """Return ``t`` times a mask; nothing is kept."""
        scores = t if importance_scores is None else importance_scores
        mask = ops.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=mask)

    def remove(self, module: Any) -> None:
        """Make the masked parameter the parameter; its hook stays for the caller to take away."""
        name = self._tensor_name
        original = module._parameters.pop(f"{name}_orig")
        with no_grad():
            original.copy_(original * module._buffers.pop(f"{name}_mask").to(original.dtype))
        if name in vars(module):
            delattr(module, name)
        module.register_parameter(name, original)


def _hook_of(module: Any, name: str) -> tuple[int, BasePruningMethod] | None:
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            return key, hook
    return None


class PruningContainer(BasePruningMethod):
    """Several ways to prune one parameter, one after the other."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._methods: tuple[BasePruningMethod, ...] = args
        self._tensor_name = args[0]._tensor_name if args else ""

    def add_pruning_method(self, method: BasePruningMethod | None) -> None:
        """Add one for the same parameter.

        Raises:
            TypeError: It is none.
            ValueError: It is for another parameter.
        """
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method._tensor_name != self._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}'"
                f"; got one for '{method._tensor_name}'."
            )
        self._methods += (method,)

    def __len__(self) -> int:
        return len(self._methods)

    def __iter__(self) -> Any:
        return iter(self._methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._methods[idx]

    @staticmethod
    def combined(method: BasePruningMethod, t: Any, mask: Any) -> Any:
        """Return a mask with a method's zeros beside those that are there."""
        kind = method.PRUNING_TYPE
        if kind == "unstructured":
            chosen: Any = mask == 1
        elif kind == "structured":
            axis: int = getattr(method, "dim")  # noqa: B009 - of structured methods alone
            axis += t.dim() if axis < 0 else 0
            left = mask.sum([d for d in range(t.dim()) if d != axis]) != 0
            chosen = tuple(left if d == axis else slice(None) for d in range(t.dim()))
        elif kind == "global":
            chosen = (slice(None),) * t.dim()
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {kind}")
        found = mask.clone()
        found[chosen] = method.compute_mask(t[chosen], default_mask=mask[chosen]).to(mask.dtype)
        return found

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return the mask of the last method, beside the zeros that are there."""
        return self.combined(self._methods[-1], t, default_mask)


class Identity(BasePruningMethod):
    """Prunes nothing: the parameter gets a mask of ones."""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return the mask as it is."""
        return default_mask


class _OfEntries(BasePruningMethod):
    def __init__(self, amount: float | int) -> None:
        _counted(amount, 1 << 62)
        self.amount = amount

    def order(self, t: Any) -> Any:
        """Return numbers by which the lowest entries go."""
        raise NotImplementedError

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return the mask with so many more zeros."""
        count = _counted(self.amount, t.numel())
        mask = default_mask.clone()
        if count:
            lowest = self.order(t).reshape(-1).topk(count, largest=False).indices
            flat = mask.reshape(-1)
            flat[lowest] = 0
            mask = flat.reshape(mask.shape)
        return mask


class RandomUnstructured(_OfEntries):
    """Prunes entries at random."""

    def order(self, t: Any) -> Any:
        """Return random numbers."""
        return ops.rand(t.shape, device=t.device)


class L1Unstructured(_OfEntries):
    """Prunes the entries of the smallest absolute value."""

    def order(self, t: Any) -> Any:
        """Return absolute values."""
        return t.abs()


class _OfChannels(BasePruningMethod):
    PRUNING_TYPE = "structured"

    def __init__(self, amount: float | int, dim: int = -1) -> None:
        _counted(amount, 1 << 62)
        self.amount, self.dim = amount, dim

    def order(self, t: Any) -> Any:
        """Return one number for each channel; those of the lowest go."""
        raise NotImplementedError

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return the mask with so many more channels of zeros."""
        if t.dim() < 2:
            raise ValueError(
                "Structured pruning can only be applied to multidimensional tensors. Found tensor "
                f"of shape {tuple(t.shape)} with {t.dim()} dims"
            )
        count = _counted(self.amount, t.shape[self.dim])
        mask = default_mask.clone()
        if count:
            axis = self.dim % t.dim()
            lowest = self.order(t).topk(count, largest=False).indices
            mask.index_fill_(axis, lowest, 0)
        return mask


class RandomStructured(_OfChannels):
    """Prunes channels at random."""

    def order(self, t: Any) -> Any:
        """Return random numbers."""
        return ops.rand(t.shape[self.dim], device=t.device)


class LnStructured(_OfChannels):
    """Prunes the channels of the smallest norm."""

    def __init__(self, amount: float | int, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def order(self, t: Any) -> Any:
        """Return the channels' norms."""
        axis = self.dim % t.dim()
        others = [d for d in range(t.dim()) if d != axis]
        return ops.norm(t, p=self.n, dim=others)


class CustomFromMask(BasePruningMethod):
    """Prunes by a mask that is given."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Any) -> None:
        self.mask = mask

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """Return both masks' zeros together."""
        if self.mask.shape != default_mask.shape:
            raise AssertionError(
                f"custom_from_mask: the mask is {tuple(self.mask.shape)}, the parameter "
                f"{tuple(default_mask.shape)}."
            )
        return default_mask * self.mask.to(default_mask.dtype)


def identity(module: Any, name: str) -> Any:
    """Give a parameter a mask of ones; return the module."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Any, name: str, amount: float | int) -> Any:
    """Prune entries at random: a number of them, or a share; return the module."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Any, name: str, amount: float | int, importance_scores: Any = None
) -> Any:
    """Prune the entries of the smallest absolute value; return the module."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Any, name: str, amount: float | int, dim: int) -> Any:
    """Prune channels, along a dimension, at random; return the module."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Any, name: str, amount: float | int, n: Any, dim: int, importance_scores: Any = None
) -> Any:
    """Prune the channels, along a dimension, of the smallest n-norm; return the module."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Any, name: str, mask: Any) -> Any:
    """Prune by a mask of zeros and ones; return the module."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Any, str]],
    pruning_method: Callable[..., Any],
    importance_scores: dict[tuple[Any, str], Any] | None = None,
    **kwargs: Any,
) -> None:
    """Prune several parameters as if they were one: a share of all, wherever it lies.

    Args:
        parameters: (module, name) of each.
        pruning_method: A method of entries, such as ``L1Unstructured``.
        importance_scores: (module, name) -> numbers to choose by.
        **kwargs: What the method takes.

    Raises:
        TypeError: The method is not one of entries.
    """
    pairs = list(parameters)
    scores_of = importance_scores or {}
    method: Any = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    with no_grad():
        flat = ops.cat([scores_of.get(p, getattr(*p)).detach().reshape(-1) for p in pairs])
        masks = ops.cat(
            [
                getattr(m, f"{name}_mask", ops.ones_like(getattr(m, name))).reshape(-1)
                for m, name in pairs
            ]
        )
        found = PruningContainer.combined(method, flat, masks)
    place = 0
    for module, name in pairs:
        t = getattr(module, name)
        custom_from_mask(module, name, found[place : place + t.numel()].reshape(t.shape))
        place += t.numel()


def remove(module: Any, name: str) -> Any:
    """Make the masked parameter the parameter again; return the module.

    Raises:
        ValueError: It is not pruned.
    """
    found = _hook_of(module, name)
    if found is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
        )
    found[1].remove(module)
    del module._forward_pre_hooks[found[0]]
    return module


def is_pruned(module: Module) -> bool:
    """True if a parameter of the module, or of one below it, is pruned."""
    return any(
        isinstance(hook, BasePruningMethod)
        for _, m in module.named_modules()
        for hook in m._forward_pre_hooks.values()
    )
