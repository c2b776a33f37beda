"""Samplers: the order in which samples are visited, with resumable state.

A shuffled order is a function of the generator's seed and offset when the epoch began, so that is
what a state holds, with the number of indices taken: three integers, whatever the data set's size.
The order itself is drawn at the beginning of an epoch and takes 8 bytes an index.

Every sampler here has ``state_dict`` and ``load_state_dict``. The state is that of the latest
iteration; after loading it, the next iteration goes on from there, and the ones after it are new
epochs. :class:`SamplerIterator` gives the same to samplers of one's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ..distributed.process_group import get_rank, get_world_size
from ..dtypes import float64, int64
from ..memory.ledger import INPUT, TEMPORARY
from ..ops.creation.fill import empty
from ..ops.creation.from_data import as_tensor
from ..ops.random.distributions import multinomial
from ..ops.random.draw import randint, randperm
from ..random.generator import Generator, default_generator
from ..tensor import Tensor

T_co = TypeVar("T_co", covariant=True)
_AT_ONCE = 4096  # indices turned into Python integers at a time
_AT_MOST = 1 << 22  # indices drawn before the first is used


class Sampler(Generic[T_co]):
    """Base class of samplers: ``__iter__`` yields indices, or lists of them."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__.")


def place_of(g: Generator) -> list[int]:
    """Return the seed and offset of a generator."""
    return [g.initial_seed(), g.get_offset()]


def at_place(place: Sequence[int], g: Generator | None = None) -> Generator:
    """Set a generator (a new one if None) to a seed and offset."""
    g = Generator() if g is None else g
    g.manual_seed(place[0]).set_offset(place[1])
    return g


class _EpochState:
    """The state of one iteration: where its order was drawn, and how many indices were used."""

    __slots__ = ("begun_at", "taken")

    def __init__(self, begun_at: list[int] | None = None, taken: int = 0) -> None:
        self.begun_at = begun_at
        self.taken = taken


class _Draws:
    """Indices with replacement, drawn ``_AT_ONCE`` at a time, each block at its own place."""

    def __init__(self, n: int, wanted: int, generator: Generator) -> None:
        self.n, self.wanted = n, wanted
        self.begun_at = place_of(generator)
        self._block(generator)
        self.stride = generator.get_offset() - self.begun_at[1]
        blocks = -(-wanted // _AT_ONCE)
        generator.set_offset(self.begun_at[1] + blocks * self.stride)

    def __len__(self) -> int:
        return self.wanted

    def __getitem__(self, part: slice) -> Tensor:
        block, within = divmod(part.start, _AT_ONCE)
        seed, offset = self.begun_at
        drawn = self._block(at_place([seed, offset + block * self.stride]))
        return drawn[within : within + self.wanted - part.start]

    def _block(self, generator: Generator) -> Tensor:
        made: Tensor = randint(self.n, (_AT_ONCE,), generator=generator, dtype=int64, device="cpu")
        return made


class _Ordered(Sampler[int]):
    """Base of samplers that draw the order of an epoch at its start."""

    generator: Generator | None = None
    _course: _EpochState | None = None
    _resumed: _EpochState | None = None

    def _order(self, generator: Generator) -> Tensor | range | _Draws:
        """Draw the indices of a whole epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed.begun_at is not None:
            course = resumed
            order = self._order(at_place(resumed.begun_at))
        else:
            own = self.generator if self.generator is not None else default_generator
            course = _EpochState(place_of(own))
            order = self._order(own)
        self._course = course
        while course.taken < len(order):
            part = order[course.taken : course.taken + _AT_ONCE]
            for index in part if isinstance(part, range) else part.tolist():
                course.taken += 1
                yield index
        if self._course is course:
            self._course = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest iteration as JSON."""
        course = self._resumed or self._course
        return {
            "begun_at": course.begun_at if course else None,
            "taken": course.taken if course else 0,
            "generator": place_of(self.generator) if self.generator is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next iteration continue from a state."""
        begun_at = state_dict["begun_at"]
        self._course = None
        self._resumed = _EpochState([*begun_at], state_dict["taken"]) if begun_at else None
        if self.generator is not None and state_dict["generator"] is not None:
            at_place(state_dict["generator"], self.generator)


class SequentialSampler(_Ordered):
    """Yield indices in order.

    Args:
        data_source: What has a length.
    """

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def _order(self, generator: Generator) -> range:
        return range(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(_Ordered):
    """Yield indices in random order.

    Args:
        data_source: What has a length.
        replacement: Whether an index may come again before all others came.
        num_samples: How many to draw; the length if None.
        generator: Draws the order; the default one if None.

    Raises:
        TypeError: ``replacement`` is no bool.
        ValueError: ``num_samples`` is no positive integer.

    Example:
        >>> order = list(RandomSampler(range(5), generator=Generator().manual_seed(0)))
        >>> sorted(order)
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                "num_samples should be a positive integer value, but got "
                f"num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _order(self, generator: Generator) -> Tensor | _Draws:
        n, wanted = len(self.data_source), self.num_samples
        if self.replacement and wanted > _AT_MOST:
            return _Draws(n, wanted, generator)
        if self.replacement:
            order = randint(n, (wanted,), generator=generator, dtype=int64, device="cpu")
        elif wanted == n:
            order = randperm(n, generator=generator, device="cpu")
        else:  # whole permutations, one after the other
            order = empty(wanted, dtype=int64, device="cpu")
            for start in range(0, wanted, n):
                part = order[start : start + n]
                part.copy_(randperm(n, generator=generator, device="cpu")[: len(part)])
        return _kept(order)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Ordered):
    """Yield given indices in random order.

    Args:
        indices: Which.
        generator: Draws the order; the default one if None.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def _order(self, generator: Generator) -> Tensor:
        return _kept(randperm(len(self.indices), generator=generator, device="cpu"))

    def __iter__(self) -> Iterator[int]:
        for place in super().__iter__():
            yield self.indices[place]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Ordered):
    """Yield indices drawn with given weights.

    Args:
        weights: Of each index; they need not add up to 1.
        num_samples: How many to draw.
        replacement: Whether an index may come again.
        generator: Draws them; the default one if None.

    Raises:
        ValueError: ``num_samples`` is no positive integer, ``replacement`` no bool, or the weights
            not one-dimensional.
    """

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        self.weights = as_tensor(weights, dtype=float64)
        if self.weights.ndim != 1:
            raise ValueError(
                "weights should be a 1d sequence but given weights have shape "
                f"{tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def _order(self, generator: Generator) -> Tensor:
        drawn = multinomial(self.weights, self.num_samples, self.replacement, generator=generator)
        return _kept(drawn)

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(_Ordered):
    """Yield the share of indices of one of several processes.

    Call ``set_epoch`` before each epoch, or every epoch has the same order.

    A state may be loaded by any number of processes: they share what the epoch has left. It is the
    same in all processes that have taken as many indices.

    Args:
        dataset: What has a length.
        num_replicas: How many processes; those of the default process group if None.
        rank: Which of them this is; the rank in the default process group if None.
        shuffle: Whether the order is random, from ``seed`` and the epoch.
        seed: The same in all processes.
        drop_last: Leave out the last indices that do not fill all shares; otherwise the first ones
            fill them, and come twice.

    Raises:
        ValueError: ``rank`` is outside [0, num_replicas); or one is missing, and there is no
            default process group.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        num_replicas = get_world_size() if num_replicas is None else num_replicas
        rank = get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]"
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        n = len(dataset)
        self.num_samples = self._share_of(n)
        self.total_size = self.num_samples * num_replicas
        self._first = 0  # index of the order from which on these processes share it

    def _share_of(self, count: int) -> int:
        if self.drop_last:
            return count // self.num_replicas
        return math.ceil(count / self.num_replicas)

    def _order(self, generator: Generator) -> Tensor | range:
        n, count = len(self.dataset), self.num_replicas
        end = self._first + self._share_of(max(n - self._first, 0)) * count
        places = range(self._first + self.rank, end, count)  # wraps around: see __iter__
        if not self.shuffle or not len(places):
            return places
        order = randperm(n, generator=generator, device="cpu")
        picked = empty(len(places), dtype=int64, device="cpu")
        picked.copy_(order[as_tensor([p % n for p in places], device="cpu")])
        return _kept(picked)

    def __iter__(self) -> Iterator[int]:
        if self._resumed is None:  # the order comes from seed and epoch alone
            self._resumed, self._first = _EpochState([self.seed + self.epoch, 0]), 0
        n = len(self.dataset)
        for index in super().__iter__():
            yield index % n

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which seeds the order."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest iteration, and the epoch."""
        shared = {"first": self._first, "num_replicas": self.num_replicas}
        return {**super().state_dict(), "epoch": self.epoch, **shared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next iteration continue from a state, of any number of processes."""
        super().load_state_dict(state_dict)
        self.epoch, self._first = state_dict["epoch"], state_dict.get("first", 0)
        before = state_dict.get("num_replicas", self.num_replicas)
        if before != self.num_replicas and self._resumed is not None:
            self._first += self._resumed.taken * before
            self._resumed.taken = 0


class BatchSampler(Sampler[list[int]]):
    """Yield lists of ``batch_size`` indices of another sampler.

    Args:
        sampler: Yields indices.
        batch_size: How many to a list.
        drop_last: Leave out a last list that is shorter.

    Raises:
        ValueError: ``batch_size`` is no positive integer, or ``drop_last`` no bool.

    Example:
        >>> list(BatchSampler(range(5), 2, False))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                "batch_size should be a positive integer value, but got "
                f"batch_size={batch_size}. batch_size=None of a DataLoader makes no batches."
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._walk: SamplerIterator[int] | None = None
        self._resumed: SamplerIterator[int] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        walk = self._walk = self._resumed or SamplerIterator(self.sampler)
        self._resumed = None
        batch: list[int] = []
        for index in walk:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch
        if self._walk is walk:
            self._walk = None

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest iteration as JSON."""
        return {"walk": (self._resumed or self._walk or SamplerIterator(self.sampler)).state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next iteration continue from a state."""
        self._walk, self._resumed = None, SamplerIterator(self.sampler, state_dict["walk"])


class SamplerIterator(Generic[T_co]):
    """A resumable iterator over any sampler.

    A sampler with ``state_dict`` and ``load_state_dict`` is resumed by them. Any other is run again
    from its beginning, with the default generator as it was then, past what was taken.

    Args:
        sampler: An iterable of indices or of lists of them; asked for its iterator when the first
            item is.
        state: Of an earlier walk.
    """

    def __init__(self, sampler: Iterable[T_co], state: dict[str, Any] | None = None) -> None:
        self._sampler = sampler
        self._taken = 0
        self._begun_at: list[int] | None = None
        self._iterator: Iterator[T_co] | None = None
        self._ended = False  # past its last item, in an epoch that is not over yet
        own = None if state is None else state["sampler"]
        if own is not None and _has_state(sampler):
            sampler.load_state_dict(own)  # type: ignore[attr-defined]
        if state is not None and state["ended"]:
            self._iterator, self._ended = iter(()), True
        elif own is None and state is not None and state["taken"]:
            self._replay(state["taken"], state["begun_at"])

    def _replay(self, taken: int, begun_at: list[int]) -> None:
        now = place_of(default_generator)
        at_place(begun_at, default_generator)
        try:
            self._iterator = iter(self._sampler)
            self._begun_at = begun_at
            for _ in range(taken):
                next(self._iterator, None)
        finally:
            at_place(now, default_generator)
        self._taken = taken

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        if self._iterator is None:
            self._begun_at = place_of(default_generator)
            self._iterator = iter(self._sampler)
        try:
            item = next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
        self._taken += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON."""
        if _has_state(self._sampler):
            own = self._sampler.state_dict()  # type: ignore[attr-defined]
            return {"sampler": own, "taken": 0, "begun_at": None, "ended": self._ended}
        taken, begun_at = self._taken, self._begun_at
        return {"sampler": None, "taken": taken, "begun_at": begun_at, "ended": self._ended}


def _has_state(sampler: Any) -> bool:
    methods: tuple[Callable[..., Any] | None, ...] = (
        getattr(sampler, "state_dict", None),
        getattr(sampler, "load_state_dict", None),
    )
    return all(map(callable, methods))


def _kept(order: Tensor) -> Tensor:
    if order._storage.role == TEMPORARY:
        order._storage.set_role(INPUT)
    return order
