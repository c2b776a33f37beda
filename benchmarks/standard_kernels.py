"""Which kernels most models need: writes ``framework/kernels/cpu/compiler/standard.py``.

Two steps of each of ``training_models.py``, with several optimizers, dropout and evaluation, one
thread and two; what they call is what ``lowtide compile`` compiles ahead.

    OMP_NUM_THREADS=2 python -m benchmarks.standard_kernels
"""

from __future__ import annotations

from pathlib import Path

import lowtide as lt
import lowtide.nn.functional as F
from benchmarks.training_models import MODELS, Library
from lowtide.framework.kernels.cpu.compiler import ahead, standard
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


def around() -> None:
    """What scripts do around their models: make batches, look at results."""
    n = 1 << 16
    for values in (lt.randn(n), lt.rand(n), lt.empty(n).bernoulli_(0.5), lt.empty(n).normal_()):
        x = values.reshape(256, 256).requires_grad_()
        y, several = lt.randint(0, 256, (256,)), lt.randint(0, 256, (256, 256))
        lt.randperm(n)
        x.argmax(1)
        x.max(1)
        x.topk(5)
        x.sort()
        x.t().contiguous()
        parts = [F.softmax(x, 1), F.log_softmax(x, 1), F.silu(x), F.relu(x), F.leaky_relu(x)]
        parts += [F.softplus(x), F.elu(x), lt.sigmoid(x), lt.tanh(x), F.gelu(x, approximate="tanh")]
        parts += [x[y], x.gather(1, several), x.cumsum(1), F.rms_norm(x, (256,)), F.glu(x)]
        parts += [F.dropout(x, 0.1), x.masked_fill(several > 9, 0.0), lt.where(several > 9, x, x)]
        losses = [F.mse_loss, F.l1_loss, F.smooth_l1_loss]
        losses = [f(x, values.reshape(256, 256) * 0.5) for f in losses]
        losses += [F.nll_loss(parts[1], y), F.cross_entropy(x, y, label_smoothing=0.1)]
        losses += [F.binary_cross_entropy_with_logits(x, (several > 9).float())]
        sum([*losses, *[p.sum() for p in parts]]).backward()
    small = lt.compile(lambda x: lt.where(x > 0, x, -x).softmax(-1).sum())
    for _ in range(4):
        small(lt.randn(4, 4))


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
        around()
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
    path = Path(standard.__file__)
    path.write_text(HEAD + "\n".join(sorted(seen)) + '\n"""\n')
    print(f"{len(seen)} kernels; {len(standard.KERNELS.splitlines())} before")


if __name__ == "__main__":
    main()
