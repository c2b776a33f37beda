"""The version that stands for PyTorch's: a text that compares as versions do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from lowtide import __version__ as _own

PYTORCH = "2.13.0"  # whose names, defaults and semantics these are

_FORM = re.compile(
    r"\s*v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_n>\d*))?"
    r"(?:-(?P<post_bare>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*",
    re.IGNORECASE,
)
_PRE = {"alpha": "a", "beta": "b", "preview": "rc", "pre": "rc", "c": "rc"}
_FIRST, _LAST = (-1,), (1 << 30,)  # before and after all numbers


def order_of(version: str) -> tuple[Any, ...] | None:
    """Return what orders a version among others by the rules of PEP 440; None if it is none."""
    found = _FORM.fullmatch(version)
    if found is None:
        return None
    release = tuple(int(part) for part in found["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    has_post = bool(found["post"] or found["post_bare"])
    post = (int(found["post_n"] or found["post_bare"] or 0),) if has_post else _FIRST
    dev = (int(found["dev_n"] or 0),) if found["dev"] else _LAST
    if found["pre"]:
        letter = found["pre"].lower()
        pre: tuple[Any, ...] = (ord(_PRE.get(letter, letter)[0]), int(found["pre_n"] or 0))
    else:  # 1.0.dev1 comes before 1.0a1, and that before 1.0
        pre = _FIRST if found["dev"] and not has_post else _LAST
    local = [
        (1, int(part), "") if part.isdigit() else (0, 0, part)
        for part in re.split(r"[-_.]", (found["local"] or "").lower())
        if part
    ]
    return int(found["epoch"] or 0), release, pre, post, dev, tuple(local)


class TorchVersion(str):
    """A version as text, which compares with versions, texts and tuples as versions do.

    ``TorchVersion("2.13.0") > "2.9"`` and ``> (2, 9)``, where texts would say no. A text that is no
    version is compared as text. Any object whose ``str`` is a version, such as those of the library
    packaging, is one too.
    """

    __slots__ = ()

    def _compared(self, other: Any, name: str) -> Any:
        if not isinstance(other, str):
            parts = isinstance(other, Iterable)
            other = ".".join(str(part) for part in other) if parts else str(other)
        own, theirs = order_of(str(self)), order_of(other)
        if own is None or theirs is None:
            return getattr(str, name)(self, other)
        return getattr(own, name)(theirs)

    __hash__ = str.__hash__


def _comparison(name: str) -> Callable[[TorchVersion, Any], Any]:
    def compare(self: TorchVersion, other: Any) -> Any:
        return self._compared(other, name)

    compare.__name__ = name
    return compare


for _name in ("__lt__", "__le__", "__eq__", "__ne__", "__ge__", "__gt__"):
    setattr(TorchVersion, _name, _comparison(_name))

__version__ = TorchVersion(f"{PYTORCH}+lowtide{_own}")
