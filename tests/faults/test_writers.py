"""Several processes and one folder: who may write, what is removed, what readers find."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.framework.serialization import atomic_files, file_locks
from lowtide.utils import CheckpointDirectory
from tests.faults.readers import rounds

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
    import os, sys, time
    import lowtide as lt
    from lowtide.utils import CheckpointDirectory

    folder = CheckpointDirectory(sys.argv[1], keep=1)
"""


@pytest.fixture
def started():
    """Starts a script in another process; returns it when it has printed a line."""
    processes = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        text = textwrap.dedent(BEGIN) + textwrap.dedent(script)
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        processes.append(process)
        process.first = process.stdout.readline().strip()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


HOLDS = "folder.save(1); print('saved', flush=True); sys.stdin.read()"


def test_a_second_writer_is_told_who_holds_the_folder(started, tmp_path) -> None:
    first = started(HOLDS, tmp_path)
    folder = CheckpointDirectory(tmp_path)
    owner = rf"process {first.pid} on {re.escape(os.uname().nodename)} since \d{{4}}-\d\d-\d\d "
    for act in (folder.claim, lambda: folder.save(2)):
        with pytest.raises(lt.SerializationError, match=owner) as caught:
            act()
        assert str(tmp_path) in str(caught.value)
        assert "use another folder" in str(caught.value)
    assert folder.restore() == {"step": 1}  # reading needs no lock
    first.communicate()  # it ends
    folder.save(2)
    assert folder.steps() == [1, 2]


def test_the_lock_of_a_killed_process_is_taken_over(started, tmp_path) -> None:
    first = started(HOLDS, tmp_path)
    first.kill()
    first.wait()
    assert (tmp_path / file_locks.LOCK).exists()  # its name is still there, the lock is not
    folder = CheckpointDirectory(tmp_path)
    folder.save(2)
    assert f'"pid": {os.getpid()}' in (tmp_path / file_locks.LOCK).read_text()


def test_an_orphaned_worker_does_not_keep_the_lock_of_its_killed_parent(started, tmp_path) -> None:
    first = started(
        """
        folder.save(1)
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # the child's word: it has given up the lock by now
            time.sleep(600)
        sys.stdin.read()
        """,
        tmp_path,
    )
    try:
        first.kill()
        first.wait()
        CheckpointDirectory(tmp_path).save(2)
    finally:
        os.kill(int(first.first), signal.SIGKILL)


def test_a_forked_child_is_another_writer(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(1)
    child = os.fork()
    if child == 0:
        try:
            folder.save(2)
        except lt.SerializationError as error:
            os._exit(7 if f"process {os.getppid()} on" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    folder.save(2)
    with pytest.raises(lt.SerializationError):  # and the child's end did not free it
        _in_child(lambda: CheckpointDirectory(tmp_path).claim())


def _in_child(action) -> None:
    child = os.fork()
    if child == 0:
        try:
            action()
        except lt.SerializationError:
            os._exit(7)
        finally:
            os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
        raise lt.SerializationError("in the child")


@pytest.mark.deep
def test_of_many_that_take_over_at_once_one_does(started, tmp_path) -> None:
    dead = started(HOLDS, tmp_path / "run")
    dead.kill()
    dead.wait()
    for _ in range(12):
        (go, going), (end, ending) = os.pipe(), os.pipe()
        children = set()
        for _ in range(6):
            child = os.fork()
            if child == 0:
                os.close(going)
                os.close(ending)
                os.read(go, 1)  # until the parent closes it
                try:
                    CheckpointDirectory(tmp_path / "run").claim()
                    held = file_locks.lock_folder(tmp_path / "run")
                    os.read(end, 1)  # it has the folder until all others have asked
                    os._exit(0 if held.is_current() else 2)
                except lt.SerializationError:
                    os._exit(7)
                finally:
                    os._exit(1)
            children.add(child)
        for one in (go, end, going):
            os.close(one)
        codes = []
        deadline = time.monotonic() + 600
        while children:
            if len(children) == 1 or time.monotonic() > deadline:
                os.close(ending)
                codes += [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
                break
            for child in list(children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    children.remove(child)
                    codes.append(os.waitstatus_to_exitcode(status))
            time.sleep(0.001)
        assert sorted(codes) == [0, 7, 7, 7, 7, 7]


def test_objects_and_threads_of_one_process_share_its_lock(tmp_path) -> None:
    one, two = CheckpointDirectory(tmp_path, keep=2), CheckpointDirectory(tmp_path, keep=2)
    one.save(1)
    two.save(2)
    threads = [threading.Thread(target=one.save, args=(9,)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert one.steps() == [2, 9]
    one.release()
    with pytest.raises(lt.SerializationError):
        _in_child(lambda: CheckpointDirectory(tmp_path).claim())
    del two
    _in_child(lambda: CheckpointDirectory(tmp_path).claim())
    one.claim()
    assert len(os.listdir(tmp_path)) == 3
    one.release()
    assert len(os.listdir(tmp_path)) == 2


def test_a_copy_has_no_lock_of_its_own(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=2)
    folder.save(1)
    copy = pickle.loads(pickle.dumps(folder))
    assert (copy.path, copy.keep, copy.steps()) == (folder.path, 2, [1])
    folder.release()
    _in_child(lambda: CheckpointDirectory(tmp_path).claim())


def test_a_folder_that_was_removed_is_claimed_anew(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path / "run", keep=1)
    folder.save(5)
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    folder.save(1)
    assert folder.steps() == [1]
    with pytest.raises(lt.SerializationError):
        _in_child(lambda: CheckpointDirectory(folder.path).claim())


def test_pruning_leaves_what_a_living_process_is_writing(started, tmp_path) -> None:
    writer = started(
        """
        from lowtide.framework.serialization.atomic_files import replacing

        with replacing(folder.path / "step_00000007.safetensors") as out:
            out.write(b"half")
            print("half", flush=True)
            sys.stdin.readline()
        print("whole", flush=True)
        """,
        tmp_path,
    )
    temporary = [n for n in os.listdir(tmp_path) if n.endswith(atomic_files.TEMPORARY_SUFFIX)]
    dead = ".step_00000001.safetensors.0a0b0c0d0e0f.tmp"
    (tmp_path / dead).write_bytes(b"half")
    folder = CheckpointDirectory(tmp_path, keep=1)
    folder.save(2)
    folder.save(3)
    assert temporary == [
        n for n in os.listdir(tmp_path) if n.endswith(atomic_files.TEMPORARY_SUFFIX)
    ]
    assert writer.communicate("\n")[0] == "whole\n"
    assert (tmp_path / "step_00000007.safetensors").read_bytes() == b"half"


def test_a_temporary_file_taken_for_dead_at_its_birth_is_made_anew(tmp_path, monkeypatch) -> None:
    found, removed = atomic_files._lock_own, []

    def late(handle: int) -> None:  # somebody looks for leftovers before the lock is taken
        if not removed:
            (name,) = (n for n in os.listdir(tmp_path) if n.startswith("."))
            removed.append(atomic_files.remove_leftover(str(tmp_path / name)))
        found(handle)

    monkeypatch.setattr(atomic_files, "_lock_own", late)
    lt.save(1, tmp_path / "x")
    assert removed == [True]
    assert os.listdir(tmp_path) == ["x"]
    assert lt.load(tmp_path / "x") == 1


def test_a_file_system_without_locks_is_told_once_and_leftovers_stay(tmp_path, monkeypatch) -> None:
    def none(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(file_locks.fcntl, "flock", none)
    leftover = tmp_path / ".step_00000001.safetensors.0a0b0c0d0e0f.tmp"
    leftover.write_bytes(b"half")
    folder = CheckpointDirectory(tmp_path, keep=1)
    with pytest.warns(UserWarning, match="without locks"):
        folder.save(1)
    folder.save(2)  # a second warning would be an error
    assert folder.steps() == [2]
    assert leftover.exists()  # nobody can tell whether it is being written


def test_a_reader_looks_again_when_what_it_listed_is_gone(tmp_path, monkeypatch) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(4, x=1)
    listings = [[], [3], [3], [4]]
    monkeypatch.setattr(folder, "_listed", lambda: listings.pop(0))
    assert folder.restore() == {"step": 4, "x": 1}
    assert not listings
    monkeypatch.setattr(folder, "_listed", lambda: [3])
    monkeypatch.setattr("lowtide.framework.serialization.checkpoint_directory._LISTINGS", 3)
    with pytest.raises(lt.SerializationError, match="removed before they could be read, 3 times"):
        folder.restore()


def test_readers_beside_a_writer_that_keeps_one_always_find_it(tmp_path) -> None:
    writes, reads = rounds(tmp_path, 300)
    assert writes == 300
    assert all(n > 20 for n in reads), reads


@pytest.mark.parametrize("name", ["a" * 250, "é" * 125, "文" * 83, "b" * 255])
def test_names_as_long_as_files_can_have_are_saved(name, tmp_path) -> None:
    for value in (1, 2):
        lt.save(value, tmp_path / name)
        assert lt.load(tmp_path / name) == value
    assert os.listdir(tmp_path) == [name]


def test_a_file_keeps_its_mode_and_a_new_one_has_the_umasks(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        lt.save(1, tmp_path / "new")
        lt.save(1, tmp_path / "old")
        modes = []
        for mode in (0o600, 0o666, 0o444):
            (tmp_path / "old").chmod(mode)
            lt.save(2, tmp_path / "old")
            modes.append((tmp_path / "old").stat().st_mode & 0o7777)
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640
    assert modes == [0o600, 0o666, 0o444]


def test_a_private_file_is_private_while_it_is_written(tmp_path) -> None:
    lt.save(1, tmp_path / "x")
    (tmp_path / "x").chmod(0o600)
    with atomic_files.replacing(tmp_path / "x") as out:
        out.write(b"secret")
        modes = {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes == {0o600}
