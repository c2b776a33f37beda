"""Whether several processes train together: for now they do not."""


def is_available() -> bool:
    """False: lowtide runs in one process for now."""
    return False


def is_initialized() -> bool:
    """False: there is no process group."""
    return False
