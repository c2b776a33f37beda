"""Random generators: counter-based, with the same numbers on every device.

``philox.py`` has the stream itself. Here is who draws from it: a generator's state is two integers,
a seed and an offset, and a draw always starts at a fresh counter. Each device has a default one;
``manual_seed`` sets them all.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import int64, uint8
from ..interrupts import WholeContext
from ..memory.ledger import INPUT
from ..modes import local
from ..spec import Spec
from ..tensor import wrap
from .philox import MASK64, Rng

STATE_BYTES = 16  # of seed and offset

_UNSEEDED = 67280421310721  # PyTorch's seed of a Generator that was given none


class Generator:
    """A random number generator whose whole state is a seed and an offset.

    Args:
        device: For which device's tensors it draws; the stream does not depend on it.

    Example:
        >>> g = Generator().manual_seed(7)
        >>> g.draw(10), g.draw(1)
        (Rng(seed=7, offset=0), Rng(seed=7, offset=3))
    """

    __slots__ = ("__weakref__", "_lock", "_offset", "_seed", "device")

    def __init__(self, device: Any = "cpu") -> None:
        self.device = _device(device)
        self._seed = _UNSEEDED
        self._offset = 0
        self._lock = threading.Lock()

    def draw(self, n: int) -> Rng:
        """Reserve ``n`` words of the stream; the next draw starts at a fresh counter."""
        with self._lock:
            start = self._offset
            self._offset = (start + (n + 3) // 4) & MASK64
            return Rng(self._seed, start)

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed (any integer of -2**63 .. 2**64 - 1) and restart the stream."""
        self._set(_checked_seed(seed), 0)
        return self

    def seed(self) -> int:
        """Set a fresh random seed and return it."""
        self._set(secrets.randbits(63), 0)
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed of the present stream."""
        return self._seed

    def get_offset(self) -> int:
        """Return the offset: the next counter of the stream."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Set the offset: the next counter of the stream."""
        self._set(self._seed, offset & MASK64)

    def get_state(self) -> Any:
        """Return the state, a uint8 tensor of shape (16,).

        It is the bytes of seed and offset, two little-endian 64-bit integers. So a state survives
        what programs do with PyTorch's: ``.byte()``, ``.cpu()``, and being saved as bytes.
        """
        with self._lock:
            words = np.array([self._seed, self._offset], "<u8")
        spec = Spec((STATE_BYTES,), uint8, device("cpu"))
        storage, array = backend(spec.device).from_host(words.view(np.uint8), spec, INPUT)
        state = wrap(array, spec, storage)
        if local.state.inference:
            state._extra = {"inference": True}
        return state

    def set_state(self, state: Any) -> Generator:
        """Restore the state that ``get_state`` returned.

        Args:
            state: A uint8 tensor of shape (16,). An int64 tensor of shape (2,) of seed and offset,
                which earlier versions returned, is read too.

        Raises:
            RuntimeError: ``state`` is neither.
            TypeError: It is no tensor.
        """
        if not hasattr(state, "dtype") or not hasattr(state, "tolist"):
            raise TypeError(
                f"set_state takes the tensor that get_state returned; got {type(state).__name__}."
            )
        values, shape = state.tolist(), tuple(state.shape)
        if state.dtype is uint8 and shape == (STATE_BYTES,):
            raw = bytes(values)
            seed, offset = (int.from_bytes(raw[k : k + 8], "little") for k in (0, 8))
        elif state.dtype is int64 and shape == (2,):
            seed, offset = (value & MASK64 for value in values)
        else:
            raise RuntimeError(
                f"set_state takes what get_state returned, {STATE_BYTES} bytes (uint8); got "
                f"{state.dtype} of shape {shape}. A state of PyTorch's generator has no meaning "
                "here: seed with manual_seed."
            )
        self._set(seed, offset)
        return self

    def clone_state(self) -> Generator:
        """Return a copy of the generator with the same state."""
        twin = Generator(self.device)
        with self._lock:
            twin._seed, twin._offset = self._seed, self._offset
        return twin

    def _set(self, seed: int, offset: int) -> None:
        capture = local.state.capture
        if capture is not None:
            capture.refuse("it sets the state of a random generator")
        with self._lock:
            self._seed, self._offset = seed, offset

    def __getstate__(self) -> Any:
        return str(self.device), self._seed, self._offset

    def __setstate__(self, state: Any) -> None:
        self.device = _device(state[0])
        self._lock = threading.Lock()
        self._seed, self._offset = state[1], state[2]

    def __repr__(self) -> str:
        return f"<Generator on {self.device}: seed {self._seed}, offset {self._offset}>"


Position = tuple[Generator, int, int]


def positions_of(generators: Iterable[Generator]) -> list[Position]:
    """Return where each generator is in its stream, for :func:`put_back`."""
    return [(g, g._seed, g._offset) for g in generators]


def put_back(positions: Iterable[Position]) -> None:
    """Put generators back to where they were."""
    for g, seed, offset in positions:
        g._seed, g._offset = seed, offset


def _device(d: Any) -> device:
    return device(d)


def _checked_seed(value: Any) -> int:
    try:
        seed = int(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"manual_seed: a seed is an integer; got {value!r}.") from None
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"a seed must fit 64 bits (Overflow when unpacking long); got {seed}.")
    return seed & MASK64


_generators: dict[device, Generator] = {}
_first_seed: list[int] = []  # what generators of devices not met yet start with


def generator_of(d: device) -> Generator:
    """Return the default generator of a device.

    All start with the same seed, so the first draw is the same on every device.
    """
    found = _generators.get(d)
    if found is None:
        if not _first_seed:
            _first_seed.append(secrets.randbits(63))
        found = _generators.setdefault(d, Generator(d).manual_seed(_first_seed[0]))
    return found


def generators_in_use() -> dict[device, Generator]:
    """Return the default generators of all devices that have used theirs."""
    return dict(_generators)


default_generator = generator_of(device("cpu"))


def _after_fork() -> None:
    # Another thread of the parent may have held them.
    for g in _generators.values():
        g._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


inside_vmap: Any = None  # how a draw inside vmap takes its place; vmap/draws.py sets it


def draw(n: int, d: device, generator: Generator | None = None) -> Rng:
    """Reserve ``n`` words of a generator, or of the default one of a device.

    Raises:
        RuntimeError: The generator is for another device.
    """
    if generator is None:
        generator = generator_of(d)
        if local.state.levels:
            return inside_vmap(n, generator.draw)  # type: ignore[no-any-return]
        return _drawn(generator, n)
    if not isinstance(generator, Generator):
        raise TypeError(
            f"argument 'generator' must be a lowtide.Generator, not {type(generator).__name__}. "
            "Pass lowtide.Generator().manual_seed(seed)."
        )
    if generator.device.type != d.type and d.type not in ("meta", "sim"):
        raise RuntimeError(
            f"Expected a '{d}' device type for generator but found '{generator.device}'. "
            f"Pass lowtide.Generator({str(d)!r})."
        )
    if local.state.levels:
        return inside_vmap(n, generator.draw)  # type: ignore[no-any-return]
    return _drawn(generator, n)


def _drawn(generator: Generator, n: int) -> Rng:
    capture = local.state.capture
    found: Rng = generator.draw(n) if capture is None else capture.draw(generator, n)
    return found


def manual_seed(seed: int) -> Generator:
    """Set the seed of the default generators of all devices; return the CPU's generator."""
    seed = _checked_seed(seed)
    _first_seed[:] = [seed]
    for g in list(_generators.values()):
        g.manual_seed(seed)
    return default_generator


def seed() -> int:
    """Set a fresh random seed on the default generators, and return it."""
    chosen = secrets.randbits(63)
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """Return the seed of the CPU's default generator."""
    return default_generator.initial_seed()


def get_rng_state(device: Any = "cpu") -> Any:
    """Return the state of a device's default generator, a uint8 tensor of shape (16,)."""
    return generator_of(_device(device)).get_state()


def set_rng_state(new_state: Any, device: Any = "cpu") -> None:
    """Restore the state of a device's default generator that ``get_rng_state`` returned."""
    generator_of(_device(device)).set_state(new_state)


class fork_rng(WholeContext, ContextDecorator):
    """Restore the default generators to their state at the start when the block ends.

    Args:
        devices: Which, beside the CPU's; None means all in use.
        enabled: False makes it do nothing.
    """

    def __init__(self, devices: Iterable[Any] | None = None, enabled: bool = True) -> None:
        self._devices = None if devices is None else [device("cpu"), *map(device, devices)]
        self._enabled = enabled

    def _recreate_cm(self) -> fork_rng:
        return type(self)(self._devices, self._enabled)

    def _enter(self) -> None:
        if self._enabled:
            chosen = (
                dict(_generators)
                if self._devices is None
                else {d: generator_of(d) for d in self._devices}
            )
            self._before = {d: (g._seed, g._offset) for d, g in chosen.items()}
            self._first = _first_seed[:]

    def _leave(self) -> None:
        if self._enabled:
            _first_seed[:] = self._first
            for d, (old_seed, offset) in self._before.items():
                generator_of(d)._set(old_seed, offset)
            if self._devices is None:  # what was met for the first time inside starts afresh
                for d in _generators.keys() - self._before.keys():
                    _generators[d].manual_seed(self._first[0])
