"""The main module of a spawned process of a program that runs as PyTorch.

Python imports a spawned process's main module first, before any code of ours could say that
``import torch`` means lowtide. So it imports this one (``framework/data/process_spawn.py``), which
says so and then runs the program's own main module, as Python would have.
"""

from __future__ import annotations

import os
import runpy

import lowtide.as_torch  # noqa: F401 - from here on `import torch` means lowtide

_path, _name = (os.environ.get(f"LOWTIDE_MAIN_{what}", "") for what in ("PATH", "NAME"))
if _name:
    globals().update(runpy.run_module(_name, run_name="__mp_main__", alter_sys=True))
elif _path:
    globals().update(runpy.run_path(_path, run_name="__mp_main__"))
