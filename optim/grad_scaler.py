"""GradScaler: loss scaling for float16 training."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..framework.data_dependence import value_or_hint
from ..framework.distributed import collectives
from ..framework.distributed.collectives import ReduceOp
from ..framework.distributed.shards import shard_of
from ..framework.dtypes import float16, float32
from ..framework.interrupts import defer_interrupts
from ..framework.modes import live_call, no_grad, run_kernel
from ..framework.ops.creation.fill import zeros
from ..framework.ops.views.tiled import reserve, tiles
from ..framework.ops.views.view_as_real import view_as_real
from ..framework.tensor import Tensor
from ..framework.updates import HOSTS, blocks, compiled_call, flat_arrays, planned_update, scale
from .sparse_rows import is_sparse

READY, UNSCALED, STEPPED = range(3)
TILES_ALIVE = 3  # temporaries of a tile's size, where nothing is compiled
LOOKED_AT = 1 << 12  # elements at a time


class GradScaler:
    """Scale losses and unscale gradients, skip steps with infinite gradients, adapt the scale.

    The loop is ``scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()``. A step
    whose gradients hold an infinity or NaN is skipped, and the scale multiplied by
    ``backoff_factor``; after ``growth_interval`` good steps it is multiplied by ``growth_factor``.

    Unscaling and the search for infinities are one pass over each gradient, in place: compiled on
    the CPU, tile by tile elsewhere. The only memory is one number for each device. The scale is a
    Python number (rounded to float32), where PyTorch has a tensor on the device.

    Args:
        device: "cuda" or "cpu"; on cuda without a GPU the scaler is disabled, with a warning.
        init_scale: The first scale.
        growth_factor: Above 1.
        backoff_factor: Below 1.
        growth_interval: Good steps between growths.
        enabled: False makes every method do what a script without a scaler does.

    Raises:
        AssertionError: A factor is out of range.

    Source:
        Micikevicius et al. 2018, section 3.2; the schedule is PyTorch's.
    """

    _captured_live = ("_enabled", "_scale")  # what recorded kernel calls depend on

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and device == "cuda" and not _has_cuda():
            warnings.warn(
                "GradScaler is enabled, but CUDA is not available. Disabling. Pass device='cpu' to "
                "scale there.",
                UserWarning,
                stacklevel=2,
            )
            self._enabled = False
        if self._enabled and growth_factor <= 1:
            raise AssertionError(f"The growth factor must be > 1.0; got {growth_factor}.")
        if self._enabled and backoff_factor >= 1:
            raise AssertionError(f"The backoff factor must be < 1.0; got {backoff_factor}.")
        self._scale = float(init_scale)
        self._used = False  # a loss was scaled: before that there is nothing to unscale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        # By the identity of an optimizer, which is held until update(): another one made after it
        # has gone could have its identity.
        self._held: dict[int, Any] = {}
        self._stages: dict[int, int] = {}
        self._found: dict[int, dict[Any, Any]] = {}  # by optimizer, by device: 1 if one was found
        self._failed: dict[int, list[Any]] = {}  # by optimizer: gradients of a step that raised

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or every tensor of an iterable, by the scale.

        Raises:
            ValueError: Something in it is no tensor.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self._used = True
            return outputs * self._scale
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(x) for x in outputs)
        if isinstance(outputs, Iterable):
            return (self.scale(x) for x in outputs)
        raise ValueError(
            f"outputs must be a Tensor or an iterable of Tensors; got {type(outputs).__name__}."
        )

    @live_call
    def unscale_(self, optimizer: Any) -> None:
        """Divide an optimizer's gradients by the scale; call it before clipping them.

        Raises:
            RuntimeError: It was called already since the last update, or after ``step``; or the
                optimizer is fused into backward.
            ValueError: A gradient is float16: parameters must be float32.
        """
        if not self._enabled:
            return
        self._check_used("unscale_")
        if getattr(optimizer, "_in_backward", None) is not None:
            raise RuntimeError(
                f"GradScaler cannot unscale the gradients of this {type(optimizer).__name__}: it "
                "is fused into backward, which has used them already, still scaled. Train in "
                "bfloat16 without a scaler, or call remove() on the handle of fuse_into_backward."
            )
        self._forget_failed(optimizer)
        stage = self._stages.get(id(optimizer), READY)
        if stage == UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if stage == STEPPED:
            raise RuntimeError("unscale_() is being called after step(). Call update() first.")
        grads = _gradients(optimizer)
        if any(g.dtype is float16 for g in grads):
            raise ValueError(
                "Attempting to unscale FP16 gradients. Keep parameters in float32 and let autocast "
                "convert them."
            )
        factor = 1.0 / self._scale
        found: dict[Any, Any] = {}
        with no_grad():
            for g in grads:
                if g.device not in found:
                    found[g.device] = zeros(1, dtype=float32, device=g.device)
            calls = [
                _unscaling(g._value if is_sparse(g) else g, factor, found[g.device]) for g in grads
            ]
            with defer_interrupts():  # from here on nothing fails: all gradients or none
                for run, *arguments in calls:
                    run(*arguments)
            _share_found(grads, found)
            with defer_interrupts():
                self._held[id(optimizer)] = optimizer
                self._found[id(optimizer)] = found
                self._stages[id(optimizer)] = UNSCALED

    @live_call
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step an optimizer, unless its gradients hold an infinity or NaN.

        Returns:
            What the optimizer's step returned; None if it was skipped.

        Raises:
            RuntimeError: It was called already since the last update, or with a closure.
            AssertionError: The optimizer has no gradients, or no loss was scaled.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled. Step without one."
            )
        self._check_used("step")
        self._forget_failed(optimizer)
        stage = self._stages.get(id(optimizer), READY)
        if stage == STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if stage == READY:
            self.unscale_(optimizer)
        found = self._found[id(optimizer)]
        if not found:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: it has no gradients. Call "
                "backward() first."
            )
        result = None
        if not _any(found):
            try:
                result = optimizer.step(*args, **kwargs)
            except BaseException:
                self._failed[id(optimizer)] = [weakref.ref(g) for g in _gradients(optimizer)]
                raise
        self._stages[id(optimizer)] = STEPPED
        return result

    def _forget_failed(self, optimizer: Any) -> None:
        # A step that raised left unscaled gradients. It may be tried again with these, or, after
        # zero_grad and another backward, with new ones, which were not unscaled.
        failed = self._failed.pop(id(optimizer), None)
        if failed is None:
            return
        then = {id(g) for g in (r() for r in failed) if g is not None}
        if not any(id(g) in then for g in _gradients(optimizer)):
            self._stages.pop(id(optimizer), None)
            self._found.pop(id(optimizer), None)
            self._held.pop(id(optimizer), None)

    @live_call
    def update(self, new_scale: Any = None) -> None:
        """Update the scale after the steps, or set it.

        Args:
            new_scale: A number, or a tensor of one element.

        Raises:
            AssertionError: No optimizer was unscaled since the last update.
        """
        if not self._enabled:
            return
        self._check_used("update")
        if new_scale is not None:
            if isinstance(new_scale, Tensor) and (
                new_scale.numel() != 1 or new_scale.requires_grad
            ):
                raise AssertionError(
                    "new_scale should be a float or a 1-element tensor with requires_grad=False."
                )
            infinite, scale = None, float(new_scale)
        else:
            if not any(self._found.values()):
                raise AssertionError(
                    "No inf checks were recorded prior to update. Call step() or unscale_() first."
                )
            infinite, scale = any(_any(found) for found in self._found.values()), self._scale
        with defer_interrupts():
            self._adapt(infinite, scale)
            self._stages.clear()
            self._found.clear()
            self._failed.clear()
            self._held.clear()

    def _adapt(self, infinite: bool | None, scale: float) -> None:
        self._scale = scale
        if infinite is None:  # it was set
            return
        if infinite:
            self._scale = _rounded(self._scale * self._backoff_factor)
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = _rounded(self._scale * self._growth_factor)
            if math.isfinite(grown):
                self._scale = grown
            self._growth_tracker = 0

    def _check_used(self, what: str) -> None:
        if not self._used:
            raise AssertionError(
                f"Attempted {what} but _scale is None. This may indicate your script did not use "
                "scaler.scale(loss or outputs) earlier in the iteration."
            )

    # What it is set to

    def get_scale(self) -> float:
        """Return the scale; 1 if disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the number of good steps between growths."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of good steps between growths."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """True if scaling is enabled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors, interval and good steps so far; empty if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned.

        Raises:
            RuntimeError: It is empty: it comes from a disabled scaler.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = int(state_dict["_growth_tracker"])


def _gradients(optimizer: Any) -> list[Any]:
    found = (p._grad for group in optimizer.param_groups for p in group["params"])
    return [g for g in found if g is not None]


def _unscaling(g: Any, factor: float, found: Any) -> Any:
    """Return the call that unscales a gradient; what is compiled allocates nothing."""
    host = g.device.type in HOSTS
    # On a GPU both arrays have to be of one type, and `found` is float32.
    flat = flat_arrays(g.numel(), (g,)) if host or g.dtype is float32 else None
    if flat is not None and not g.is_meta:
        arrays = [*flat, found._array]
        return compiled_call([g._storage], g.device, unscale_loop(), arrays, (factor,))
    if host:
        return _unscale_blocks, planned_update(scale, (g,), {"factor": factor}), g, found
    reserve(g, TILES_ALIVE)
    return _unscale, g, factor, found


def _share_found(grads: list[Any], found: dict[Any, Any]) -> None:
    # Ranks that have rows of the same parameters skip a step together.
    groups = {shard.group for g in grads if (shard := shard_of(g)) is not None}
    for group in groups:
        if group.size() > 1:
            for value in found.values():
                collectives.all_reduce(value, ReduceOp.MAX, group)


def unscale_loop() -> Any:
    """The compiled loop: ``g *= factor``, and whether a product is infinite or NaN."""
    from ..framework.kernels.cpu.optim.unscale import unscale

    return unscale


def _unscale_blocks(scaling: Any, g: Any, found: Any) -> None:
    run, *arguments = scaling
    run(*arguments)
    if not g.is_meta:
        g = g.detach()  # sees the present values of a view's base
        run_kernel(_look, found._array, (view_as_real(g) if g.is_complex() else g)._array)


def _look(found: Any, array: Any) -> None:
    if not all(np.isfinite(part).all() for (part,) in blocks([array], LOOKED_AT)):
        found[0] = 1


def _unscale(g: Any, factor: float, found: Any) -> None:
    for (part,) in tiles(g):
        part.mul_(factor)
        found.copy_(found.maximum(part.isfinite().logical_not_().any()))


def _any(found: dict[Any, Any]) -> bool:
    return any(bool(value_or_hint(f, False)) for f in found.values() if not f.is_meta)


def _rounded(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _has_cuda() -> bool:
    from ..framework.devices.cuda import device_count

    return device_count() > 0
