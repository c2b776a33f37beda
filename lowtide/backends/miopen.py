"""MIOpen, which lowtide does not use: lowtide does not run on AMD's GPUs."""


def is_available() -> bool:
    """False: lowtide does not run on AMD's GPUs."""
    return False
