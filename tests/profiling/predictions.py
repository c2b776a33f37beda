"""What a step takes of ledger and pool: predicted without running it, and measured as it runs."""

from __future__ import annotations

from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.profiling import estimate


def predicted(step, where="cpu"):
    """The figures of :func:`measured`, and nothing computed."""
    (d,) = [d for d in estimate(step).devices if d.device == where]
    return {
        "peak": d.peak_bytes,
        "roles": d.peak_roles,
        "end": d.end_bytes,
        "pool": d.reserved_bytes,
        "made": d.allocations,
    }


def measured(step, where="cpu"):
    """The figures of a real step, run once."""
    be = backend(device(where))
    be.ledger.reset_peak()
    be.pool.reset_peak()
    made = be.ledger.allocations
    step()
    return {
        "peak": be.ledger.peak,
        "roles": dict(zip(be.ledger.by_role(), be.ledger.peak_roles, strict=True)),
        "end": be.ledger.live,
        "pool": be.pool.peak,
        "made": be.ledger.allocations - made,
    }
