"""The order of products in ``einsum``: switches of a library that lowtide does not use."""

enabled: bool = False
strategy: str | None = None


def is_available() -> bool:
    """False: lowtide contracts from left to right."""
    return False


def get_opt_einsum() -> None:
    """None: it is not used."""
