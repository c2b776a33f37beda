"""Fit table: the largest batch of each model under each limit, in the first step and in later ones.

Each answer is found as ``advise`` finds a batch, from estimates in forked copies of the process:
nothing is computed, and no model is changed. The step is one of training: gradients set to zero,
forward, the loss, backward, the optimizer.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...framework.memory.ledger import format_bytes
from ...framework.memory.sizes import as_bytes
from ...framework.tensor import Tensor
from .estimate import imagined
from .fork_sandbox import run_apart

MOST_SIZES = 24  # of batches that are tried for a limit
FURTHER = 64  # times as many rows are tried at most, from one estimate to the next


@dataclass(frozen=True)
class Fit:
    """The largest batch of one model under one limit.

    Attributes:
        model: Its name.
        limit_bytes: What may live on the device.
        batch: The most examples with which every step fits; 0 if not even one does.
        first_batch: The most with which the first step fits, before the optimizer has its state.
        first_bytes: The peak of the first step with ``batch``; with one example if none fits.
        steady_bytes: That of later steps.
    """

    model: str
    limit_bytes: int
    batch: int
    first_batch: int
    first_bytes: int
    steady_bytes: int


class FitTable:
    """The result of :func:`fit_table`: print it, or write it as CSV or as a picture.

    Attributes:
        rows: A :class:`Fit` for each model and limit, in the order they were given.
    """

    def __init__(self, rows: list[Fit]) -> None:
        self.rows = rows

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return list(dict.fromkeys(r.model for r in self.rows))

    @property
    def limits(self) -> list[int]:
        """The limits in bytes, ascending."""
        return sorted({r.limit_bytes for r in self.rows})

    def batch(self, model: str, limit: int | str) -> int:
        """Return the largest batch of a model under a limit that was asked for."""
        nbytes = as_bytes(limit, "FitTable.batch: limit")
        for r in self.rows:
            if (r.model, r.limit_bytes) == (model, nbytes):
                return r.batch
        raise KeyError(
            f"FitTable: no row for {model!r} and {nbytes} bytes; it has {', '.join(self.models)} "
            f"and {', '.join(map(str, self.limits))}."
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.fit_table(self)

    def __str__(self) -> str:
        head = ("model", "limit", "largest batch", "first step alone", "first peak", "later peak")
        lines = [head] + [
            (
                r.model,
                format_bytes(r.limit_bytes),
                str(r.batch) if r.batch else "none fits",
                str(r.first_batch) if r.first_batch else "none fits",
                format_bytes(r.first_bytes),
                format_bytes(r.steady_bytes),
            )
            for r in self.rows
        ]
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0])]
                + [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        )

    def to_csv(self, path: Any = None) -> str:
        """Return the table as CSV with sizes in bytes, and write it to ``path`` if given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["model", "limit_bytes", "batch", "first_batch", "first_bytes", "steady_bytes"]
        writer.writerow(names)
        writer.writerows([getattr(r, name) for name in names] for r in self.rows)
        if path is not None:
            Path(path).write_text(text.getvalue())
        return text.getvalue()

    def plot(self, path: Any) -> None:
        """Draw the largest batch by limit, a bar for each model; PNG, SVG or PDF.

        A dotted outline is what fits the first step alone.
        """
        # matplotlib takes half a second to import, and most tables are printed
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width = 0.8 / max(len(self.models), 1)
        figure = Figure(figsize=(max(7.5, 1.1 / width + 1.5), 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for k, model in enumerate(self.models):
            rows = sorted((r for r in self.rows if r.model == model), key=lambda r: r.limit_bytes)
            at = [self.limits.index(r.limit_bytes) + (k + 0.5) * width - 0.4 for r in rows]
            color = f"C{k % 10}"
            first = [r.first_batch for r in rows]
            axes.bar(at, first, 0.9 * width, fill=False, edgecolor=color, linestyle=":")
            axes.bar(at, [r.batch for r in rows], 0.9 * width, color=color, label=model)
            for x, r in zip(at, rows, strict=True):
                axes.annotate(
                    str(r.batch) if r.batch else "none",
                    (x, r.first_batch),
                    xytext=(0, 3),
                    textcoords="offset points",
                    fontsize=8,
                    ha="center",
                    color=color,
                )
        axes.set_xticks(range(len(self.limits)), [format_bytes(n) for n in self.limits])
        axes.set_yscale("symlog", linthresh=1, base=2)
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.margins(y=0.1)
        axes.set_xlabel("memory limit")
        axes.set_ylabel("largest batch")
        title = "Largest batch that fits every step (dotted: the first step alone)"
        axes.set_title(title, fontsize=11)
        axes.grid(True, axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        figure.savefig(path, dpi=150)


Step = Callable[..., Any]


def fit_table(
    models: Mapping[str, Any] | Sequence[Any] | Any,
    limits: Sequence[int | str] | int | str,
    *,
    batch: Callable[[int], Any],
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    device: Any = None,
) -> FitTable:
    """Find the largest batch of each model under each memory limit.

    Every step of training is to fit: the first, and the later ones, which have the optimizer's
    state beside the activations. What lives before, other models too, counts as it will in the
    real run; so a model may be given as a function that makes it, called in the forked copy.

    Args:
        models: Models by name, or several, or one: modules, or functions without arguments that
            make one.
        limits: Limits in bytes, or as text such as ``"2GiB"``.
        batch: Makes a batch of ``n`` examples: the inputs, or (inputs, targets), where inputs may
            be a tuple of several.
        loss: Called with the model's output and the targets, or with the output alone if there are
            none; by default the sum of squares of the output.
        optimizer: Called with the parameters, as ``optim.AdamW``; None for gradients alone. It may
            be a function: ``lambda p: optim.SGD(p, lr=0.1, momentum=0.9)``.
        device: Whose bytes are meant; the fullest by default.

    Returns:
        A :class:`FitTable`.

    Raises:
        ValueError: No model or no limit is given.
        Exception: What the step raises with one example and with two.

    Example:
        >>> import lowtide as lt
        >>> table = lt.profiling.fit_table(
        ...     {"narrow": lambda: lt.nn.Linear(64, 64), "wide": lambda: lt.nn.Linear(64, 256)},
        ...     ["1MiB"],
        ...     batch=lambda n: lt.randn(n, 64),
        ...     optimizer=lt.optim.AdamW,
        ... )
        >>> table.batch("narrow", "1MiB") > table.batch("wide", "1MiB") > 0
        True
    """
    named = _named(models)
    sizes = [limits] if isinstance(limits, int | str) else list(limits)
    nbytes = [as_bytes(limit, "fit_table: limit") for limit in sizes]
    if not named or not nbytes:
        raise ValueError(
            "fit_table needs a model and a limit: fit_table({'net': net}, ['2GiB'], batch=...)."
        )
    rows = []
    for name, model in named.items():
        peaks = _Peaks(model, batch, loss, optimizer, None if device is None else str(device))
        for limit in nbytes:
            best = peaks.largest(limit, steady=True)
            first = peaks.largest(limit, steady=False)
            at = peaks.of(max(best, 1))
            rows.append(Fit(name, limit, best, first, *(at or (0, 0))))
    return FitTable(rows)


def _named(models: Any) -> dict[str, Any]:
    if isinstance(models, Mapping):
        return dict(models)
    given = list(models) if isinstance(models, list | tuple) else [models]
    found: dict[str, Any] = {}
    for model in given:
        name = getattr(model, "__name__", None) or type(model).__name__
        name = "model" if name == "<lambda>" else name
        found[name if name not in found else f"{name} {len(found) + 1}"] = model
    return found


class _Peaks:
    """The peaks of a model's training steps by the size of the batch, each estimated once."""

    def __init__(self, model: Any, batch: Any, loss: Any, optimizer: Any, device: str | None):
        self.model, self.batch, self.loss = model, batch, loss
        self.optimizer, self.device = optimizer, device
        self.known: dict[int, tuple[int, int] | None] = {}

    def of(self, n: int) -> tuple[int, int] | None:
        """Return the peaks of the first step and of later ones; None if it does not run so."""
        if n not in self.known:
            try:
                self.known[n] = run_apart(lambda: self._estimate(n))
            except (RuntimeError, ValueError):
                if n > 1:  # with one, normalization over the batch may refuse
                    raise
                self.known[n] = None
        return self.known[n]

    def largest(self, limit: int, steady: bool) -> int:
        """Return the most rows that fit a limit."""
        low, low_peak, high, high_peak, each = 0, 0, 0, 0, 0.0
        for tries in range(MOST_SIZES):
            if high and high - low < 2:
                break
            if not high:  # twice as many; then where a straight line through two that fit says
                line = low + int((limit - low_peak) / each) if each > 0 else 2 * low
                n = min(max(line, low + 1), max(FURTHER * low, 1))
            elif tries % 3 < 2:  # bytes mostly grow in proportion; halves if not
                line = low + (limit - low_peak) * (high - low) // max(high_peak - low_peak, 1)
                n = min(max(line, low + 1), high - 1)
            else:
                n = (low + high) // 2
            peaks = self.of(n)
            peak = 0 if peaks is None else max(peaks) if steady else peaks[0]
            if peak > limit:
                high, high_peak = n, peak
            else:
                each = (peak - low_peak) / (n - low) if low_peak else 0.0
                low, low_peak = n, peak
        return low if low and self.of(low) is not None else 0

    def _estimate(self, n: int) -> tuple[int, int]:
        made: dict[str, Any] = {}

        def make() -> None:  # without kernels, as the step
            model = self.model if hasattr(self.model, "parameters") else self.model()
            drawn = self.batch(n)
            pair = isinstance(drawn, tuple) and len(drawn) == 2
            inputs, made["targets"] = drawn if pair else (drawn, None)
            made["inputs"] = inputs if isinstance(inputs, tuple) else (inputs,)
            made["model"] = model
            made["optimizer"] = self.optimizer and self.optimizer(model.parameters())

        def step() -> None:
            model, optimizer = made["model"], made["optimizer"]
            (optimizer or model).zero_grad()
            self._loss(model(*made["inputs"]), made["targets"]).backward()
            if optimizer is not None:
                optimizer.step()

        found = imagined(step, (), {}, make).by_device(self.device)
        return found.peak_bytes, found.steady_bytes

    def _loss(self, out: Any, targets: Any) -> Any:
        if self.loss is not None:
            return self.loss(out) if targets is None else self.loss(out, targets)
        while not isinstance(out, Tensor):
            out = next(iter(out.values() if isinstance(out, dict) else out))
        return out.square().sum()


__all__ = ["Fit", "FitTable", "fit_table"]
