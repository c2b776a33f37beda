"""``save``, ``load`` and ``async_save`` of states that are shared out among ranks.

Source of the interface: PyTorch's ``torch.distributed.checkpoint``. The files are lowtide's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import ExitStack
from typing import Any

from ...errors import SerializationError
from ..objects import all_gather_object
from ..process_group import GroupMember, ProcessGroup, resolve
from .index import NAME, Index, read_index, write_index
from .reading import (
    Files,
    is_plain_tensor,
    read_objects,
    read_tensor,
    require,
    verify_pieces,
)
from .state import flatten, own_state, replace, stateful
from .writing import Part, plan, remove_others, snapshot, write_part

_NAP = 0.02  # seconds between two looks at a folder
_FAILED = ".failed"
_under_way: dict[str, Future[None]] = {}  # asynchronous saves by folder


class FileSystemWriter:
    """Names the folder of a checkpoint, for ``storage_writer``."""

    def __init__(self, path: Any, **options: Any) -> None:
        self.path = os.fspath(path)


class FileSystemReader:
    """Names the folder of a checkpoint, for ``storage_reader``."""

    def __init__(self, path: Any, **options: Any) -> None:
        self.path = os.fspath(path)


def save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Save a state of all ranks to a folder that all of them reach; all ranks call it.

    Each rank writes its rows of shards. What all ranks have, the lowest of them writes. The
    folder has the older checkpoint until this one is complete. Where the other ranks are
    imagined, it never is: a rank then writes its part, and no index.

    Args:
        state_dict: Tensors and other values in nested dicts, and objects with a ``state_dict``.
        checkpoint_id: The folder; it is made if it is not there.
        storage_writer: A ``FileSystemWriter``, which names the folder instead.
        planner: Not supported.
        process_group: The ranks; the default group if None, or this process alone.
        no_dist: This process alone.

    Raises:
        SerializationError: A rank could not write; in all ranks.
    """
    folder = _folder("save", checkpoint_id, storage_writer, planner)
    group = _group(process_group, no_dist)
    _await_earlier(folder)
    part = plan(flatten(own_state(state_dict)), group)
    _agree(group, lambda: write(folder, part))
    ends = part.rank == 0 and not is_imagined(group)
    _agree(group, lambda: finish(folder, part) if ends else None)


def async_save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    **options: Any,
) -> Future[None]:
    """Copy a state, and save it while training goes on; all ranks call it.

    The copies have the size of what this rank writes, and live until its file is written.

    Args:
        state_dict: As of :func:`save`.
        checkpoint_id: Likewise.
        storage_writer: Likewise.
        planner: Not supported.
        process_group: As of :func:`save`.
        **options: Accepted and ignored.

    Returns:
        A future, done when the checkpoint is complete. ``result()`` raises what failed.
    """
    folder = _folder("async_save", checkpoint_id, storage_writer, planner)
    group = _group(process_group, False)
    _await_earlier(folder)
    part = snapshot(plan(flatten(own_state(state_dict)), group))
    limit = 1800.0 if group is None else group.channel.timeout.total_seconds()
    future = _under_way[folder] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled any more
    held = [part]
    del part
    threading.Thread(
        target=_in_background, args=(folder, held, limit, is_imagined(group), future), daemon=False
    ).start()
    return future


def load(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Load a state in place from a checkpoint of any number of ranks.

    A rank reads the entries that its rows lie in; no rank waits for another. What is missing,
    damaged or of another shape is found before anything is written.

    Args:
        state_dict: The state to fill: tensors are written in place, other values are replaced,
            objects with a ``state_dict`` are given theirs. What the checkpoint has beyond that is
            left alone.
        checkpoint_id: The folder.
        storage_reader: A ``FileSystemReader``, which names the folder instead.
        planner: Not supported.
        process_group: Accepted.
        no_dist: Accepted.

    Raises:
        FileNotFoundError: The folder has no checkpoint.
        KeyError: The checkpoint has no value of a path.
        ValueError: A tensor has another shape or dtype.
        SerializationError: A file is damaged or missing.
    """
    folder = _folder("load", checkpoint_id, storage_reader, planner)
    _await_earlier(folder)
    index = read_index(folder)
    own = own_state(state_dict)
    flat = flatten(own)
    with ExitStack() as stack:
        files = Files(folder, index, stack)
        tensors = {
            key: (t, require(key, t, index)) for key, t in flat.items() if is_plain_tensor(t)
        }
        objects = {}
        for key in flat:
            if key not in tensors:
                if key not in index.objects:
                    raise KeyError(
                        f"load: the checkpoint has no value {key!r}; leave it out of the state."
                    )
                objects[key] = index.objects[key]
        for key, (t, saved) in tensors.items():
            verify_pieces(key, t, saved, files)
        values = read_objects(objects, files)
        for t, saved in tensors.values():
            read_tensor(t, saved, files)
    replace(own, values)
    given = set(stateful(state_dict))
    for key in given:
        state_dict[key].load_state_dict(own[key])
    if isinstance(state_dict, dict):
        state_dict.update({key: own[key] for key in own if key not in given})


def _folder(name: str, checkpoint_id: Any, storage: Any, planner: Any) -> str:
    if planner is not None:
        raise NotImplementedError(f"{name}: a planner is not there. Leave it out.")
    if checkpoint_id is None and storage is not None:
        checkpoint_id = getattr(storage, "path", None)
    if checkpoint_id is None:
        raise ValueError(f"{name}: name the folder: checkpoint_id='checkpoints/step_100'.")
    return str(os.path.abspath(os.fspath(checkpoint_id)))


def _group(process_group: Any, no_dist: bool) -> ProcessGroup | None:
    if no_dist or (process_group is None and GroupMember.WORLD is None):
        return None
    return resolve(process_group, "save")


def is_imagined(group: ProcessGroup | None) -> bool:
    """Whether the other ranks of a group are imagined, as in an estimate."""
    return group is not None and group.channel.imagined


def _await_earlier(folder: str) -> None:
    earlier = _under_way.pop(folder, None)
    if earlier is not None:
        wait_for([earlier])  # if it failed, its own future says so


def write(folder: str, part: Part) -> None:
    """Write a rank's part; the folder is made."""
    os.makedirs(folder, exist_ok=True)
    write_part(folder, part)


def finish(folder: str, part: Part) -> None:
    """Write the index, which makes the checkpoint complete, and remove what it replaces."""
    write_index(folder, part.checkpoint)
    remove_others(folder, part.checkpoint)


def _agree(group: ProcessGroup | None, work: Any) -> None:
    # Do something in each rank; if it fails in one, it fails in all.
    if group is None or group.size() == 1:
        work()
        return
    failed: BaseException | None = None
    try:
        work()
    except Exception as error:
        failed = error
    every: list[Any] = [None] * group.size()
    all_gather_object(every, None if failed is None else str(failed), group)
    if failed is not None:
        raise failed
    for rank, message in enumerate(every):
        if message is not None:
            raise SerializationError(f"save: rank {rank} could not write its part: {message}")


def _in_background(
    folder: str, held: list[Part], limit: float, alone: bool, future: Future[None]
) -> None:
    try:
        write_apart(folder, held.pop(), limit, alone)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def write_apart(folder: str, part: Part, limit: float, alone: bool) -> None:
    """Write a rank's part in a thread: the ranks hear of each other by the files alone.

    Args:
        folder: Of the checkpoint.
        part: Copies of what this rank writes.
        limit: Seconds to wait for other ranks.
        alone: The other ranks do not exist: nothing is waited for, and there is no index.

    Raises:
        SerializationError: This rank or another one could not write, or took too long.
    """
    index, rank = part.checkpoint, part.rank
    try:
        write(folder, part)
    except BaseException as error:
        _tell_failure(folder, index, rank, error)
        raise
    part = part._replace(tensors={}, objects={})  # the copies go
    if alone:
        return
    if rank == 0:
        _await_files(folder, index, limit)
        finish(folder, part)
    else:
        _await_index(folder, index, limit)


def _tell_failure(folder: str, index: Index, rank: int, error: BaseException) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, index.files[rank] + _FAILED)
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(error))


def _require_no_failure(folder: str, index: Index) -> None:
    for rank, name in enumerate(index.files):
        path = os.path.join(folder, name + _FAILED)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                message = file.read()
            raise SerializationError(f"save: rank {rank} could not write its part: {message}")


def _await_files(folder: str, index: Index, limit: float) -> None:
    deadline = time.monotonic() + limit
    while True:
        _require_no_failure(folder, index)
        missing = [
            rank
            for rank, name in enumerate(index.files)
            if not os.path.exists(os.path.join(folder, name))
        ]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise SerializationError(
                f"save: ranks {missing} have not written their parts to {folder} in {limit:g} s."
            )
        time.sleep(_NAP)


def _await_index(folder: str, index: Index, limit: float) -> None:
    deadline = time.monotonic() + limit
    while True:
        _require_no_failure(folder, index)
        try:
            if read_index(folder).save == index.save:
                return
        except FileNotFoundError:
            pass
        if time.monotonic() > deadline:
            raise SerializationError(f"save: {NAME} of {folder} was not written in {limit:g} s.")
        time.sleep(_NAP)
