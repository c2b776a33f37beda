"""What a report of a bug says of a machine: ``lowtide doctor`` in a function."""

from __future__ import annotations

import contextlib
import io

from lowtide.doctor_command import doctor as _doctor


def get_pretty_env_info() -> str:
    """Return versions, devices, threads and memory as text."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        _doctor()
    return text.getvalue()


def main() -> None:
    """Print it."""
    print(get_pretty_env_info())


if __name__ == "__main__":
    main()
