"""The CPU's instructions."""


def get_cpu_capability() -> str:
    """Return "DEFAULT": Numba and NumPy choose instructions by themselves."""
    return "DEFAULT"
