"""``python -m lowtide``: the lowtide command without an installed script."""

from lowtide.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
