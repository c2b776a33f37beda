"""Key-value stores by which processes tell each other things before they have a group."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .transport import DistStoreError

default_timeout = timedelta(seconds=300)


class Table:
    """Keys and values, and what can be done with them in one go.

    Attributes:
        values: By key.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self.values[key] = value

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none."""
        return self.values.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, from 0; return the sum."""
        total = int(self.values.get(key, b"0")) + amount
        self.set(key, str(total).encode())
        return total

    def append(self, key: str, value: bytes) -> None:
        """Write behind what a key has."""
        self.set(key, self.values.get(key, b"") + value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write a value if the key has the expected one, ``b""`` if none; return what it has."""
        if self.values.get(key, b"") == expected:
            self.set(key, desired)
        return self.values.get(key, expected)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return self.values.pop(key, None) is not None

    def list_keys(self) -> list[str]:
        """Return all keys."""
        return list(self.values)


class Store(ABC):
    """Base of the key-value stores: keys are str, values bytes."""

    def __init__(self) -> None:
        self.timeout = default_timeout

    @abstractmethod
    def _run(self, name: str, *args: Any) -> Any:
        """Call a method of the table, in one go."""

    @abstractmethod
    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        """Wait until all keys are there; return whether they are."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._run("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value; wait for it if there is none yet.

        Raises:
            DistStoreError: There was none until the timeout.
        """
        found = self._run("get", key)
        while found is None:  # deleted by another process, after it was waited for
            self.wait([key])
            found = self._run("get", key)
        return found  # type: ignore[no-any-return]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, from 0; return the sum."""
        return self._run("add", key, int(amount))  # type: ignore[no-any-return]

    def append(self, key: str, value: str | bytes) -> None:
        """Write behind what a key has."""
        self._run("append", key, _bytes(value))

    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        """Write a value if the key has the expected one, ``""`` if none; return what it has."""
        given = _bytes(expected_value), _bytes(desired_value)
        return self._run("compare_set", key, *given)  # type: ignore[no-any-return]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._run("check", list(keys))  # type: ignore[no-any-return]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Args:
            keys: The keys.
            timeout: How long; that of the store if None.

        Raises:
            DistStoreError: They were not until the timeout.
        """
        limit = self.timeout if timeout is None else timeout
        if not self._await(list(keys), limit):
            missing = [key for key in keys if not self.check([key])]
            raise DistStoreError(
                f"{type(self).__name__}: no process has set {missing or list(keys)} in "
                f"{limit.total_seconds():g} s."
            )

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until so many processes have called it with the same key.

        Raises:
            DistStoreError: They had not until the timeout.
        """
        if self.add(f"{key}/count", 1) == world_size:
            self.set(f"{key}/complete", b"1")
        self.wait([f"{key}/complete"], timeout)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return self._run("delete_key", key)  # type: ignore[no-any-return]

    def list_keys(self) -> list[str]:
        """Return all keys."""
        return self._run("list_keys")  # type: ignore[no-any-return]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self.list_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long ``get`` and ``wait`` wait."""
        self.timeout = timeout

    def has_extended_api(self) -> bool:
        """True: ``append`` and the methods of several keys are there."""
        return True

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several values.

        Raises:
            ValueError: There are more of one than of the other.
        """
        if len(keys) != len(values):
            raise ValueError(f"Store.multi_set: {len(keys)} keys and {len(values)} values.")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class HashStore(Store):
    """Store in the memory of this process. It waits for nothing: no other process could write."""

    def __init__(self) -> None:
        super().__init__()
        self._table = Table()

    def _run(self, name: str, *args: Any) -> Any:
        return getattr(self._table, name)(*args)

    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        if not self.check(keys):
            missing = [key for key in keys if not self.check([key])]
            raise DistStoreError(
                f"HashStore: no key {missing[0]!r}, and no other process that could set it; it has "
                f"{sorted(self.list_keys())}."
            )
        return True


class PrefixStore(Store):
    """Store that writes a prefix before every key of another one."""

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__()
        self.underlying_store = store
        self.timeout = store.timeout
        self._prefix = f"{prefix}/"

    def _run(self, name: str, *args: Any) -> Any:
        if name == "list_keys":
            every = self.underlying_store.list_keys()
            cut = len(self._prefix)
            return [key[cut:] for key in every if key.startswith(self._prefix)]
        first, *rest = args
        if isinstance(first, str):
            return self.underlying_store._run(name, self._prefix + first, *rest)
        return self.underlying_store._run(name, [self._prefix + key for key in first], *rest)

    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        return self.underlying_store._await([self._prefix + key for key in keys], timeout)


class Deadline:
    """A moment until which something is waited for."""

    def __init__(self, timeout: timedelta) -> None:
        self._end = time.monotonic() + timeout.total_seconds()

    @property
    def left(self) -> float:
        """Seconds until then, at least 0."""
        return max(0.0, self._end - time.monotonic())


def is_owner(process: int) -> bool:
    """Whether this is the process with that number, and no fork of it."""
    return os.getpid() == process


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
