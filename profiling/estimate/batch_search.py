"""Search for the largest batch that fits, by estimates of the step with other numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator

from . import suggested_code
from .advice_request import AdviceRequest
from .changes import Budgeted, Change
from .proposals import Proposal, listed

MOST_SIZES = 8  # of batches that are tried
FURTHER = 64  # times as many rows are tried at most, from one estimate to the next
MOST_ADDED = 0.5  # operations of a larger batch in a byte budget, as a share of those without
ROOM = 32  # of a byte budget, the part that a larger batch leaves free
MOST_LARGER = 2  # ways to a larger batch, of those that keep the dtype, and of others


def smaller_batch(request: AdviceRequest) -> Iterator[Proposal]:
    """Propose the largest smaller batch that fits."""
    size = request.batch[0]
    if size < 2:
        request.untried["a smaller batch"] = (
            "no tensors with a common leading dimension among the step's arguments and variables"
        )
        return
    found = fitting_batch(request, [], "batch", 0, 0, size, request.peak)
    if found is not None:
        yield found


def larger_batches(request: AdviceRequest, found: list[Proposal]) -> list[Proposal]:
    """Propose the largest batch, for the step as it is and with the changes that save most."""
    size = request.batch[0]
    if size < 1:
        request.untried.setdefault(
            "a larger batch",
            "no tensors with a common leading dimension among the step's arguments and variables",
        )
        return []
    ways: list[tuple[str, list[Change], int, str]] = []
    if request.peak <= request.limit:
        ways.append(("", [], request.peak, ""))
    budget = Budgeted(request.limit, request.device)
    tight = Budgeted(request.limit - request.limit // ROOM, request.device)
    code = suggested_code.budget(request.limit, request.device)
    ways.append((budget.words, [tight], request.peak, code))
    helpful = [p for p in found if p.fits and p.saved_bytes > 0 and not p.lost and p.batch is None]
    helpful = [p for p in helpful if p.kind != "budget"]
    helpful.sort(key=lambda p: p.peak_bytes)
    exact = [p for p in helpful if p.time is not None]  # of the same dtype as before
    narrow = [p for p in helpful if p.time is None]
    for p in [*exact[:MOST_LARGER], *narrow[:MOST_LARGER]]:
        ways.append((p.change, request.made[p.change], p.peak_bytes, p.code))
    more: list[Proposal] = []
    for words, changes, peak, code in ways:
        best = fitting_batch(request, changes, "larger batch", size, peak, 0, 0, words, code)
        if best is not None and best.fits and best.batch is not None and best.batch > size:
            more.append(best)
    return sorted(more, key=lambda p: -(p.batch or 0))


def fitting_batch(
    request: AdviceRequest,
    changes: list[Change],
    kind: str,
    low: int,
    low_peak: int,
    high: int,
    high_peak: int,
    words: str = "",
    code: str = "",
) -> Proposal | None:
    """Find the largest batch that fits.

    Args:
        request: Of which step.
        changes: What else is changed.
        kind: Of the proposal.
        low: A number of rows that fits; 0 if none is known.
        low_peak: The peak with it.
        high: One that does not fit; 0 if none is known.
        high_peak: The peak with it.
        words: What else is changed, in words.
        code: And as code.

    Returns:
        The largest found; if none fits, the smallest tried; None if the step does not run so.
    """
    size, named = request.batch
    budgeted = any(isinstance(change, Budgeted) for change in changes)  # its peak says nothing
    best: Proposal | None = None
    first, each = 1, 0.0  # bytes of a further row, once two that fit are known
    for tries in range(MOST_SIZES):
        if high and high - low < 2:
            break
        if budgeted:
            n = (low + high) // 2 if high else 2 * low
        elif low and not high:  # twice as many; then as a straight line through both says
            line = low + int((request.limit - low_peak) / each) if each > 0 else 2 * low
            n = min(max(line, low + 1), FURTHER * low)
        else:
            n = _next_size(request.limit, low, low_peak, high, high_peak, first, tries)
        said = f"batch of {n} instead of {size} ({listed(list(named))})"
        said = f"{words} + {said}" if words else said
        parts = [code, suggested_code.batch(named, size, n, request.drawn)]
        if budgeted:  # around all that follows
            parts.reverse()
        lines = "\n".join(filter(None, parts))
        found = request.attempt(kind, said, [*changes, request.resized(n)], n, lines)
        if found is None:
            if n > 1 or size == 2:
                return best
            first = 2  # normalization over a batch wants two
            del request.untried[said]
        elif budgeted and found.flops > MOST_ADDED:
            high = n
        elif found.fits:
            each = (found.peak_bytes - low_peak) / (n - low)
            low, low_peak, best = n, found.peak_bytes, found
        else:
            high, high_peak = n, found.peak_bytes
            best = best or found
    return best


def _next_size(
    limit: int, low: int, low_peak: int, high: int, high_peak: int, first: int, tries: int
) -> int:
    # Bytes mostly grow in proportion, so a straight line finds the place; halves if not.
    if low == 0:
        return min(first, high - 1)
    if tries < MOST_SIZES // 2:
        line = (limit - low_peak) * (high - low) // max(high_peak - low_peak, 1)
        return min(max(low + line, low + 1), high - 1)
    return (low + high) // 2
