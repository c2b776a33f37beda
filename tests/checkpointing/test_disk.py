"""Values in a file: what is written, what stays, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.checkpointing import offload_to_disk
from lowtide.framework.checkpointing import disk as disk_module
from tests.checkpointing.test_offload import SIZE, chain, gradient, leaf


def test_a_file_holds_the_values_and_leaves_no_name(tmp_path: Path) -> None:
    x = leaf("cpu")
    expected = gradient(x, lt.enable_grad())
    before = lt.memory_allocated()
    with offload_to_disk(tmp_path) as disk:
        y = chain(x)
    assert lt.memory_allocated() - before == SIZE  # the result is alive
    assert disk.used_bytes == disk.file_bytes == 6 * 8192
    assert list(tmp_path.iterdir()) == []
    y.sum().backward()
    assert x.grad.tolist() == expected
    assert (disk.used_bytes, disk.file_bytes) == (0, 6 * 8192)
    with disk:
        y = chain(x)
    assert disk.file_bytes == 6 * 8192  # the same places again
    disk.close()
    assert disk.file_bytes == 0
    x.grad = None
    y.sum().backward()  # what was written is there as long as somebody wants it
    assert x.grad.tolist() == expected


def test_the_file_goes_with_its_last_value(tmp_path: Path) -> None:
    def opened() -> int:
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:  # the one that listed
                continue
        return sum(str(tmp_path) in name for name in names)

    x = leaf("cpu")
    with offload_to_disk(tmp_path) as disk:
        y = chain(x)
    assert opened() == 1
    del disk
    assert opened() == 1
    del y
    assert opened() == 0


@pytest.mark.parametrize(("limit", "written"), [(0, 0), (8191, 0), (8192, 1), (30_000, 3)])
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_what_passes_the_limit_stays_in_memory(
    limit: int, written: int, where: str, tmp_path: Path
) -> None:
    x = leaf(where)
    before = lt.memory_allocated(where)
    with offload_to_disk(tmp_path, limit=limit) as disk:
        y = chain(x)
    assert disk.file_bytes == written * 8192 <= limit
    assert lt.memory_allocated(where) - before == (6 - written) * SIZE
    y.sum().backward()
    assert disk.used_bytes == 0


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaf("cpu")
    expected = gradient(x, lt.enable_grad())
    left = [2]

    def write(
        self: Any, array: Any, offset: int, really: Any = disk_module.SpillFile.write
    ) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        really(self, array, offset)

    monkeypatch.setattr(disk_module.SpillFile, "write", write)
    disk = offload_to_disk(tmp_path)
    with pytest.warns(RuntimeWarning, match="no room for another 7.81 KiB"):
        found = gradient(x, disk)
    assert found == expected


FILE_TOO_LARGE = """
    import resource, sys
    import lowtide as lt
    from lowtide.checkpointing import offload_to_disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
    x = lt.arange(2000.0).div_(1000).requires_grad_()
    with offload_to_disk(sys.argv[1]) as disk:
        y = x.exp().sin().exp().cos()
    assert disk.used_bytes == 8192
    y.sum().backward()
    print(x.grad.sum().item())
"""


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FILE_TOO_LARGE), str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    x = lt.arange(2000.0).div_(1000).requires_grad_()
    x.exp().sin().exp().cos().sum().backward()
    assert float(ended.stdout) == x.grad.sum().item()
    assert ended.stderr.count("has no room for another 7.81 KiB") == 1


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    x = leaf("cpu")
    for folder, kind in ((tmp_path / "file", FileExistsError), ("/proc", FileNotFoundError)):
        with pytest.raises(kind, match=f"offload_to_disk cannot make a file in dir='{folder}'"):
            gradient(x, offload_to_disk(folder))
    gradient(x, lt.checkpointing.checkpointing())  # no region is left open


def test_another_error_of_the_disk_is_raised_and_nothing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak_check: None
) -> None:
    def write(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_module.SpillFile, "write", write)
    x = leaf("cpu")
    disk = offload_to_disk(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        gradient(x, disk)
    assert disk.used_bytes == 0
    del x


def test_without_nameless_files_the_name_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    x = leaf("cpu")
    with offload_to_disk(tmp_path) as disk:
        y = chain(x)
        assert list(tmp_path.iterdir()) == []
    assert disk.used_bytes == 6 * 8192
    y.sum().backward()


def test_where_open_files_cannot_be_unlinked_they_go_when_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    really = os.unlink

    def busy(path: Any) -> None:
        raise PermissionError(13, "in use", path)

    x = leaf("cpu")
    monkeypatch.setattr(os, "unlink", busy)
    with offload_to_disk(tmp_path) as disk:
        y = chain(x)
    monkeypatch.setattr(os, "unlink", really)
    assert len(list(tmp_path.iterdir())) == 1
    disk_module.sweep(str(tmp_path))  # its lock says that its owner lives
    assert len(list(tmp_path.iterdir())) == 1
    y.sum().backward()
    del y
    disk.close()
    assert list(tmp_path.iterdir()) == []


KILLED = """
    import os, signal, sys
    {forbid}
    import lowtide as lt
    from lowtide.checkpointing import offload_to_disk
    x = lt.ones(5000, requires_grad=True)
    with offload_to_disk(sys.argv[1]) as disk:
        for _ in range(3):
            y = x.exp()
        assert disk.used_bytes == 20480
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["nameless", "unlinked", "named"])
def test_a_killed_process_leaves_nothing_after_the_next_start(kind: str, tmp_path: Path) -> None:
    forbid = {
        "nameless": "",
        "unlinked": "del os.O_TMPFILE",
        "named": "del os.O_TMPFILE; os.unlink = lambda path: os.rmdir(path)",  # an OSError
    }[kind]
    (tmp_path / "mine.txt").write_text("not ours")
    code = textwrap.dedent(KILLED).format(forbid=forbid)
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    left = [p.name for p in tmp_path.iterdir() if p.name != "mine.txt"]
    assert len(left) == (1 if kind == "named" else 0)
    with offload_to_disk(tmp_path):
        leaf("cpu").exp()
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_forked_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    x = leaf("cpu")
    with offload_to_disk(tmp_path) as disk:
        y = chain(x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with disk:
                z = lt.ones(2000, requires_grad=True).exp()
            z.sum().backward()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = gradient(x, lt.enable_grad())
    y.sum().backward()
    assert x.grad.tolist() == expected


def test_the_folder_is_made_and_the_limit_checked(tmp_path: Path) -> None:
    with offload_to_disk(tmp_path / "a" / "b") as disk:
        leaf("cpu").exp().sin()
    assert (tmp_path / "a" / "b").is_dir()
    assert repr(disk) == f"offload_to_disk({str(tmp_path / 'a' / 'b')!r}, limit=None)"
    with pytest.raises(ValueError, match="limit takes a non-negative .* Pass None for no"):
        offload_to_disk(tmp_path, limit=-1)
