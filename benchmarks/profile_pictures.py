"""Pictures of the documentation, ``docs/pictures/``: three steps of the recipe ``chargpt``, and
what ``train``, ``eval`` and ``no_grad`` do to memory.

``python benchmarks/profile_pictures.py``. The page is photographed by Chromium, if there is one.
Bytes in the pictures are those of any run; times are this machine's.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import lowtide as lt
from lowtide import nn

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
FLAGS = """--headless --no-sandbox --disable-gpu --no-first-run --disable-sync --hide-scrollbars
    --disable-background-networking --disable-component-update --disable-quic""".split()


def profile_recipe(*options: str) -> lt.profiling.MemoryProfiler:
    """Run the recipe under a profiler, as it is."""
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["chargpt.py", "--steps", "3", "--sample", "1", "--out", folder, *options]
        with lt.profiling.MemoryProfiler() as prof:
            runpy.run_path(str(ROOT / "recipes" / "chargpt.py"), run_name="__main__")
    return prof


def profile_modes() -> lt.profiling.MemoryProfiler:
    """The same forward pass in training, in evaluation, and in evaluation under ``no_grad``."""
    layers = [(nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    model = nn.Sequential(*(nn.Sequential(*layer) for layer in layers))
    x = lt.randn(2048, 512)
    model(x).sum().backward()  # kernels are compiled, gradients are there
    with lt.profiling.MemoryProfiler(modules=model) as prof:
        kept = []
        for mode in (model.train, model.eval):
            mode()
            loss = model(x).sum()
            kept.append(lt.memory_stats("cpu")["by_role"]["saved"])
            loss.backward()
            del loss
            prof.mark(f"{mode.__name__}()")
        with lt.no_grad():
            model(x).sum()
            kept.append(lt.memory_stats("cpu")["by_role"]["saved"])
        prof.mark("eval() and no_grad")
    assert kept[0] == kept[1] > kept[2] == 0, kept
    print(f"kept for backward in train() and eval(): {kept[0]:,} bytes, under no_grad: {kept[2]:,}")
    return prof


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Write what a browser shows of the page's beginning."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{picture.name}: no Chromium, not made")
        return
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        command = [browser, *FLAGS, *options, f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    prof = profile_recipe()
    prof.plot(PICTURES / "chargpt.png")
    prof.plot(PICTURES / "chargpt_modules.png", by="module")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        prof.html(page)
        photograph(page, PICTURES / "chargpt_page.png", 1200, 1000)
    profile_modes().plot(PICTURES / "modes.png")
    for picture in [*sorted(PICTURES.glob("chargpt*.png")), PICTURES / "modes.png"]:
        Image.open(picture).convert("RGB").quantize(96).save(picture, optimize=True)
        print(f"{picture.name}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
