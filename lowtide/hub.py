"""Models of a repository's ``hubconf.py``, and weights: from local folders and files alone.

Nothing is downloaded: code and weights of others are fetched by a user who decides to trust them.
Without ``source="local"`` a repository is looked for where PyTorch's hub would have put it before.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import Any, NoReturn
from urllib.parse import unquote as _unquote
from urllib.parse import urlparse as _urlparse

from lowtide.framework.serialization import load as _load

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
"""In names of files of weights: the first digits of their hash."""

_dir: list[str | None] = [None]


def get_dir() -> str:
    """Return the folder of repositories and weights.

    :func:`set_dir` names it; else ``$TORCH_HOME/hub``, else ``torch/hub`` in ``$XDG_CACHE_HOME``
    or ``~/.cache``.
    """
    return os.path.join(_get_torch_home(), "hub") if _dir[0] is None else _dir[0]


def _get_torch_home() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set the folder of repositories and weights."""
    _dir[0] = os.path.expanduser(os.fspath(d))


def _raise_not_found(name: str, what: str, where: str) -> NoReturn:
    raise RuntimeError(
        f"hub.{name}: lowtide downloads nothing, and {what} is not in {where}. Put it there, or "
        "pass a local folder with source='local', or a file to lowtide.load."
    )


def _folder(name: str, repo_or_dir: Any, source: str) -> _Path:
    if source == "local":
        folder = _Path(repo_or_dir)
        if not (folder / "hubconf.py").is_file():
            raise FileNotFoundError(f"hub.{name}: there is no hubconf.py in {folder}.")
        return folder
    if source != "github":
        raise ValueError(f"hub.{name}: source is 'github' or 'local'; got {source!r}.")
    repository, _, branch = str(repo_or_dir).partition(":")
    start = repository.replace("/", "_") + "_"
    found = _Path(get_dir())
    folders = (
        [found / f"{start}{branch.replace('/', '_')}"]
        if branch
        else sorted(found.glob(f"{start}*"))
    )
    for folder in folders:
        if (folder / "hubconf.py").is_file():
            return folder
    _raise_not_found(name, str(repo_or_dir), get_dir())


def _hubconf(folder: _Path) -> _ModuleType:
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("hubconf", folder / "hubconf.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    missing = [
        name for name in getattr(module, "dependencies", []) if not importlib.util.find_spec(name)
    ]
    if missing:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}. Install them first.")
    return module


def _entry(module: _ModuleType, model: str) -> Any:
    found = getattr(module, model, None)
    if not isinstance(model, str) or not callable(found) or model.startswith("_"):
        names = ", ".join(_entries(module))
        raise RuntimeError(f"Cannot find callable {model} in hubconf; it has {names or 'none'}.")
    return found


def _entries(module: _ModuleType) -> Any:
    return [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]


def load(repo_or_dir: Any, model: str, *args: Any, source: str = "github", **kwargs: Any) -> Any:
    """Return what an entry point of a repository's ``hubconf.py`` makes.

    Args:
        repo_or_dir: A folder, with ``source="local"``; else ``owner/name:branch``, which must
            lie in :func:`get_dir`.
        model: The name of a function in ``hubconf.py``.
        *args: What to call it with.
        source: ``"local"`` or ``"github"``.
        **kwargs: The same, by name; ``trust_repo``, ``force_reload``, ``verbose`` and
            ``skip_validation`` are PyTorch's and change nothing.

    Raises:
        RuntimeError: The repository is not there, has no such function, or needs a package.
    """
    for name in ("trust_repo", "force_reload", "verbose", "skip_validation"):
        kwargs.pop(name, None)
    module = _hubconf(_folder("load", repo_or_dir, source))
    return _entry(module, model)(*args, **kwargs)


def list_entries(github: Any, *args: Any, source: str = "github", **ignored: Any) -> Any:
    """Return the names of a repository's entry points."""
    return _entries(_hubconf(_folder("list", github, source)))


def help(github: Any, model: str, *args: Any, source: str = "github", **ignored: Any) -> Any:
    """Return the docstring of an entry point."""
    return _entry(_hubconf(_folder("help", github, source)), model).__doc__


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> Any:
    """Load a state dict that was downloaded before, or of a ``file://`` address.

    Args:
        url: Its address; the file's name is its last part.
        model_dir: The folder it is in; ``checkpoints`` in :func:`get_dir` by default.
        map_location: As for ``lowtide.load``.
        progress: Ignored.
        check_hash: Ignored: no byte comes from the network.
        file_name: The file's name, where it is another.
        weights_only: Ignored: no object of a program's own class is made in any case.

    Raises:
        RuntimeError: The file is not there.
    """
    parts = _urlparse(url)
    if parts.scheme == "file":
        return _load(_unquote(parts.path), map_location=map_location)
    folder = model_dir or os.path.join(get_dir(), "checkpoints")
    path = os.path.join(folder, file_name or os.path.basename(parts.path))
    if not os.path.isfile(path):
        _raise_not_found("load_state_dict_from_url", url, path)
    return _load(path, map_location=map_location)


def download_url_to_file(url: str, dst: str, *args: Any, **kwargs: Any) -> None:
    """Not supported.

    Raises:
        RuntimeError: Always: nothing is downloaded.
    """
    _raise_not_found("download_url_to_file", url, dst)


list = list_entries  # PyTorch's name for it, last: it hides Python's
