"""Run as PyTorch: from the import of this package on, ``import torch`` answers with lowtide.

``import lowtide.as_torch`` puts a finder before all others, so that this holds for packages that
import torch themselves, whether PyTorch is installed or not. ``torch.nn`` *is* ``lowtide.nn``, and
``torch.Tensor`` is ``lowtide.Tensor``: there is one class of each, and ``isinstance`` works across.
Only two modules are made anew: ``torch`` itself, which has lowtide's names and those private ones
that libraries ask for, and ``torch.version``. Both say ``2.13.0+lowtide0.1.0``: the version of
PyTorch whose names and semantics lowtide has, and lowtide's own.

For scripts as they are: ``lowtide run-as-torch script.py``, or ``python -m lowtide.as_torch``.

Raises:
    ImportError: PyTorch itself was imported before: two libraries cannot share a name.
"""

from lowtide.as_torch.finder import install as _install

_install()
