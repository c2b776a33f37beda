"""Which kernels most models need: writes ``framework/kernels/cpu/compiler/standard.py``.

Two steps of each of ``training_models.py``, with several optimizers, dropout and evaluation, one
thread and two; what they call is what ``lowtide compile`` compiles ahead.

    OMP_NUM_THREADS=2 python -m benchmarks.standard_kernels
"""

from __future__ import annotations

import lowtide as lt
import lowtide.nn.functional as F
from benchmarks.training_models import MODELS, Library
from lowtide.framework.kernels.cpu.compiler import ahead, library, standard
from lowtide.framework.kernels.cpu.compiler.kernel import Kernel

HEAD = '''# ruff: noqa: E501 - a line is a kernel
"""Kernels that most models need; written by ``python -m benchmarks.standard_kernels``.

Each line: module, function, signature, what its floating-point arithmetic may do.
"""

KERNELS = """\\
'''
OPTIMIZERS = [
    lambda p: lt.optim.AdamW(p, lr=1e-3),
    lambda p: lt.optim.SGD(p, lr=1e-3, momentum=0.9),
    lambda p: lt.optim.RMSprop(p, lr=1e-3),
]


def main() -> None:
    """Run the models, note what they call, write the file."""
    seen: set[str] = set()
    make = Kernel._make

    def noted(self: Kernel, words: str) -> object:
        seen.add(ahead.described(self, words))
        return make(self, words)

    Kernel._make = noted  # type: ignore[method-assign]
    for threads in (2, 1):
        lt.set_num_threads(threads)
        for name in MODELS:
            model, loss_of = MODELS[name](Library(lt, F, lt.optim))
            model.eval()
            with lt.no_grad():
                loss_of()
            model.train()
            for optimizer_of in OPTIMIZERS[: 1 if name == "gpt_vocab" else None]:
                optimizer = optimizer_of(model.parameters())
                for _ in range(2):
                    optimizer.zero_grad()
                    F.dropout(loss_of() * lt.ones(1 << 13), 0.1).mean().backward()
                    lt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
    path = library.ROOT / "kernels/cpu/compiler/standard.py"
    path.write_text(HEAD + "\n".join(sorted(seen)) + '\n"""\n')
    print(f"{len(seen)} kernels; {len(standard.KERNELS.splitlines())} before")


if __name__ == "__main__":
    main()
