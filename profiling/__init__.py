"""Profiling: what the bytes of a step are, when, and whose."""

if __name__ == "profiling":  # found through the root on sys.path; Python 3.15 wants its own
    import os as _os

    __path__.append(_os.path.join(_os.path.dirname(_os.__file__), "profiling"))
