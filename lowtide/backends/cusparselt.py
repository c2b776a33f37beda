"""cuSPARSELt, which lowtide does not use: there are no semi-structured tensors."""


def is_available() -> bool:
    """False: there are no semi-structured tensors."""
    return False
