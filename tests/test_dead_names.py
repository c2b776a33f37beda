"""Nothing in the product is defined and never used, except what others call by its name."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

vulture = pytest.importorskip("vulture", reason="it finds dead names: pip install vulture")

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("framework", "modules", "optim", "profiling")
READ = (*PRODUCT, "lowtide", "recipes", "tests", "benchmarks", "docs", "pytest_lowtide.py")
# What these decorate is registered with something that calls it.
DECORATORS = [
    "@op*", "@*.kernel*", "@*.vjp*", "@*.loop*", "@overload", "@property", "@register*",
    "@*.register*", "@rule*", "@*.rule*", "@function*", "@linear_algebra*", "@compiled*",
    "@inlined", "@spelled*", "@*.when_installed", "@formula*", "@update*",
]  # fmt: skip
EXCEPTIONS = {
    "Python and its libraries look for these names": (
        "__instancecheck__", "__signature__", "_missing_", "persistent_load",
    ),
    "Numba and LLVM call or read these": (
        "load_overload", "save_overload", "no_cfunc_wrapper", "no_compile",
        "no_cpython_wrapper", "linkage", "initializer", "_to_string", "notify",
        "_finalize_final_module",
    ),
    "einops calls these": (
        "LowtideBackend", "is_appropriate_type", "stack_on_zeroth_dimension", "add_axis",
        "is_float_type", "_create_parameters", "_create_rearrange_layers",
    ),
    "users and libraries call these on PyTorch's classes": (
        "RedOpType", "_new_wrapped_storage", "_recreate_cm", "_set_static_graph",
        "activation_relu_or_gelu", "bound_device_id", "get_*_factor",
        "get_growth_interval", "get_trace_id", "head_dim", "insert_arg", "inserting_before",
        "is_anomaly_check_nan_enabled", "log_cdf", "on_generate_code",
        "output_node", "print_readable", "print_tabular",
        "register_optimizer_step_post_hook", "resizable",
        "set_*_factor", "set_growth_interval", "set_is_last_backward",
        "set_modules_to_*_prefetch",
        "toggle_collection_dynamic", "update_arg", "update_kwarg",
        "use_nested_tensor",
    ),
}  # fmt: skip


def unused():
    """Names of the product that no file reads: (file, line, what it is, name)."""
    finder = vulture.Vulture(ignore_decorators=DECORATORS)
    finder.scavenge([str(ROOT / name) for name in READ])
    for item in finder.get_unused_code(min_confidence=60):
        where = Path(item.filename).relative_to(ROOT)
        if where.parts[0] in PRODUCT and item.typ not in ("variable", "import"):
            yield str(where), item.first_lineno, item.typ, item.name


@pytest.mark.deep
def test_what_is_defined_is_used():
    patterns = [p for names in EXCEPTIONS.values() for p in names]
    found = list(unused())
    dead = [one for one in found if not any(fnmatch.fnmatch(one[-1], p) for p in patterns)]
    assert dead == []
    names = [name for *_, name in found]
    idle = [p for p in patterns if not fnmatch.filter(names, p)]
    assert idle == [], "these exceptions are needed no more"
