"""Every layer of ``lowtide.nn`` has a case; found by reflection, so a new layer needs one."""

from __future__ import annotations

import lowtide as lt
from tests.modules.table import all_cases

WITHOUT = {
    "Module": "the base class",
    "Sequential": "a container: tests/modules/test_container.py",
    "ModuleList": "a container",
    "ModuleDict": "a container",
    "ParameterList": "a container",
    "ParameterDict": "a container",
    "Container": "a container",
    "DataParallel": "a wrapper: tests/modules/test_parallel.py",
    "SyncBatchNorm": "PyTorch's wants a GPU: tests/modules/test_parallel.py",
    "RNNBase": "a base class",
    "RNNCellBase": "a base class",
}


def test_every_layer_has_a_case():
    found = {
        name
        for name, value in vars(lt.nn).items()
        if isinstance(value, type)
        and issubclass(value, lt.nn.Module)
        and name[0] != "_"
        and not name.startswith("Lazy")  # tests/modules/test_lazy.py
    }
    covered = {c.layer for c in all_cases()}
    assert sorted(found - covered - set(WITHOUT)) == []
    assert sorted(covered - found) == []
