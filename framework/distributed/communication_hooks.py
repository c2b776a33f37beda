"""Communication hooks of ``DistributedDataParallel``: how a bucket of gradients is reduced.

A hook takes a state and a :class:`~.gradient_reduction.GradBucket` and returns a future of the
averaged gradients, flat. The state is a process group, or None for the default one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import bfloat16, float16
from ..tensor import Tensor
from . import collectives
from .collectives import ReduceOp
from .futures import Future
from .gradient_reduction import GradBucket
from .process_group import resolve
from .work import Work


def allreduce_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average gradients over the ranks, as without a hook."""
    return _averaged(process_group, bucket.buffer())


def fp16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average gradients in float16: half the bytes travel, and sums round to float16."""
    return _compressed(process_group, bucket, float16)


def bf16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average gradients in bfloat16: half the bytes travel, and sums round to bfloat16."""
    return _compressed(process_group, bucket, bfloat16)


def fp16_compress_wrapper(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that gives ``hook`` gradients in float16."""
    return _wrapped(hook, float16)


def bf16_compress_wrapper(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that gives ``hook`` gradients in bfloat16."""
    return _wrapped(hook, bfloat16)


def _averaged(process_group: Any, flat: Tensor) -> Future:
    where = resolve(process_group, "communication hook")
    work = collectives.all_reduce(flat, ReduceOp.AVG, where, async_op=True)
    assert isinstance(work, Work)
    return work.get_future()


def _compressed(process_group: Any, bucket: GradBucket, dtype: Any) -> Future:
    flat = bucket.buffer()
    # Divided before, so that a sum of large gradients stays within the type.
    size = resolve(process_group, "communication hook").size()
    small = flat.to(dtype).div_(size)
    work = collectives.all_reduce(small, ReduceOp.SUM, process_group, async_op=True)
    assert isinstance(work, Work)
    return work.get_future().then(lambda done: flat.copy_(done.value()[0]))


def _wrapped(hook: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    def compressed(state: Any, bucket: GradBucket) -> Any:
        flat = bucket.buffer()
        bucket.set_buffer(flat.to(dtype))

        def restored(done: Future) -> Tensor:
            found = done.value()
            return flat.copy_(found[0] if isinstance(found, (list, tuple)) else found)

        return hook(state, bucket).then(restored)

    return compressed
