"""A net, its optimizer and steps of several kinds, run plain and compiled side by side."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)
        self.factor = 1.0
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        h = self.drop(self.norm(self.first(x)).relu())
        return self.last(h) * self.factor


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "adam8bit": lambda p: optim.Adam8bit(p, lr=1e-2),
    "muon": lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=1e-2),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
}


class Setup:
    """A net, its optimizer, and whatever else a step takes."""

    def __init__(self, optimizer: str = "adamw") -> None:
        lt.manual_seed(3)
        self.net = Net()
        self.opt = OPTIMIZERS[optimizer](list(self.net.parameters()))
        self.sched = optim.lr_scheduler.StepLR(self.opt, 2, 0.5)
        self.scaler = lt.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.ema = optim.swa_utils.AveragedModel(self.net)

    def state(self) -> list[bytes]:
        """All bits that a step may change."""
        found = [t.detach().numpy().tobytes() for t in self.net.state_dict().values()]
        found += [t.detach().numpy().tobytes() for t in self.ema.state_dict().values()]
        for p in self.net.parameters():
            found.append(b"" if p.grad is None else p.grad.numpy().tobytes())
            for value in self.opt.state.get(p, {}).values():
                is_tensor = isinstance(value, lt.Tensor)
                found.append(value.numpy().tobytes() if is_tensor else repr(value).encode())
        found.append(repr(self.opt.param_groups[0]["lr"]).encode())
        found.append(repr(self.scaler.state_dict()).encode())
        found.append(lt.get_rng_state().numpy().tobytes())
        return found


def plain_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad()
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        s.opt.step()
        return loss

    return step


def clipped_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(s.net.parameters(), 0.1)
        s.opt.step()
        s.opt.zero_grad()
        s.sched.step()
        s.ema.update_parameters(s.net)
        return {"loss": loss.detach(), "norm": norm, "n": 3}

    return step


def scaled_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad(set_to_none=False)
        with lt.autocast("cpu", dtype=lt.bfloat16):
            loss = F.cross_entropy(s.net(x), y)
        s.scaler.scale(loss).backward()
        s.scaler.unscale_(s.opt)
        nn.utils.clip_grad_value_(s.net.parameters(), 0.05)
        s.scaler.step(s.opt)
        s.scaler.update()
        return loss

    return step


def accumulating_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        for part, want in zip(x.chunk(2), y.chunk(2), strict=True):
            (F.cross_entropy(s.net(part), want) / 2).backward()
        s.opt.step()
        s.opt.zero_grad()

    return step


def late_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.step()  # by the gradients of the call before
        s.opt.zero_grad()
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        return loss.detach()

    return step


def regions_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad()
        with lt.checkpointing():
            out = s.net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        s.opt.step()
        return loss, out.detach().argmax(1)

    return step


STEPS = {
    "plain": plain_step,
    "clipped": clipped_step,
    "scaled": scaled_step,
    "accumulating": accumulating_step,
    "regions": regions_step,
    "late": late_step,
}


def batches(n: int, size: int = 8) -> list[Any]:
    g = np.random.default_rng(5)
    return [
        (
            lt.tensor(g.standard_normal((size, 6)), dtype=lt.float32),
            lt.tensor(g.integers(3, size=size)),
        )
        for _ in range(n)
    ]


def bits(result: Any) -> Any:
    if isinstance(result, lt.Tensor):
        return result.requires_grad, result.dtype, result.detach().numpy().tobytes()
    if isinstance(result, tuple | list):
        return [bits(x) for x in result]
    if isinstance(result, dict):
        return {k: bits(x) for k, x in result.items()}
    return result


def equal_runs(make: Any, compiled: Any, n: int = 8, change: Any = None, optimizer="adamw") -> Any:
    """Run plain and compiled side by side; ``change(setup, k)`` comes before call ``k``."""
    plain, other = Setup(optimizer), Setup(optimizer)
    run, replayed = make(plain), compiled(make(other))
    seeds = []
    for k, (x, y) in enumerate(batches(n)):
        found = []
        for s, f in ((plain, run), (other, replayed)):
            if change is not None:
                change(s, k)
            lt.manual_seed(k)
            found.append((bits(f(x.clone(), y.clone())), s.state()))
        assert found[0] == found[1], f"call {k}"
        seeds.append(k)
    return replayed


def live() -> int:
    return lt.memory_allocated()


def loaded(file: Path) -> Any:
    """Import a file as a module, whose functions have a source."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
