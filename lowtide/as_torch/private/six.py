"""``torch._six``, which PyTorch itself has dropped: names from the days of Python 2."""

import collections.abc as container_abcs
from math import inf as inf
from math import nan as nan

string_classes = (str, bytes)
int_classes = int
FileNotFoundError = FileNotFoundError
PY3 = True
PY37 = True

__all__ = [
    "PY3",
    "PY37",
    "FileNotFoundError",
    "container_abcs",
    "inf",
    "int_classes",
    "nan",
    "string_classes",
]
