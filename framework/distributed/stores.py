"""Key-value stores by which the processes of a group meet: in the memory of one process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn


class Store:
    """Base of the key-value stores: keys are str, values bytes."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self.timeout = timedelta(seconds=300)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value.

        Raises:
            RuntimeError: there is none. No other process could write it, so nothing is waited for.
        """
        if key not in self._values:
            raise RuntimeError(
                f"Store.get: no key {key!r}, and no other process that could set it; it has"
                f" {sorted(self._values)}."
            )
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, from 0; return the sum."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def append(self, key: str, value: str | bytes) -> None:
        """Write behind what a key has."""
        self._values[key] = self._values.get(key, b"") + (
            value.encode() if isinstance(value, str) else value
        )

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Write a value if the key has the expected one, ``""`` if none; return what it has."""
        if self._values.get(key, b"") == expected_value.encode():
            self._values[key] = desired_value.encode()
        return self._values.get(key, expected_value.encode())

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Check that all keys are there; no other process could write one.

        Raises:
            RuntimeError: one is absent.
        """
        for key in keys:
            self.get(key)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Note a time limit, which nothing here can reach."""
        self.timeout = timeout

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several values."""
        if len(keys) != len(values):
            raise ValueError(f"Store.multi_set: {len(keys)} keys and {len(values)} values.")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class HashStore(Store):
    """Store in the memory of this process."""


class PrefixStore(Store):
    """Store that writes before every key of another one a prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__()
        self._values = _Prefixed(prefix, store._values)
        self.underlying_store = store


class _Prefixed(dict[str, bytes]):
    # A dict so far as a store asks: the other one's entries under a prefix.
    def __init__(self, prefix: str, entries: dict[str, bytes]) -> None:
        super().__init__()
        self._prefix, self._entries = f"{prefix}/", entries

    def __getitem__(self, key: str) -> bytes:
        return self._entries[self._prefix + key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._entries[self._prefix + key] = value

    def __contains__(self, key: object) -> bool:
        return f"{self._prefix}{key}" in self._entries

    def __iter__(self) -> Any:
        return (k.removeprefix(self._prefix) for k in self._entries if k.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, key: str, default: Any = None) -> Any:
        return self._entries.get(self._prefix + key, default)

    def pop(self, key: str, *default: Any) -> Any:
        return self._entries.pop(self._prefix + key, *default)


class _Between(Store):
    """Base of the stores between processes, which meet without one here."""

    def __init__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} is not there: processes meet at an address. Leave `store` out, "
            "and give init_process_group init_method='tcp://host:port' or 'file:///path'."
        )


class TCPStore(_Between):
    """Store behind a socket: refused."""


class FileStore(_Between):
    """Store in a file: refused."""
