"""The SparseAdam optimizer."""

from __future__ import annotations

from math import sqrt
from typing import Any

from .elementwise import zeros
from .optimizer import Optimizer, check_betas, check_options, number
from .sparse_rows import is_sparse, read, rows_of, write


class SparseAdam(Optimizer):
    """Adam for sparse gradients: rows without a gradient keep their moments and values.

    In the rows that have one, ``m += (1 - beta1)(g - m); v += (1 - beta2)(g^2 - v)`` and
    ``p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)``.

    State: ``step``, ``exp_avg`` (m) and ``exp_avg_sq`` (v), each one parameter's size.

    Args:
        params: What to optimize; strided tensors whose gradients are sparse, as those of
            ``nn.Embedding(sparse=True)``.
        lr: Learning rate.
        betas: Shares of the moments that are kept.
        eps: Added to the denominator.
        maximize: Climb instead.

    Raises:
        ValueError: An option is out of range, or a parameter is sparse itself.
        RuntimeError: At a step: a gradient is dense.

    Source:
        Kingma and Ba 2015, lazily: a moment decays only when its row has a gradient.
    """

    _takes_sparse = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_options("SparseAdam", lr)
        if not number(lr) > 0:
            raise ValueError(f"SparseAdam: Invalid learning rate: {number(lr)}. It must be > 0.")
        if not eps > 0:
            raise ValueError(f"SparseAdam: Invalid epsilon value: {eps}. It must be > 0.")
        check_betas("SparseAdam", betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize}
        super().__init__(params, defaults)

    def check_parameter(self, p: Any) -> None:
        """Refuse sparse parameters, too."""
        super().check_parameter(p)
        if is_sparse(p):
            raise ValueError(
                "Sparse params: SparseAdam requires dense parameter tensors; got one of layout "
                f"{p.layout}. Pass .to_dense(): its gradients are what is to be sparse."
            )

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if not is_sparse(g):
            raise RuntimeError(
                "SparseAdam does not support dense gradients, please consider Adam instead"
            )
        if not state:
            state.update(step=0, exp_avg=zeros(p), exp_avg_sq=zeros(p))
        step = state["step"] = state["step"] + 1
        beta1, beta2 = number(group["betas"][0]), number(group["betas"][1])
        at, d = rows_of(g, group["maximize"])
        mean, square = read(state["exp_avg"], at), read(state["exp_avg_sq"], at)
        mean = mean + (d - mean) * (1 - beta1)
        square = square + (d * d - square) * (1 - beta2)
        rate = number(group["lr"]) * sqrt(1 - beta2**step) / (1 - beta1**step)
        moved = mean / (square.sqrt() + group["eps"]) * -rate
        return (
            write,
            (state["exp_avg"], at, mean, False),
            (state["exp_avg_sq"], at, square, False),
            (p, at, moved, True),
        )
