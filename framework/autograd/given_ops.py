"""The ops that autograd itself calls. Ops lie above it, so each file that owns one puts it here."""

from __future__ import annotations

from typing import Any

tiles: Any  # ops/views/tiled.py
stack: Any  # ops/manipulation/cat.py
strided_view: Any  # ops/views/as_strided.py
