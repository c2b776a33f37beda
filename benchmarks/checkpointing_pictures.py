"""The pictures of ``docs/checkpointing.md``: one training step of a GPT, kept in four ways.

``python benchmarks/checkpointing_pictures.py``. The model is that of the recipe ``chargpt`` with
six blocks and dropout 0.1. All pictures have the same scale, that of the plain step. Bytes are
those of any machine; times are this one's.
"""

from __future__ import annotations

import io
import runpy
import tempfile
from pathlib import Path

from PIL import Image

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import checkpointing as ck
from lowtide.profiling.report.plot import figure

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
BATCH, CONTEXT = 16, 128
WARM = 2  # steps before the one that is drawn: compiled kernels, the optimizer's state


def profiled(prepare, around=None):
    """A profile of one step, and what backward waits for when forward ends.

    Args:
        prepare: What to do with each block before.
        around: A context manager around the forward.
    """
    lt.manual_seed(0)
    recipe = runpy.run_path(str(ROOT / "recipes" / "chargpt.py"), run_name="chargpt")
    model = recipe["GPT"](66, CONTEXT, width=160, depth=6, heads=5, dropout=0.1)
    for block in model.blocks:
        prepare(block)
    optimizer = lt.optim.AdamW(model.parameters())
    tokens = lt.randint(0, 66, (BATCH, CONTEXT + 1))
    kept = []

    def step():
        optimizer.zero_grad()
        if around is None:
            logits = model(tokens[:, :-1])
        else:
            with around:
                logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        kept.append(lt.memory_stats()["by_role"]["saved"])
        loss.backward()
        optimizer.step()

    for _ in range(WARM):
        step()
    with lt.profiling.MemoryProfiler() as prof:
        step()
    return prof, kept[-1]


def main() -> None:
    """Make the pictures, and print the table."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        disk = ck.offload_to_disk(folder)
        cases = {
            "plain": profiled(lambda block: None),
            "selective": profiled(lambda block: block.set_checkpointing(ck.save_matmuls)),
            "blocks": profiled(lambda block: block.set_checkpointing()),
            "blocks_disk": profiled(lambda block: block.set_checkpointing(), disk),
        }
    figures = {name: figure(prof.recording) for name, (prof, _) in cases.items()}
    _, top = figures["plain"].axes[0].get_ylim()
    for name, made in figures.items():
        made.axes[0].set_ylim(0, top)
        drawn = io.BytesIO()
        made.savefig(drawn, format="png")
        path = PICTURES / f"checkpointing_{name}.png"
        Image.open(drawn).convert("RGB").quantize(96).save(path, optimize=True)
        prof, kept = cases[name]
        print(
            f"{name:12} peak {prof.peak_bytes / 2**20:7.2f} MiB, kept for backward "
            f"{kept / 2**20:7.2f} MiB, {path.name} {path.stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
