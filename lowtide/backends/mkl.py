"""Intel's MKL, which lowtide does not use: lowtide's matrix products are NumPy's BLAS."""


def is_available() -> bool:
    """False: lowtide's matrix products are NumPy's BLAS."""
    return False
