"""The fast path of ``MultiheadAttention`` in evaluation, which lowtide does not need: a switch."""

_enabled = [True]


def get_fastpath_enabled() -> bool:
    """Return what :func:`set_fastpath_enabled` was told; it changes nothing."""
    return _enabled[0]


def set_fastpath_enabled(value: bool) -> None:
    """Remember a wish; there is one path."""
    _enabled[0] = bool(value)
