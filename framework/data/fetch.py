"""Fetching one batch from a dataset, in the main process or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .collate import default_collate
from .dataset import rows, samples


class FetchConfig(NamedTuple):
    """The configuration of fetching: dataset, collation and batching.

    Attributes:
        dataset: By index, or iterable.
        iterable: Which of the two.
        batched: Whether an index is a list, and a batch made of several samples.
        collate_fn: From a list of samples to a batch; from a sample to what is yielded otherwise.
        drop_last: Whether an iterable's last batch must be full.
    """

    dataset: Any
    iterable: bool
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool

    def fetcher(self, state: dict[str, Any] | None = None) -> MapFetcher | IterableFetcher:
        """Create the fetcher for one epoch, from a state on."""
        return IterableFetcher(self, state) if self.iterable else MapFetcher(self)


class MapFetcher:
    """Fetches samples of a map-style dataset by index."""

    def __init__(self, recipe: FetchConfig) -> None:
        self.recipe = recipe

    def fetch(self, index: Any) -> Any:
        """Return the batch of a list of indices, or the sample of one."""
        dataset, _, batched, collate_fn, _ = self.recipe
        try:
            if not batched:
                return collate_fn(dataset[index])
            if collate_fn is default_collate:
                gathered = rows(dataset, index)
                if gathered is not None:
                    return gathered
            return collate_fn(samples(dataset, index))
        except StopIteration as error:  # it would end the loop as if all was well
            raise RuntimeError(f"the data set raised StopIteration for index {index}") from error

    def state(self) -> dict[str, Any] | None:
        """Return None: the sampler knows which indices come next."""
        return None


class IterableFetcher:
    """Fetches samples of an iterable dataset in order.

    Args:
        recipe: How.
        state: Of an earlier fetcher: the samples it fetched are not fetched again.
    """

    def __init__(self, recipe: FetchConfig, state: dict[str, Any] | None = None) -> None:
        self.recipe = recipe
        self.fetched = state["fetched"] if state else 0  # samples
        self.ended = bool(state and state["ended"])
        own = state["dataset"] if state else None
        dataset = recipe.dataset
        if own is not None and _has_state(dataset):
            dataset.load_state_dict(own)
        self.iterator: Iterator[Any] = iter(dataset)
        self._holder: Any = next((h for h in (dataset, self.iterator) if _has_state(h)), None)
        if state is None or self.ended:
            return
        if own is None:
            for _ in range(self.fetched):
                next(self.iterator, None)
        elif self._holder is not dataset:
            _take(self._holder, own)

    def fetch(self, index: Any) -> Any:
        """Return the next batch, of at most ``len(index)`` samples.

        Raises:
            StopIteration: There is none.
        """
        if self.ended:
            raise StopIteration
        _, _, batched, collate_fn, drop_last = self.recipe
        if not batched:
            return collate_fn(self._next())
        batch: list[Any] = []
        try:
            for _ in index:
                batch.append(self._next())  # what came before the end counts
        except StopIteration:
            if not batch or drop_last:
                raise
        return collate_fn(batch)

    def _next(self) -> Any:
        try:
            sample = next(self.iterator)
        except StopIteration:
            self.ended = True
            raise
        self.fetched += 1
        return sample

    def state(self) -> dict[str, Any] | None:
        """Return the position as JSON, if the dataset's own state is."""
        own = None if self._holder is None else self._holder.state_dict()
        return {"dataset": own, "fetched": self.fetched, "ended": self.ended}


def _take(thing: Any, state: Any) -> None:
    thing.load_state_dict(state)


def _has_state(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )
