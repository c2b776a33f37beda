"""Refuses every allocation of a training loop in turn, and looks at what it leaves behind.

For each optimizer and model, in the iteration that makes the optimizer's state and in the one after
it, the n-th allocation is refused, for every n. A refused step, clipping, unscaling or average must
leave everything as it was, bit for bit; a refused forward or backward may have moved buffers, each
as a whole, and made gradients. Then the user goes on: tries the refused stage again, or, after a
refused forward or backward, begins the iteration anew with ``zero_grad``. It must end as the
untouched run does.

From the checkout's root::

    python -m tests.faults.refusals            # every allocation of every loop
    python -m tests.faults.refusals AdamW SGD  # of some
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lowtide as lt
from lowtide.framework.devices.host import HostBackend
from lowtide.framework.memory.ledger import TEMPORARY
from lowtide.framework.modes import local

nn = lt.nn
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {"lr": 1.0},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "centered": True},
    "Rprop": {"lr": 0.1},
    "ASGD": {"lr": 0.1, "t0": 1.0},
    "Lion": {"lr": 0.01},
    "Adafactor": {"lr": 0.1},
    "Adam8bit": {"lr": 0.1, "min_8bit_size": 0},
    "AdamW8bit": {"lr": 0.1},
    "Muon": {"lr": 0.1},
    "LBFGS": {"lr": 0.1, "max_iter": 3, "history_size": 2},
}
BEFORE_GRADIENTS = ("forward", "backward")  # a refusal there begins the iteration anew


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        return self.head(self.attention(x, x, x)[0].mean(1))


def _mlp() -> tuple[Any, Any]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), lt.randn(5, 6)


def _wide() -> tuple[Any, Any]:  # enough elements for compiled steps
    return nn.Sequential(nn.Linear(64, 200), nn.Tanh(), nn.Linear(200, 30)), lt.randn(5, 64)


def _halves() -> tuple[Any, Any]:
    model, x = _mlp()
    return model.to(lt.bfloat16), x.to(lt.bfloat16)


def _convolution() -> tuple[Any, Any]:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    return model, lt.randn(3, 2, 4, 4)


def _attention() -> tuple[Any, Any]:
    return _Attention(), lt.randint(0, 11, (3, 4))


MODELS = {
    "mlp": _mlp,
    "wide": _wide,
    "halves": _halves,
    "convolution": _convolution,
    "attention": _attention,
}


class Loop:
    """A training loop in stages, all of whose state can be looked at.

    Args:
        optimizer: A name in ``OPTIMIZERS``.
        model: One in ``MODELS``.
    """

    def __init__(self, optimizer: str, model: str) -> None:
        lt.manual_seed(0)
        self.model, self.x = MODELS[model]()
        self.ema = lt.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=lt.optim.swa_utils.get_ema_multi_avg_fn(0.75)
        )
        params = [p for p in self.model.parameters() if optimizer != "Muon" or p.ndim == 2]
        self.optimizer = getattr(lt.optim, optimizer)(params, **OPTIMIZERS[optimizer])
        self.scheduler = lt.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.scaler = lt.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.loss: Any = None
        names = ["forward", "backward", "unscale", "clip", "step", "update", "schedule", "average"]
        if optimizer == "LBFGS":  # its step is forward and backward
            names = ["minimize", "schedule", "average"]
        self.stages = names  # of methods; not these themselves, which would be a cycle

    def forward(self) -> None:
        self.model.zero_grad()
        self.loss = (self.model(self.x).float() ** 2).mean()

    def backward(self) -> None:
        self.scaler.scale(self.loss).backward()
        self.loss = None

    def unscale(self) -> None:
        self.scaler.unscale_(self.optimizer)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        nn.utils.clip_grad_value_(self.model.parameters(), 0.05)

    def step(self) -> None:
        self.scaler.step(self.optimizer)

    def minimize(self) -> None:
        def closure() -> Any:
            self.model.zero_grad()
            loss = (self.model(self.x).float() ** 2).mean()
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def update(self) -> None:
        self.scaler.update()

    def schedule(self) -> None:
        self.scheduler.step()

    def average(self) -> None:
        self.ema.update_parameters(self.model)

    def iterate(self) -> None:
        """One whole iteration."""
        for stage in self.stages:
            getattr(self, stage)()

    def look(self, gradients: bool = True) -> dict[str, Any]:
        """The bytes and numbers of everything that an iteration changes."""
        found: dict[str, Any] = {}
        for name, p in self.model.named_parameters():
            found[f"parameter {name}"] = _bytes(p)
            if gradients:
                found[f"gradient {name}"] = None if p.grad is None else _bytes(p.grad)
        for name, b in self.model.named_buffers():
            found[f"buffer {name}"] = _bytes(b)
        for name, t in self.ema.state_dict().items():
            kind = "average of a buffer" if name.endswith(_RUNNING) else "average"
            found[f"{kind} {name}"] = _bytes(t)
        for k, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                found[f"state {k} {name}"] = _value(value)
        found["rates"] = [group["lr"] for group in self.optimizer.param_groups]
        found["schedule"] = (self.scheduler.last_epoch, self.scheduler._step_count)
        found["scaler"] = self.scaler.state_dict()
        found["modes"] = (lt.is_grad_enabled(), local.state.phase, local.state.recorder)
        found["busy"] = bool(self.optimizer.__dict__.get("_in_step"))
        return found


_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def _bytes(t: Any) -> bytes:
    t = t.detach()
    return bytes((t.float() if t.dtype is lt.bfloat16 else t).numpy().tobytes())


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(v) for v in value]
    return _bytes(value) if isinstance(value, lt.Tensor) else value


class Refusal:
    """Counts allocations on the CPU, and refuses one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Count, and refuse, within the block."""
        really = HostBackend.empty

        def empty(backend: Any, spec: Any, role: int = TEMPORARY) -> Any:
            self.count += 1
            if self.count == self.at:
                ledger = backend.ledger
                before, ledger.limit = ledger.limit, ledger.live
                try:
                    ledger.refuse(spec.nbytes)
                finally:
                    ledger.limit = before
            return really(backend, spec, role)

        HostBackend.empty = empty  # type: ignore[method-assign]
        try:
            yield
        finally:
            HostBackend.empty = really  # type: ignore[method-assign]


class Untouched:
    """A run that nothing is refused: where it ends, and how many allocations an iteration makes."""

    def __init__(self, optimizer: str, model: str, iteration: int) -> None:
        self.optimizer, self.model, self.iteration = optimizer, model, iteration
        loop = self.begun()
        refusal = Refusal()
        self.after_forward: dict[str, Any] = {}
        with refusal.armed():
            for name in loop.stages:
                getattr(loop, name)()
                if name == "forward":
                    before, self.after_forward = refusal.count, loop.look()
                    refusal.count = before  # looking may allocate
        self.allocations = refusal.count
        self.end = loop.look()

    def begun(self) -> Loop:
        """A loop at the start of the iteration."""
        loop = Loop(self.optimizer, self.model)
        for _ in range(self.iteration):
            loop.iterate()
        loop.model.zero_grad()
        return loop

    def refuse(self, at: int) -> tuple[str, list[str]]:
        """Refuse one allocation; return the stage it fell into, and what is wrong afterwards."""
        loop, refusal = self.begun(), Refusal(at)
        start = live = lt.memory_allocated()
        before = loop.look()
        hit, wrong = "", []
        todo = list(loop.stages)
        while todo:
            name = todo[0]
            if not hit:
                before, live = loop.look(), lt.memory_allocated()
            with refusal.armed():
                try:
                    getattr(loop, name)()
                    todo.pop(0)
                    continue
                except lt.MemoryLimitError:
                    hit = name
            wrong += self._compared(loop, name, before)
            if name in BEFORE_GRADIENTS:
                loop.loss = None
                loop.model.zero_grad()
                live = start
                todo = list(loop.stages)
            if name == "minimize":  # the closure's gradients
                loop.model.zero_grad()
                live = start
            left = lt.memory_allocated() - live
            if left:
                wrong.append(f"{left} bytes more live after it")
        if not hit:
            return "", ["nothing was refused"]
        end = loop.look()
        # Buffers may have moved in the forward that was cut short.
        twice = hit in (*BEFORE_GRADIENTS, "minimize")
        ignored = ("buffer", "average of a buffer") if twice else ()
        wrong += [
            f"{k} ends otherwise"
            for k, v in self.end.items()
            if end.get(k) != v and not k.startswith(ignored or ("\0",))
        ]
        return hit, wrong

    def _compared(self, loop: Loop, name: str, before: dict[str, Any]) -> list[str]:
        wrong = []
        now = loop.look()
        for key in {**before, **now}:
            if now.get(key) == before.get(key):
                continue
            if name in (*BEFORE_GRADIENTS, "minimize") and key.startswith("gradient"):
                continue
            whole = name == "forward" and now.get(key) == self.after_forward.get(key)
            if not (key.startswith("buffer") and (whole or name == "minimize")):
                wrong.append(f"{key} changed")
        return wrong


def every(names: list[str]) -> Iterator[tuple[Untouched, int]]:
    """Each loop's untouched run with each of its allocations."""
    for name in names:
        for model in MODELS:
            for iteration in (0, 2):
                run = Untouched(name, model, iteration)
                for at in range(1, run.allocations + 1):
                    yield run, at


def sample(name: str, count: int, seed: int = 0) -> Iterator[tuple[Untouched, int]]:
    """Some refusals of an optimizer's loops: as many in each loop, anywhere in it."""
    rng = random.Random(f"{name} {seed}")
    for model in MODELS:
        run = Untouched(name, model, rng.choice((0, 2)))
        last = range(1, run.allocations + 1)
        for at in rng.sample(last, min(count, len(last))):
            yield run, at


def main(names: list[str]) -> int:
    """Refuse every allocation; print what was tried and what was found."""
    tried: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for run, at in every(names or list(OPTIMIZERS)):
        stage, wrong = run.refuse(at)
        tried[run.optimizer] += 1
        stages[stage] += 1
        if wrong:
            failed[run.optimizer, stage] += 1
            if sum(failed.values()) <= 20:
                print(
                    f"{run.optimizer}, {run.model}, {run.iteration}: {at} in {stage}: {wrong[:3]}"
                )
    for name, count in tried.items():
        bad = {stage: n for (of, stage), n in failed.items() if of == name}
        print(f"{name:10} {count:6} refused, {sum(bad.values())} left something half done {bad}")
    print(f"{sum(tried.values())} in all, by stage {dict(stages)}; {sum(failed.values())} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
