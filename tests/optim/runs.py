"""Running a case with lowtide or with a library like it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.optim.cases import STEPS, gradient, start


def parameters(lib: Any, name: str, dtype: Any = np.float64) -> dict[str, Any]:
    """The case's parameters as a library's leaves."""
    return {k: lib.tensor(v, requires_grad=True) for k, v in start(name, dtype).items()}


def advance(lib: Any, optimizer: Any, params: dict[str, Any], steps: Any) -> None:
    """Take the given steps of the problem."""
    for step in steps:
        for key, p in params.items():
            p.grad = lib.tensor(gradient(key, p.detach().numpy(), step))
        optimizer.step()


def run(lib: Any, name: str, options: dict[str, Any], dtype: Any = np.float64) -> Any:
    """Parameters after ``STEPS`` steps, and the optimizer."""
    params = parameters(lib, name, dtype)
    optimizer = getattr(lib.optim, name)(list(params.values()), **options)
    advance(lib, optimizer, params, range(STEPS))
    return {k: p.detach().numpy() for k, p in params.items()}, optimizer


def rosenbrock(lib: Any, **options: Any) -> Any:
    """Ten steps of L-BFGS in a curved valley; losses, parameters, the optimizer's counters."""
    p = lib.tensor([-1.5, 2.0], dtype=lib.float64, requires_grad=True)
    q = lib.tensor([[0.5], [-1.0]], dtype=lib.float64, requires_grad=True)
    optimizer = lib.optim.LBFGS([p, q], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        x = lib.cat([p, q.reshape(-1)])
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(10)]
    state = optimizer.state[p]
    return losses, p.detach().numpy(), q.detach().numpy(), state["func_evals"], state["n_iter"]
