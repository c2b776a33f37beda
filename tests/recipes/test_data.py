"""The ways to the data: where it is looked for, what is checked, what stands in."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import lzma
import struct
import tarfile
import zipfile

import numpy as np
import pytest

# Recipes are run, never imported; what they share has tests all the same.
data, fetch, images, sequences, tables, texts, wordpiece = (
    importlib.import_module(f"lowtide.recipes.data{part}")
    for part in ("", ".fetch", ".images", ".sequences", ".tables", ".texts", ".wordpiece")
)
WordPiece, words = wordpiece.WordPiece, wordpiece.words


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """No network, no installed data, no cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)


def wheel(tmp_path, **members):
    path = tmp_path / "cache" / "lowtide" / "thing-1.0.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"thing/{name}", content)
    return fetch.Wheel("thing==1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_local_folder_comes_first(nothing, tmp_path, monkeypatch):
    archive = wheel(tmp_path, a=b"from the wheel")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a").write_bytes(b"from the folder")
    assert fetch.find("x", ("thing/a",), archive, str(folder), print).files == [b"from the folder"]
    (tmp_path / "all" / "x").mkdir(parents=True)
    (tmp_path / "all" / "x" / "a").write_bytes(b"from the environment")
    monkeypatch.setenv("LOWTIDE_DATA", str(tmp_path / "all"))
    assert fetch.find("x", ("thing/a",), archive, None, print).files == [b"from the environment"]


def test_a_wheel_is_read_from_the_cache_and_checked(nothing, tmp_path):
    archive = wheel(tmp_path, a=b"one", b=b"two")
    found = fetch.find("x", ("thing/b", "thing/a"), archive, None, print)
    assert found.files == [b"two", b"one"]
    assert found.source == "thing==1.0 by pip"
    with pytest.raises(ValueError, match="has sha256"):
        fetch.find("x", ("thing/a",), fetch.Wheel("thing==1.0", "0" * 64), None, print)


def test_a_debian_package_is_read_without_installing_it(nothing, tmp_path):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        entry = tarfile.TarInfo("./usr/share/x")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"hello"))
    blob = b"!<arch>\n"
    for name, content in (
        ("debian-binary", b"2.0"),
        ("data.tar.xz", lzma.compress(tar.getvalue())),
    ):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        blob += header.encode() + content + b"\n" * (len(content) % 2)
    path = tmp_path / "cache" / "lowtide" / "p-1.deb"
    path.parent.mkdir(parents=True)
    path.write_bytes(blob)
    deb = fetch.Deb("p", "1", hashlib.sha256(blob).hexdigest())
    assert deb.read(("usr/share/x",)) == [b"hello"]
    with pytest.raises(fetch.Unreachable, match="lacks one of usr/share/y"):
        deb.read(("usr/share/y",))


def test_what_was_tried_is_said_once_all_has_failed(nothing):
    said = []
    with pytest.raises(fetch.Unreachable, match="x is not within reach"):
        fetch.find("x", ("thing/a",), fetch.Deb("no-such", "1", ""), None, said.append)
    assert [line.split(":")[0].strip() for line in said] == [
        "tried a local folder",
        "tried an installed package",
        "tried no-such by apt-get",
    ]
    assert "there is no apt-get here" in said[-1]


OTHERS = ("fashion", "vowels", "diamonds", "bible", "reviews")


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(n, marks=pytest.mark.deep) for n in OTHERS)]
)
def test_a_stand_in_is_announced_and_has_the_shapes_of_the_real_thing(nothing, name):
    said = []
    found = getattr(data, name)(say=said.append)
    assert any("WARNING" in line for line in said)
    if isinstance(found, images.Images):
        assert found.x_train.shape[1:] == (1, 28, 28)
        assert found.x_train.dtype == np.float32
        assert set(np.unique(found.y_train)) == set(range(10))
    elif isinstance(found, sequences.Sequences):
        assert {x.shape[1] for x in found.x_train} == {12}
        assert set(found.y_test) <= set(range(found.classes))
    elif isinstance(found, tables.Table):
        assert found.x_train.shape == (len(found.y_train), len(found.features))
        assert np.allclose(found.x_train.mean(axis=0), 0, atol=1e-3)
        assert np.allclose(found.y_train.std(), 1, atol=1e-3)
    elif isinstance(found, texts.Text):
        assert len(found.validation) == pytest.approx(len(found.train) / 19, rel=1e-3)
        assert found.train.max() < len(found.characters) <= 255
    else:
        assert len(found.train) == len(found.y_train)
        assert not set(found.train[:1]) & set(found.test[:1]) or found.y_train[0] in (0, 1)
    assert data.minilm(say=said.append).weights is None


def test_idx_files_are_read_as_they_are_defined():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    blob = b"\0\0\x08\x03" + struct.pack(">3i", 2, 3, 4) + pixels.tobytes()
    assert np.array_equal(images._idx(gzip.decompress(gzip.compress(blob))), pixels)
    with pytest.raises(ValueError, match="uint8 was expected"):
        images._idx(b"\0\0\x0d\x01" + struct.pack(">i", 0))


def test_a_negation_turns_a_made_up_review_around():
    made = texts.made_up_reviews(200)
    good = ("moving", "clever", "tender", "gripping", "fresh", "superb", "funny", "honest")
    for text, label in zip(made.train, made.y_train, strict=True):
        praised = text.removesuffix(".").split()[-1] in good
        assert (praised != ("not" in text)) == bool(label)


PIECES = "[PAD] [UNK] [CLS] [SEP] a man is eat ##ing food . un ##able ##s"


def test_words_become_their_longest_pieces():
    pieces = WordPiece("\n".join(PIECES.split()))
    assert pieces.encode("A man is eating food.", 16) == [2, 4, 5, 6, 7, 8, 9, 10, 3]
    assert pieces.encode("Unable foods xyz", 16) == [2, 11, 12, 9, 13, 1, 3]
    assert pieces.encode("a a a a a a", 5) == [2, 4, 4, 4, 3]
    assert pieces.encode("a" * 101, 8) == [2, 1, 3]


def test_cleaning_follows_the_uncased_vocabulary():
    assert words("Café\tnaïve—ok") == ["cafe", "naive", "—", "ok"]
    assert words("it's $5\x00\u200b") == ["it", "'", "s", "$", "5"]
    assert words("日本") == ["日", "本"]
