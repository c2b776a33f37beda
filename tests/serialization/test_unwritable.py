"""Folders and disks that cannot be written to: what the error names, and what is left."""

import os
import re
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.framework.serialization import atomic_files, checkpoint_directory
from lowtide.utils import CheckpointDirectory
from tests.faults.disk import failing, watched


@pytest.fixture
def forbidden(monkeypatch):
    """Every file is refused, as to a user who may not write to its folder (root always may)."""

    def refused(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(atomic_files, "_created", refused)
    monkeypatch.setattr(checkpoint_directory, "lock_folder", refused)


def test_a_folder_that_may_not_be_written_to_is_no_full_disk(tmp_path, forbidden):
    (tmp_path / "old").write_bytes(b"1")
    who = rf"user {os.geteuid()} may not write to {re.escape(str(tmp_path))} \(mode [0-7]+\)"
    with pytest.raises(lt.SerializationError, match=who) as caught:
        lt.save(1, tmp_path / "new")
    text = str(caught.value)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 13
    assert f"save: {tmp_path / 'new'} could not be written: Permission denied" in text
    assert "No file is left. Change its permissions, or save to another folder." in text
    assert "bytes are free" not in text
    assert "Make room" not in text
    with pytest.raises(lt.SerializationError, match="The file that was there is as it was"):
        lt.save(1, tmp_path / "old")


def test_a_parent_that_is_a_file_is_called_one(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(lt.SerializationError, match="file, the parent of x, is a file and no fol"):
        lt.save(1, tmp_path / "file" / "x")
    with pytest.raises(lt.SerializationError, match="missing does not exist. Create it"):
        lt.save(1, tmp_path / "missing" / "x")


def test_a_full_disk_is_told_with_the_bytes_that_a_save_needs(tmp_path):
    with (
        watched(lambda n, name: name == "write" and failing(n, 28, False)(n, name)),
        pytest.raises(lt.SerializationError, match=r"takes at least (\d+) bytes") as caught,
    ):
        lt.save({"weight": lt.ones(1000)}, tmp_path / "x")
    needed = int(re.search(r"at least (\d+) bytes", str(caught.value))[1])
    assert "No space left on device" in str(caught.value)
    assert os.listdir(tmp_path) == []
    lt.save({"weight": lt.ones(1000)}, tmp_path / "x")
    assert 4000 <= needed <= (tmp_path / "x").stat().st_size <= needed + 500


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_device_is_told_with_the_bytes():
    with pytest.raises(lt.SerializationError, match=r"No space left on device; 4\d\d\d bytes are"):
        lt.save({"weight": lt.ones(1000)}, "/dev/full")


def test_a_folder_of_checkpoints_that_may_not_be_written_to_says_what_is_in_it(
    tmp_path, monkeypatch, request
):
    CheckpointDirectory(tmp_path).save(4)
    request.getfixturevalue("forbidden")
    folder = CheckpointDirectory(tmp_path)
    for act in (folder.claim, lambda: folder.save(5, w=lt.ones(3))):
        with pytest.raises(lt.SerializationError, match="cannot be written to: Permission") as e:
            act()
        assert isinstance(e.value, OSError)
        assert str(e.value).endswith("Its checkpoints are as they were: steps [4].")
        assert "may not write to" in str(e.value)
    assert folder.restore() == {"step": 4}


def test_a_folder_of_checkpoints_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"1")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(lt.SerializationError, match=f"{tmp_path / 'file'} is a file. Use anot"):
            CheckpointDirectory(path).save(1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(lt.SerializationError, match=r"new cannot be made: No space .* free there"):
        CheckpointDirectory(tmp_path / "new").save(1)
