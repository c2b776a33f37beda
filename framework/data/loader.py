"""DataLoader: iterate over a dataset in batches, in this process or with workers.

The batches, and their order, do not depend on how many workers there are. A loader has a state:
what makes the epoch's order again, and how many batches were yielded. Batches that workers have
fetched ahead are not part of it: a resumed loader has them fetched again.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

from ..dtypes import int64
from ..interrupts import defer_interrupts, finalizer
from ..ops.random.draw import randint
from ..random.generator import Generator, default_generator
from .collate import claimed, default_collate, default_convert
from .dataset import IterableDataset
from .fetch import FetchConfig, IterableFetcher, MapFetcher
from .sampler import (
    BatchSampler,
    RandomSampler,
    SamplerIterator,
    SequentialSampler,
    at_place,
    place_of,
)
from .workers import BATCH, END, WorkerPool, reraise

_told_of_pinning: list[bool] = []  # once a process: loaders are made anew in each epoch of some
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Iterate over a dataset in batches.

    Args:
        dataset: By index (``__getitem__`` and ``__len__``), or an :class:`IterableDataset`.
        batch_size: Samples of a batch; None yields single samples, not collated.
        shuffle: Whether each epoch has a random order.
        sampler: Yields indices, in place of ``shuffle``.
        batch_sampler: Yields lists of indices, in place of ``batch_size``, ``shuffle``, ``sampler``
            and ``drop_last``.
        num_workers: Processes that fetch ahead; 0 fetches here.
        collate_fn: Makes a batch of a list of samples; ``default_collate`` if None.
        pin_memory: Accepted; copies to a device go through pinned memory by themselves.
        drop_last: Leave out a last batch that is not full.
        timeout: Seconds to wait for a worker; 0 waits for ever.
        worker_init_fn: Called in each worker with its number, when it starts.
        multiprocessing_context: A start method or context; see ``framework/data/workers.py`` for
            the default, which is fork on Linux.
        generator: Draws the order and the workers' base seed; the default one if None.
        prefetch_factor: Batches that each worker fetches ahead; 2 if None.
        persistent_workers: Keep the workers from one epoch to the next.
        pin_memory_device: Accepted.
        in_order: Accepted; batches come in order.

    Raises:
        ValueError: Options that exclude each other, or a negative number.

    Memory:
        A batch is role *input*. What workers hold, batches fetched ahead included, is memory of
        theirs: it is counted here when it is yielded.

    Example:
        >>> [batch.tolist() for batch in DataLoader(range(5), batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """

    _initialized = False

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None, multiprocessing_context: Any = None,
        generator: Generator | None = None, *, prefetch_factor: int | None = None,
        persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True,
    ) -> None:  # fmt: skip
        self._check_numbers(num_workers, timeout, prefetch_factor, persistent_workers)
        iterable = isinstance(dataset, IterableDataset)
        if iterable:
            given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, "
                        f"but got {name}={value}"
                    )
        if sampler is not None and shuffle:
            raise ValueError(
                "sampler option is mutually exclusive with shuffle. A RandomSampler shuffles."
            )
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last"
            )
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = (
            (prefetch_factor if prefetch_factor is not None else 2) if (num_workers) else None
        )
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.in_order = in_order
        self.persistent_workers = persistent_workers
        self.batch_size, self.drop_last = batch_size, drop_last
        if sampler is None:
            if iterable:
                sampler = _EndlessSampler()
            elif shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            else:
                sampler = SequentialSampler(dataset)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        batched = batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._iterable = iterable
        self._crew: WorkerPool | None = None  # persistent workers
        self._epoch: _Epoch | None = None  # the latest
        self._resumed: dict[str, Any] | None = None
        self._walk: SamplerIterator[Any] | None = None  # over the sampler of a loaded state
        self._initialized = True

    @staticmethod
    def _check_numbers(
        num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
    ) -> None:
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable "
                "multiprocessing."
            )
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing. Let "
                "num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._initialized and name in _FIXED:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized"
            )
        if name == "multiprocessing_context":
            value = self._checked_context(value)
        super().__setattr__(name, value)

    def _checked_context(self, value: Any) -> Any:
        if value is None:
            return None
        if not self.num_workers:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading "
                f"(num_workers > 0), but got num_workers={self.num_workers}"
            )
        if isinstance(value, str):
            methods = multiprocessing.get_all_start_methods()
            if value not in methods:
                raise ValueError(
                    "multiprocessing_context option should specify a valid start method in "
                    f"{methods}, but got multiprocessing_context={value!r}"
                )
            return multiprocessing.get_context(value)
        if not isinstance(value, BaseContext):
            raise TypeError(
                "multiprocessing_context option should be a valid context object or a string "
                f"specifying the start method, but got multiprocessing_context={value}"
            )
        return value

    def __len__(self) -> int:
        if not self._iterable:
            return len(self._index_sampler)
        length = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    # Subclasses define these two to hand the dataset a whole batch's indices.

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def _recipe(self) -> FetchConfig:
        batched, drop = self._auto_collation, bool(self.drop_last)
        return FetchConfig(self.dataset, self._iterable, batched, self.collate_fn, drop)

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        if self.pin_memory and not _told_of_pinning and not _has_cuda():
            _told_of_pinning.append(True)
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device "
                "pinned memory won't be used.",
                stacklevel=2,
            )
        if not self.num_workers:
            here = _InProcessEpoch(self, resumed)
            self._epoch = here
            return here
        crew = self._crew
        if crew is None or crew.closed:
            crew = self._hire()
            if self.persistent_workers:
                self._crew = crew
        ahead = _PrefetchingEpoch(self, resumed, crew)
        self._epoch = ahead.progress
        return ahead

    def _hire(self) -> WorkerPool:
        return WorkerPool(
            self._recipe(),
            self.num_workers,
            self.worker_init_fn,
            self.multiprocessing_context,
            self.timeout,
        )

    def _begin_walk(self, resumed: dict[str, Any] | None) -> SamplerIterator[Any]:
        walk, self._walk = self._walk, None
        return (
            walk
            if walk is not None and resumed is not None
            else SamplerIterator(self._index_sampler)
        )

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest epoch as JSON of constant size.

        An :class:`IterableDataset` with ``state_dict`` adds its own.
        """
        if self._resumed is not None:
            return self._resumed
        epoch = self._epoch if self._epoch is not None and not self._epoch.over else None
        if epoch is not None:
            state = epoch.state()
        else:
            walk = None if self._iterable else SamplerIterator(self._index_sampler).state_dict()
            state = {"base_seed": None, "batches": 0, "sampler": walk, "workers": self._at_rest()}
        place = None if self.generator is None else place_of(self.generator)
        return {**state, "generator": place, "num_workers": self.num_workers}

    def _at_rest(self) -> list[Any] | None:
        # between epochs, a data set that is iterated here may have a state of its own
        if not self._iterable or self.num_workers or not hasattr(self.dataset, "state_dict"):
            return None
        return [{"dataset": self.dataset.state_dict(), "fetched": 0, "ended": False}]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next iteration continue with the batch that would have come next.

        The one after it is a new epoch. Data set, batch size and sampler must be the same; the
        number of workers too if the data set is iterable.

        Raises:
            ValueError: The number of workers differs, and matters.
        """
        if self._iterable and state_dict["num_workers"] != self.num_workers:
            raise ValueError(
                "DataLoader.load_state_dict: the state is of num_workers="
                f"{state_dict['num_workers']}, this loader has {self.num_workers}: an "
                "IterableDataset is shared out between workers, so they must be as many."
            )
        self._epoch = None
        self._resumed = state_dict if state_dict["base_seed"] is not None else None
        if not self._iterable:
            self._walk = SamplerIterator(self._index_sampler, state_dict["sampler"])
        elif self._resumed is None and state_dict["workers"]:
            self.dataset.load_state_dict(state_dict["workers"][0]["dataset"])
        if self.generator is not None and state_dict["generator"] is not None:
            at_place(state_dict["generator"], self.generator)


class _EndlessSampler:
    """The sampler of an iterable dataset, which has no indices."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class _Epoch:
    """Base of one pass over the data, with or without workers."""

    def __init__(self, loader: DataLoader, resumed: dict[str, Any] | None) -> None:
        self.over = False
        if resumed is None:
            self.base_seed = _draw_seed(loader.generator)
            self.batches = 0  # yielded so far
        else:
            self.base_seed, self.batches = resumed["base_seed"], resumed["batches"]

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _state(self, sampler: Any, workers: Any) -> dict[str, Any]:
        batches = self.batches
        return {
            "base_seed": self.base_seed,
            "batches": batches,
            "sampler": sampler,
            "workers": workers,
        }


class _InProcessEpoch(_Epoch):
    """An epoch without workers: each batch is made on request."""

    def __init__(self, loader: DataLoader, resumed: dict[str, Any] | None) -> None:
        super().__init__(loader, resumed)
        own = resumed["workers"][0] if resumed and loader._iterable else None
        self.fetcher: MapFetcher | IterableFetcher = loader._recipe().fetcher(own)
        self.walk = loader._begin_walk(resumed)
        self.iterable = loader._iterable
        self.length = None if self.iterable else loader._index_sampler

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        try:
            batch = self.fetcher.fetch(next(self.walk))
        except StopIteration:
            self.over = True
            raise
        self.batches += 1
        return claimed(batch)

    def __len__(self) -> int:
        return len(self.length)  # type: ignore[arg-type]

    def state(self) -> dict[str, Any]:
        if self.iterable:
            return self._state(None, [self.fetcher.state()])
        return self._state(self.walk.state_dict(), None)


class _WorkerProgress(_Epoch):
    """The progress of an epoch with workers; outlives the iterator and references no worker.

    Attributes:
        sampler: Its state behind the last batch yielded.
        workers: For an iterable data set, each worker's (state, is there more).
        turn: For an iterable data set, whose batch comes next.
    """

    def __init__(self, loader: DataLoader, resumed: dict[str, Any] | None) -> None:
        super().__init__(loader, resumed)
        self.iterable = loader._iterable
        self.sampler: Any = resumed["sampler"] if resumed else None
        shares = resumed["workers"] if resumed and self.iterable else None
        count = loader.num_workers
        self.workers = [share["state"] for share in shares["each"]] if shares else [None] * count
        self.active = [share["more"] for share in shares["each"]] if shares else [True] * count
        self.turn = shares["turn"] if shares else 0

    def state(self) -> dict[str, Any]:
        if not self.iterable:
            return self._state(self.sampler, None)
        each = [{"state": s, "more": m} for s, m in zip(self.workers, self.active, strict=True)]
        return self._state(None, {"turn": self.turn, "each": each})


class _PrefetchingEpoch:
    """An epoch with workers: each has ``prefetch_factor`` tasks, and batches come in order."""

    def __init__(
        self, loader: DataLoader, resumed: dict[str, Any] | None, crew: WorkerPool
    ) -> None:
        self.crew = crew
        self.loader = weakref.ref(loader)
        self.kept = loader.persistent_workers
        self.loader_length = loader._index_sampler
        progress = self.progress = _WorkerProgress(loader, resumed)
        self.walk = loader._begin_walk(resumed)
        if progress.sampler is None and not progress.iterable:
            progress.sampler = self.walk.state_dict()
        self.count = loader.num_workers
        self.given = [progress.batches] * self.count if progress.iterable else [0] * self.count
        self.next_batch = progress.batches  # by index: the next to give out
        self.waiting: list[Any] = []  # by index: sampler states behind batches given out
        crew.begin(progress.base_seed, progress.workers)
        for _ in range(max(1, loader.prefetch_factor or 1)):
            for number in range(self.count):
                self._give(number)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader_length)

    def _give(self, number: int) -> None:
        # One more task. By index, the worker is the one whose turn the batch is.
        progress = self.progress
        if progress.iterable:
            if progress.active[number]:
                self.crew.give(number, self.given[number], next(self.walk))
                self.given[number] += 1
            return
        try:
            index = next(self.walk)
        except StopIteration:
            return
        self.waiting.append(self.walk.state_dict())
        self.crew.give(self.next_batch % self.count, self.next_batch, index)
        self.next_batch += 1

    def _hire_again(self) -> None:
        # In a forked copy of the process: go on from the same place with workers of its own.
        loader, progress = self.loader(), self.progress
        if loader is None or loader._epoch is not progress:
            raise RuntimeError(
                "an estimate cannot go on with a loader's workers, and the loader that knows how "
                "to start others is gone. Keep the DataLoader in a variable, or take the batch "
                "before the step."
            )
        loader.load_state_dict(loader.state_dict())
        resumed, loader._resumed = loader._resumed, None
        fresh = _PrefetchingEpoch(loader, resumed, loader._hire())
        vars(self).update(vars(fresh))
        fresh.kept = True  # its end must not be the crew's
        loader._epoch = self.progress

    def __next__(self) -> Any:
        if self.crew.disowned:
            self._hire_again()
        progress = self.progress
        while not progress.over:
            if progress.iterable:
                number = progress.turn
                if not any(progress.active):
                    break
                if not progress.active[number]:
                    progress.turn = (number + 1) % self.count
                    continue
            elif self.waiting:
                number = progress.batches % self.count
            else:
                break
            kind, value, state = self.crew.take(number)
            if progress.iterable:
                progress.turn = (number + 1) % self.count
                if state is not None:
                    progress.workers[number] = state
                if kind == END:
                    progress.active[number] = False
                    continue
            else:
                progress.sampler = self.waiting.pop(0)
            progress.batches += 1
            self._give(number)
            if kind == BATCH:
                return claimed(value)
            reraise(*value)
        self._end()
        raise StopIteration

    def _end(self) -> None:
        if not self.progress.over:
            self.progress.over = True
            if not self.kept:
                self.crew.close()

    @finalizer
    def __del__(self) -> None:
        with defer_interrupts():
            if not self.kept and not sys.is_finalizing():
                self.crew.close()


def _draw_seed(generator: Generator | None) -> int:
    # 32 bits less than an int64 has, so that the workers' seeds fit too
    drawn = randint(
        0, 1 << 62, (1,), generator=generator or default_generator, dtype=int64, device="cpu"
    )
    return int(drawn.item())


def _has_cuda() -> bool:
    from ..devices.cuda import device_count

    return bool(device_count())
