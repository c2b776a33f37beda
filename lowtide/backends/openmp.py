"""OpenMP, which lowtide does not use: lowtide's threads are its own."""


def is_available() -> bool:
    """False: lowtide's threads are its own."""
    return False
