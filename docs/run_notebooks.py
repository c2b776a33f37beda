"""Run the notebooks and store their outputs: ``python docs/run_notebooks.py``.

Needs ``pip install '.[docs]'``. Each notebook runs in a new kernel, in a temporary folder. Kept are
what its cells print and what they show; notices on the standard error are not.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebooks"


def kept(output: Any) -> bool:
    """True for what is stored: all but the standard error."""
    return bool(output.get("name") != "stderr")


def main() -> None:
    """Run all notebooks."""
    import nbformat
    from nbclient import NotebookClient

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, resources=resources, kernel_name="python3").execute()
        for cell in notebook.cells:
            cell.metadata = {}  # times of the run
            if cell.cell_type != "code":
                continue
            cell.outputs = [output for output in cell.outputs if kept(output)]
            for output in cell.outputs:
                data = output.get("data", {})
                if len(data) > 1:  # the text of what has a picture or a table is an object's name
                    data.pop("text/plain", None)
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        nbformat.write(notebook, path)
        print(f"{path.name}: {os.path.getsize(path):,} bytes")


if __name__ == "__main__":
    main()
