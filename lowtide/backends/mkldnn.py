"""oneDNN, which lowtide does not use: convolutions are lowtide's own."""

enabled: bool = False
allow_tf32: bool = False
deterministic: bool = True


def is_available() -> bool:
    """False: convolutions are lowtide's own."""
    return False
