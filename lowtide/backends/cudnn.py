"""cuDNN, which lowtide does not use: the switches are accepted and change nothing.

Convolution and attention are matrix products and kernels of lowtide's own.
"""

enabled: bool = False
benchmark: bool = False
deterministic: bool = True
allow_tf32: bool = False


def is_available() -> bool:
    """False: lowtide does not use cuDNN."""
    return False


def version() -> int | None:
    """None: lowtide does not use cuDNN."""
    return None
