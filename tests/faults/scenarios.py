"""Steps of small programs that are interrupted, refused memory, or killed: what a step touches.

A scenario has ``step()``, which returns results as NumPy arrays; ``values()``, copies of all that
outlives a step; and ``restore()``, which puts these back without any op of lowtide's.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import psutil

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.checkpointing.budget import EvictionRule
from lowtide.framework.devices import backend
from lowtide.framework.random.generator import generator_of
from lowtide.utils import CheckpointDirectory
from lowtide.utils.data import DataLoader, TensorDataset


class Training:
    """A training step: forward, backward, clip, step. Subclasses define the net."""

    whole = True  # what outlives a step is as before it or as after it, never between

    def __init__(self) -> None:
        lt.manual_seed(0)
        self.net, self.data = self.make()
        self.optimizer = self.optim(self.net.parameters())
        self._train()  # state exists from here on
        self.kept: list[Any] | None = None
        self.kept = self._now()

    def make(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the net and its data."""
        raise NotImplementedError

    def optim(self, parameters: Any) -> Any:
        """Make the optimizer."""
        return optim.AdamW(parameters, lr=1e-2)

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data
        return F.cross_entropy(self.net(x), y)

    def _train(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> list[Any]:
        """Train once, and tell the loss."""
        return [self._train().detach().numpy().copy()]

    def _tensors(self) -> list[Any]:
        found = list(self.net.parameters())
        for p in self.net.parameters():
            found += [v for v in self.optimizer.state.get(p, {}).values() if lt.is_tensor(v)]
        return found

    def _counters(self) -> list[Any]:
        return [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, int)]

    def values(self) -> list[Any]:
        """Return parameters and the optimizer's state."""
        return [t._array.copy() for t in self._tensors()] + [np.array(self._counters())]

    def _now(self) -> list[Any]:
        g = generator_of(lt.device("cpu"))
        state = {
            p: {k: v._array.copy() if lt.is_tensor(v) else v for k, v in s.items()}
            for p, s in self.optimizer.state.items()
        }
        buffers = [b._array.copy() for b in self.net.buffers()]
        params = [p._array.copy() for p in self.net.parameters()]
        return [params, buffers, state, (g._seed, g._offset)]

    def restore(self) -> None:
        """Put all back as it was before the first step."""
        params, buffers, state, (seed, offset) = self.kept  # type: ignore[misc]
        for p, a in zip(self.net.parameters(), params, strict=True):
            p._array[...] = a
            p._grad = None
        for b, a in zip(self.net.buffers(), buffers, strict=True):
            b._array[...] = a
        for p, entries in state.items():
            for k, v in entries.items():
                if isinstance(v, np.ndarray):
                    self.optimizer.state[p][k]._array[...] = v
                else:
                    self.optimizer.state[p][k] = v
        generator_of(lt.device("cpu"))._set(seed, offset)


class Mlp(Training):
    """Linear layers, dropout, views and writes in place."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 4)
        )
        return net, (lt.randn(12, 8), lt.randint(0, 4, (12,)))

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data
        h = self.net(x) * 1.0
        h[:, 1:].mul_(0.5)
        h.t()[0].add_(1.0)
        return F.cross_entropy(h, y)


class Convolution(Training):
    """A convolution with batch norm, half of it under autocast; SGD with clipping."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 4),
        )
        return net, (lt.randn(4, 2, 8, 8), lt.randint(0, 4, (4,)))

    def optim(self, parameters: Any) -> Any:
        """Make the optimizer."""
        return optim.SGD(parameters, lr=1e-2, momentum=0.9)

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data
        with lt.autocast("cpu"):
            out = self.net(x)
        with lt.no_grad():
            out.detach().softmax(-1).sum()
        return F.cross_entropy(out.float(), y)


class Windows(Training):
    """Convolutions that are transformed or have channels side by side, and padding by reflection.

    In every step an image has a number far above the others: it is computed again, directly.
    """

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReflectionPad2d(1),
            nn.Conv2d(24, 24, 3, groups=24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 4),
        )
        x = lt.randn(8, 24, 9, 9)
        x[3, 5, 4, 4] = 1e6
        return net, (x, lt.randint(0, 4, (8,)))


class Matrices(Training):
    """Decompositions of a stack that threads share out, distances, and a factor tried twice."""

    def make(self) -> Any:
        """Return a layer whose result is a stack of points, and points."""
        return nn.Sequential(nn.PReLU(66), nn.Linear(3, 3)), (lt.randn(8, 66, 3),)

    def loss(self) -> Any:
        """Return the loss."""
        (x,) = self.data
        points = self.net(x)
        kernel = (-lt.cdist(points, points, 1.0)).exp() + 0.1 * lt.eye(66)
        factor = lt.linalg.cholesky(kernel)
        solved = lt.linalg.solve(kernel, points)
        values = lt.linalg.eigvalsh(kernel)
        with lt.no_grad():
            lt.linalg.cholesky_ex(kernel - 0.2 * lt.eye(66))  # tried in float64
            lt.linalg.eigh(kernel), lt.linalg.svd(kernel)
        size = lt.linalg.slogdet(kernel)[1].sum() + F.pdist(points[0]).sum()
        return factor.sum() + solved.sum() + values.sum() + size


class Regions(Training):
    """Nested regions of activation checkpointing, with a policy, random numbers and writes."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(
            nn.Linear(8, 16),
            nn.Tanh(),
            nn.Dropout(0.2),
            nn.Linear(16, 16),
            nn.GELU(),
            nn.LayerNorm(16),
            nn.Linear(16, 4),
        )
        return net, (lt.randn(6, 8), lt.randint(0, 4, (6,)))

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data

        def inner(h: Any) -> Any:
            h = self.net[4](self.net[3](h))
            h = h * 2.0
            h.mul_(0.5)
            return h

        def outer(x: Any) -> Any:
            h = self.net[2](self.net[1](self.net[0](x)))
            return self.net[5](lt.checkpoint(inner, h))

        with lt.checkpointing(lt.checkpointing.policies.save_matmuls):
            h = outer(x)
        h = lt.checkpoint(lambda h: h * h.sigmoid(), h)
        return F.cross_entropy(self.net[6](h), y)


class Attention(Training):
    """Embedding, attention, hooks on gradients and on saved values, a user's function."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.ModuleDict(
            {
                "embed": nn.Embedding(11, 8),
                "block": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
                "head": nn.Linear(8, 11),
            }
        )
        return net, (lt.randint(0, 11, (2, 5)), lt.randint(0, 11, (2, 5)))

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data
        h = self.net["embed"](x)
        h.register_hook(lambda g: g * 1.0)
        with lt.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            h = self.net["block"](h)
        h = Doubled.apply(h)
        return F.cross_entropy(self.net["head"](h).flatten(0, 1), y.flatten())


class Doubled(lt.autograd.Function):
    """Twice its input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Compute it."""
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        """Compute its gradient."""
        (x,) = ctx.saved_tensors
        return g * 2.0 + 0.0 * x


class Second(Training):
    """Gradients of gradients, accumulated over two backward passes; RMSprop, clipped."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        return net, (lt.randn(5, 4), lt.randn(5, 1))

    def optim(self, parameters: Any) -> Any:
        """Make the optimizer."""
        return optim.RMSprop(parameters, lr=1e-2, momentum=0.5)

    def _train(self) -> Any:
        self.optimizer.zero_grad()
        x, y = self.data
        x = x.detach().requires_grad_()
        out = self.net(x)
        (g,) = lt.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.mse_loss(out, y) + g.square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss


class Churn:
    """Tensors of ever other sizes, so that the pool searches, folds and trims."""

    whole = False

    def __init__(self) -> None:
        self.sizes = [int(n) for n in np.random.default_rng(0).integers(1, 3000, 60)]

    def step(self) -> list[Any]:
        """Take and give memory."""
        held: list[Any] = []
        total = 0.0
        for k, n in enumerate(self.sizes):
            held.append(lt.full((n,), float(k)))
            if k % 3 == 2:
                held.pop(k % len(held))
            if k % 20 == 19:
                lt.empty_cache("cpu")
        for t in held:
            total = total * 0.5 + float(t.sum()) + float(t[0])
        return [np.array(total)]

    def values(self) -> list[Any]:
        """Nothing outlives a step."""
        return []

    def restore(self) -> None:
        """Nothing outlives a step."""


class Files:
    """Save and load in memory."""

    whole = False

    def __init__(self) -> None:
        lt.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.data = {k: v._array.copy() for k, v in self.net.state_dict().items()}
        self.state = {
            k: lt.randn(*v.shape) if v.ndim else v + 1 for k, v in self.net.state_dict().items()
        }

    def step(self) -> list[Any]:
        """Save, load, and give the net its state."""
        file = io.BytesIO()
        lt.save({"net": self.state, "n": [1, 2.5, "x"]}, file)
        file.seek(0)
        self.net.load_state_dict(lt.load(file)["net"])
        return [v._array.copy() for v in self.net.state_dict().values()]

    def values(self) -> list[Any]:
        """Return the net's state."""
        return [v._array.copy() for v in self.net.state_dict().values()]

    def restore(self) -> None:
        """Put it back."""
        for k, v in self.net.state_dict().items():
            v._array[...] = self.data[k]


class Checkpoints(Mlp):
    """Save a training checkpoint to a folder, and restore all from another one there."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()
        self.directory = CheckpointDirectory(self.folder.name, keep=2)
        super().step()
        self.directory.save(0, net=self.net, optimizer=self.optimizer)
        self.restore()

    def step(self) -> list[Any]:
        """Save what is, and go back to what was saved first."""
        self.directory.save(1, net=self.net, optimizer=self.optimizer)
        self.directory.restore(step=0, net=self.net, optimizer=self.optimizer)
        return []

    def left(self) -> list[str]:
        """Files that should not be there, once the next checkpoint is saved."""
        self.directory.save(1, net=self.net, optimizer=self.optimizer)
        names = sorted(n for n in os.listdir(self.folder.name) if not n.startswith(".writer"))
        wanted = ["step_00000000.safetensors", "step_00000001.safetensors"]
        return [] if names == wanted else [f"the folder has {names}"]


class Loading:
    """An epoch of a data loader: shuffled, collated, with a cursor; and one with two workers."""

    whole = False

    def __init__(self) -> None:
        self.data = TensorDataset(lt.arange(24).float().view(12, 2), lt.arange(12))

    def step(self) -> list[Any]:
        """Go through the data, twice."""
        found = []
        for workers in (0, 2):
            g = lt.Generator().manual_seed(5)
            loader = DataLoader(
                self.data, batch_size=4, shuffle=True, generator=g, num_workers=workers
            )
            found += [x._array.copy() for batch in loader for x in batch]
        return found

    def values(self) -> list[Any]:
        """Nothing outlives a step."""
        return []

    def restore(self) -> None:
        """Nothing outlives a step."""

    def left(self) -> list[str]:
        """Workers that go on."""
        for _ in range(200):
            children = [c for c in psutil.Process().children() if c.status() != "zombie"]
            if not children:
                return []
            time.sleep(0.01)
        return [f"{len(children)} workers go on"]


class Profiled(Mlp):
    """A step under the profiler, and one that is estimated by shapes on meta."""

    def step(self) -> list[Any]:
        """Train once inside a profiler."""
        with lt.profiling.MemoryProfiler(lines=False) as prof:
            found = super().step()
        return [*found, np.array(prof.peak_bytes >= 0)]


class Budgeted(Training):
    """A step in a budget of bytes that drops some of what it saves, and makes it again."""

    limit: int | None = None

    def make(self) -> Any:
        """Return the net and its data."""
        block = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1)]
        net = nn.Sequential(*block, *[nn.Linear(16, 16), nn.ReLU(inplace=True)] * 2)
        return net, (lt.randn(64, 16), lt.randint(0, 16, (64,)))

    def step(self) -> list[Any]:
        """Train once; from the second time on, within a budget."""
        ledger = backend(lt.device("cpu")).ledger
        if self.limit is None:
            start = ledger.live
            ledger.reset_peak()
            found = super().step()
            self.limit = start + (ledger.peak - start) * 3 // 5
            return found
        ledger.reset_peak()
        with lt.memory_budget(self.limit, rule=EvictionRule(smallest=0)) as budget:
            found = super().step()
        return [*found, np.array([budget.evictions > 2, ledger.peak <= self.limit])]


class Compiled(Training):
    """What is recorded before anything is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for _ in range(12):
                self.step()
                self.restore()


class Replayed(Compiled):
    """A step that is replayed."""

    def make(self) -> Any:
        """Return the net and its data."""
        net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4)
        )
        self.compiled = lt.compile(super()._train)
        return net, (lt.randn(12, 8), lt.randint(0, 4, (12,)))

    def _train(self) -> Any:
        return self.compiled()


class Reading(nn.Module):
    """A layer that cannot be recorded, around one that can."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 8))
        self.seen: list[float] = []

    def forward(self, x: Any) -> Any:
        h = x + self.inside(x)
        self.seen.append(h.sum().item())
        del self.seen[:-1]
        return h.tanh()


class Parts(Compiled):
    """A model of which parts are replayed, and others run as they are written."""

    def make(self) -> Any:
        """Return the net and its data."""
        layer = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 8)]
        net = nn.Sequential(nn.Sequential(*layer), Reading(), nn.Linear(8, 4))
        self.model = lt.compile(net)
        return net, (lt.randn(12, 8), lt.randint(0, 4, (12,)))

    def loss(self) -> Any:
        """Return the loss."""
        x, y = self.data
        return F.cross_entropy(self.model(x), y)


SCENARIOS = [
    Mlp,
    Convolution,
    Windows,
    Matrices,
    Regions,
    Budgeted,
    Attention,
    Second,
    Churn,
    Files,
    Checkpoints,
    Loading,
    Profiled,
    Replayed,
    Parts,
]
