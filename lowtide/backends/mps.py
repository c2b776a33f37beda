"""Apple's GPUs, which lowtide does not run on."""


def is_available() -> bool:
    """False: there is no such device."""
    return False


def is_built() -> bool:
    """False: there is no such device."""
    return False
