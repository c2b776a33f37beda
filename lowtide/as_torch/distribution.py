"""The installed package "torch" that ``importlib.metadata`` finds: version gates ask for it."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import lowtide
from lowtide.as_torch.torch_version import __version__

METADATA = f"""\
Metadata-Version: 2.1
Name: torch
Version: {__version__}
Summary: lowtide, under the name of PyTorch
"""


class TorchDistribution(metadata.Distribution):
    """Metadata of a package "torch" that needs nothing and owns no files."""

    def read_text(self, filename: str) -> str | None:
        """Return the text of METADATA; there is no other file."""
        return METADATA if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Return where a file would be: beside lowtide's own."""
        return Path(lowtide.__path__[0]).parent / path
