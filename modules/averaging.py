"""Weight averaging over training: the mean (SWA), or an exponential moving average (EMA).

Users know them as ``lowtide.optim.swa_utils``. They live here because an average of a module is a
module; the face puts them there. Averages are updated in place, a tile of a parameter at a time:
an update allocates nothing as large as a parameter.

Source: Izmailov et al. 2018 for SWA; the functions' names and signatures are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from copy import deepcopy
from itertools import chain
from typing import Any

from ..framework.dtypes import int64
from ..framework.interrupts import defer_interrupts
from ..framework.kernels.formula.update import update
from ..framework.modes import live_call, no_grad
from ..framework.ops.creation.fill import zeros
from ..framework.tensor import Tensor
from ..framework.updates import planned_updates
from .batchnorm import _BatchNorm
from .lazy import is_lazy
from .module import Module

Tensors = list[Tensor]


class AveragedModel(Module):
    """A copy of a model whose parameters are a running average of the model's.

    The first ``update_parameters`` copies; each later one averages. Memory: one copy of the model's
    parameters and buffers.

    Args:
        model: Copied.
        device: Where the copy goes; default: where the model is.
        avg_fn: ``(averaged, current, number of averages) -> new average``, for one tensor. Default:
            the mean of all.
        multi_avg_fn: The same for lists of tensors, in place.
        use_buffers: Average the buffers too; else they are copied at each update.

    Attributes:
        module: The copy.
        n_averaged: How many models are in the average, a buffer.

    Raises:
        AssertionError: Both functions are given.
        ValueError: A lazy layer of the model has not run.
    """

    n_averaged: Tensor
    _captured_live: tuple[str, ...] = ()  # replays of compiled functions update it anew

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None,
        multi_avg_fn: Callable[[Tensors, Tensors, Any], None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided.")
        for name, t in _all_tensors(model):
            if is_lazy(t):
                raise ValueError(
                    f"AveragedModel: {name!r} of the model has no shape yet. Run the model once on "
                    "a batch, then average it."
                )
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", zeros((), dtype=int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the averaged model."""
        return self.module(*args, **kwargs)

    @live_call
    def update_parameters(self, model: Module) -> None:
        """Update the average with the present parameters of ``model``.

        All of them or none, if it raises; a ``multi_avg_fn`` of the user's writes for itself,
        before buffers and counter move. With ``avg_fn`` the new averages lie beside the old ones
        first.

        Raises:
            ValueError: ``model`` has more or fewer parameters or buffers than the average, or of
                another shape.
        """
        _need_alike(self.module, model)
        ours, theirs = self._tensors(self.module), self._tensors(model)
        buffers = list(self.module.buffers()), list(model.buffers())
        count = int(self.n_averaged)
        update = self.multi_avg_fn or get_swa_multi_avg_fn()
        writes: list[tuple[Any, ...]] = []
        with no_grad():
            theirs = [t.to(o.device) for o, t in zip(ours, theirs, strict=True)]
            if not self.use_buffers:
                for averaged, current in zip(*buffers, strict=True):
                    writes.append((averaged.detach().copy_, current.detach().to(averaged.device)))
            pairs = list(zip(ours, theirs, strict=True))
            if count == 0:
                writes += [(averaged.copy_, current) for averaged, current in pairs]
            elif self.avg_fn is not None:
                for averaged, current in pairs:
                    n = self.n_averaged.to(averaged.device)
                    new = self.avg_fn(averaged, current, n).to(averaged.device)
                    writes.append((averaged.copy_, new.expand(averaged.shape)))
            elif isinstance(update, _MovingAverage):
                share = update.share(count)
                writes += _moving(pairs, share)
            else:
                for group_of_ours, group_of_theirs in _alike(ours, theirs):
                    update(group_of_ours, group_of_theirs, self.n_averaged)
            with defer_interrupts():
                for write, *arguments in writes:
                    write(*arguments)
                self.n_averaged.add_(1)

    def _tensors(self, model: Module) -> Tensors:
        found = chain(model.parameters(), model.buffers() if self.use_buffers else ())
        return [t.detach() for t in found]


def _all_tensors(model: Module) -> Iterable[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def _need_alike(averaged: Module, model: Module) -> None:
    # By order, as PyTorch pairs them: a model may be wrapped, and its names be others.
    for what in ("parameters", "buffers"):
        mine, theirs = (dict(getattr(m, f"named_{what}")()) for m in (averaged, model))
        if len(mine) != len(theirs):
            where, more = "model", [n for n in theirs if n not in mine]
            if len(mine) > len(theirs):
                where, more = "average", [n for n in mine if n not in theirs]
            raise ValueError(
                f"AveragedModel.update_parameters: the average has {len(mine)} {what}, the model "
                f"{len(theirs)}; only the {where} has {', '.join(map(repr, more[:5]))}. Make the "
                f"average after the model has all its {what}, or register them in both: "
                "average.module is the copy."
            )
        for (name, a), b in zip(mine.items(), theirs.values(), strict=True):
            if a.shape != b.shape:
                raise ValueError(
                    f"AveragedModel.update_parameters: {name!r} has shape {tuple(a.shape)} in the "
                    f"average and {tuple(b.shape)} in the model. Make the average after the model "
                    "has its final shapes."
                )


def _need_as_many(name: str, what: str, averaged: Sized, current: Sized) -> None:
    if len(averaged) != len(current):
        raise ValueError(
            f"{name}: the average has {len(averaged)} {what}, the model {len(current)}. Pass a "
            "model of the same structure, or make the average anew."
        )


def _alike(ours: Tensors, theirs: Tensors) -> list[tuple[Tensors, Tensors]]:
    # Lists of one device and dtype each, which functions over lists may rely on.
    groups: dict[Any, tuple[Tensors, Tensors]] = {}
    for averaged, current in zip(ours, theirs, strict=True):
        mine, other = groups.setdefault((averaged.device, averaged.dtype), ([], []))
        mine.append(averaged)
        other.append(current)
    return list(groups.values())


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the running statistics of a model's BatchNorm layers from data.

    If the loader or the model raises, the statistics are what they were.

    Args:
        loader: Batches: a tensor, or a list or tuple that begins with one.
        model: Its mode is restored at the end.
        device: Where batches are moved first.
    """
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    buffers = [b for layer in momenta for b in layer.buffers(recurse=False)]
    before = [b.detach().clone() for b in buffers]
    try:
        model.train()
        for layer in momenta:
            layer.reset_running_stats()
            layer.momentum = None  # which means: the mean of all batches
        with no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                model(x if device is None else x.to(device))
    except BaseException:
        with defer_interrupts(), no_grad():
            for b, value in zip(buffers, before, strict=True):
                b.copy_(value)
        raise
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        model.train(was_training)


class _MovingAverage:
    """Moves averages toward current values by a share that depends on their number."""

    def __init__(self, share: Callable[[int], float]) -> None:
        self.share = share

    def __call__(self, averaged: Tensors, current: Tensors, num_averaged: Any) -> None:
        _need_as_many("multi_avg_fn", "tensors", averaged, current)
        share = self.share(int(num_averaged))
        writes = _moving(list(zip(averaged, current, strict=True)), share)
        with defer_interrupts():
            for write, *arguments in writes:
                write(*arguments)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[Tensors, Tensors, Any], None]:
    """Return the in-place EMA update ``decay average + (1 - decay) current`` of several tensors.

    Raises:
        ValueError: ``decay`` is outside [0, 1].
    """
    _check_decay(decay)
    return _MovingAverage(lambda _: 1 - decay)


def get_swa_multi_avg_fn() -> Callable[[Tensors, Tensors, Any], None]:
    """Return the in-place update of the mean of several tensors."""
    return _MovingAverage(lambda count: 1 / (count + 1))


def get_ema_avg_fn(decay: float = 0.999) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Return the EMA update ``decay average + (1 - decay) current``.

    Raises:
        ValueError: ``decay`` is outside [0, 1].
    """
    _check_decay(decay)

    def ema_update(averaged: Any, current: Any, num_averaged: Any) -> Any:
        return averaged * decay + current * (1 - decay)

    return ema_update


def get_swa_avg_fn() -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Return the update of the mean."""

    def swa_update(averaged: Any, current: Any, num_averaged: Any) -> Any:
        return averaged + (current - averaged) / (int(num_averaged) + 1)

    return swa_update


def _check_decay(decay: float) -> None:
    if decay < 0 or decay > 1:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )


@no_grad()
def _moving(pairs: list[tuple[Any, Any]], share: float) -> list[tuple[Any, ...]]:
    # The calls that move averages toward current values. On the CPU they take no memory, but for
    # integers, which are rounded down, as a copy does.
    exact = [(a, b) for a, b in pairs if not a.dtype.is_differentiable]
    calls = [(a.copy_, a + (b - a) * share) for a, b in exact]
    others = [(a, b) for a, b in pairs if a.dtype.is_differentiable]
    return calls + planned_updates(move, others, {"share": share})


@update
def move(averaged: Any, current: Any, *, share: Any) -> Any:
    """``averaged += share (current - averaged)``."""
    return averaged + share * (current - averaged)
