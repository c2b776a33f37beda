"""NNPACK, which lowtide does not use: convolutions are lowtide's own."""


def is_available() -> bool:
    """False: convolutions are lowtide's own."""
    return False


def set_flags(_enabled: bool) -> tuple[bool]:
    """Accept a switch; it was off and stays so."""
    return (False,)
