"""Build the site of the documentation: ``python docs/build.py``, after ``pip install '.[docs]'``.

The pages of this folder are copied beside what is made for the site alone: the start page
(README.md), the changes, and the API reference. Its pages list what the modules offer when they are
imported, since ops install their functions by declarations; Sphinx reads the docstrings of those.
Notebooks are run. A broken link, a notebook that fails, a name that is not there or a docstring
that cannot be read is an error.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

MODULES = {  # of the reference, and what each is for
    "lowtide.nn": "Modules and containers",
    "lowtide.nn.functional": "Functions of layers and losses",
    "lowtide.nn.init": "Initialization of parameters",
    "lowtide.nn.utils": "Clipping, parametrizations, packed sequences",
    "lowtide.optim": "Optimizers",
    "lowtide.optim.lr_scheduler": "Schedules of learning rates",
    "lowtide.profiling": "Memory: record, predict, compare, advise",
    "lowtide.checkpointing": "Activation checkpointing",
    "lowtide.utils": "Training checkpoints",
    "lowtide.utils.data": "Data sets and loaders",
    "lowtide.utils.loggers": "Scalars and memory to CSV and JSON lines",
    "lowtide.utils.tensorboard": "The same for TensorBoard",
    "lowtide.amp": "Automatic mixed precision",
    "lowtide.autograd": "Gradients, and functions of one's own",
    "lowtide.func": "Functional transforms",
    "lowtide.distributions": "Probability distributions",
    "lowtide.distributions.transforms": "Transforms of distributions",
    "lowtide.distributions.constraints": "Constraints of parameters and samples",
    "lowtide.linalg": "Linear algebra",
    "lowtide.fft": "Fourier transforms",
    "lowtide.sparse": "Sparse tensors",
    "lowtide.special": "Special functions",
    "lowtide.testing": "Comparisons in tests",
}


def public_names(module: Any) -> list[str]:
    """The classes and functions of lowtide that a module offers, with docstrings, by name."""
    found = []
    for name in getattr(module, "__all__", None) or dir(module):
        value = getattr(module, name)
        ours = str(getattr(value, "__module__", "")).startswith("lowtide")
        callable_ = inspect.isclass(value) or inspect.isroutine(value)
        if not name.startswith("_") and ours and callable_ and value.__doc__:
            found.append(name)
    return sorted(found, key=lambda name: (name.lower(), name))


def family(value: Any) -> str:
    """The family of ops in which a function of ``lowtide`` lies, or "" for what is none."""
    found = re.match(r"lowtide\.framework\.ops\.(\w+)\.", str(getattr(value, "__module__", "")))
    return found.group(1) if found else ""


def entry(module: str, name: str, indexed: set[int]) -> str:
    """The directive for one name; ``indexed`` holds those that an earlier page has."""
    value = getattr(importlib.import_module(module), name)
    options = "   :no-index:\n" if id(value) in indexed else ""
    indexed.add(id(value))
    if not inspect.isclass(value):
        return f".. autofunction:: {module}.{name}\n{options}"
    # The methods of a Tensor are the functions of ops: they stand on their own pages.
    members = "" if name == "Tensor" else "   :members:\n"
    return f".. autoclass:: {module}.{name}\n{members}{options}"


def page(module: str, names: list[str], title: str, indexed: set[int]) -> str:
    """A page of the reference, in reStructuredText."""
    parts = [f"{title}\n{'=' * len(title)}\n", f".. currentmodule:: {module}\n"]
    return "\n".join([*parts, *[entry(module, name, indexed) for name in names]])


def reference() -> dict[str, str]:
    """The pages of the API reference, by file."""
    pages, listed = {}, []
    indexed: set[int] = set()
    lowtide = importlib.import_module("lowtide")
    by_family: dict[str, list[str]] = {}
    for name in public_names(lowtide):
        by_family.setdefault(family(getattr(lowtide, name)), []).append(name)
    pages["lowtide.rst"] = page("lowtide", by_family.pop(""), "lowtide", indexed)
    listed.append(("lowtide", "Tensors, dtypes, devices, modes, memory, files"))
    for found, names in sorted(by_family.items()):
        pages[f"ops_{found}.rst"] = page("lowtide", names, f"lowtide: {found}", indexed)
        listed.append((f"ops_{found}", f"{len(names)} functions of the family"))
    for module, about in MODULES.items():
        file = module.removeprefix("lowtide.").replace(".", "_")
        names = public_names(importlib.import_module(module))
        pages[f"{file}.rst"] = page(module, names, module, indexed)
        listed.append((file, about))
    rows = "\n".join(f"- [](api/{file}.rst): {about}" for file, about in listed)
    tree = "\n".join(f"api/{file}" for file, _ in listed)
    pages["../api.md"] = (
        "# API reference\n\nMade from the docstrings. Functions of `lowtide` are methods of a "
        "Tensor, too, where PyTorch's are; [operators](operators.md) lists them with what each "
        f"keeps for backward.\n\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return pages


TREE = """
```{toctree}
:hidden:
:caption: Tasks
tasks/out_of_memory
tasks/evaluation
tasks/batch_size
tasks/budget
tasks/resume
tasks/memory_tests
tasks/log_training
tasks/pytorch_script
```

```{toctree}
:hidden:
:caption: Notebooks
notebooks/where_memory_goes
notebooks/predict_and_fit
notebooks/checkpointing
```

```{toctree}
:hidden:
:caption: Guides
memory_model
no_grad_and_detach
vmap
prediction
memory_pictures
leaks
budget
checkpointing
compile
optimizer_memory
training_checkpoints
distributed
reliability
gpu
formulas
from_pytorch
public_names
signatures
edge_values
```

```{toctree}
:hidden:
:caption: Reference
api
operators
mistakes
benchmarks
profiler_json
```

```{toctree}
:hidden:
:caption: Development
design
add_an_op
microkernel
contributing
roadmap
changes
```
"""


def site_links(text: str) -> str:
    """Links of a page in the repository, turned into those of the site.

    What is no page of the site, such as a script or a table of the tests, keeps its words alone.
    """
    for name, page_name in (("CHANGELOG", "changes"), ("CONTRIBUTING", "contributing")):
        text = re.sub(rf"\]\((\.\./)?{name}\.md\)", f"]({page_name}.md)", text)
    text = text.replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)?(?:tests|benchmarks|recipes)/[\w/.]+\)", r"\1", text)


def gather(source: Path) -> None:
    """Copy the pages into a folder, and make the others beside them."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("build.py"))
    for file in source.glob("*.md"):
        file.write_text(site_links(file.read_text(encoding="utf-8")), encoding="utf-8")
    for name, copy in (
        ("CHANGELOG", "changes"),
        ("CONTRIBUTING", "contributing"),
        ("README", "index"),
    ):
        text = site_links((ROOT / f"{name}.md").read_text(encoding="utf-8"))
        (source / f"{copy}.md").write_text(text, encoding="utf-8")
    with (source / "index.md").open("a", encoding="utf-8") as index:
        index.write(TREE)
    (source / "api").mkdir()
    for page_name, text in reference().items():
        (source / "api" / page_name).write_text(text, encoding="utf-8")


def main() -> int:
    """Build; the exit code is Sphinx's."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out.resolve()
    source = out.parent / f"{out.name}-source"
    gather(source)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run([*command, str(source), str(out)], check=False)
    if not done.returncode:
        print(out / "index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
