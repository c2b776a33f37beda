"""The L-BFGS optimizer: a quasi-Newton method with limited memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..framework.data_dependence import value_or_hint
from ..framework.interrupts import defer_interrupts
from ..framework.modes import enable_grad, local
from ..framework.ops.creation.fill import empty
from ..framework.ops.views.view_as_real import view_as_real
from .line_search import strong_wolfe
from .optimizer import Optimizer, check_options, number, own


class LBFGS(Optimizer):
    """L-BFGS: quasi-Newton steps from past gradients; calls the closure many times per step.

    ``d = -H g``, where H is applied by the two-loop recursion over the last ``history_size`` pairs
    ``y`` (change of the gradient) and ``s`` (change of the parameters), starting from
    ``(y.s / y.y) I``; then ``p += t d``, with t from the line search, or ``lr``, or at the very
    first ``min(1, 1 / |g|_1) lr``.

    State, kept with the first parameter: ``d, t, old_dirs, old_stps, ro, H_diag, prev_flat_grad,
    prev_loss, func_evals, n_iter``: flat vectors of all parameters, ``2 history_size + 2`` of them.

    Memory: beside the state a step holds the flat gradient and two vectors of work; the line search
    adds the start and up to three gradients of its bracket. All is counted in the ledger.

    All or nothing: the closure runs many times between moves of the parameters, so a step
    works on a draft of its state, and if it raises the parameters go back to where it began. That
    takes three vectors more, from before the first move to the end. Gradients are the closure's.

    Args:
        params: What to optimize; one group.
        lr: Step length without a line search, and where the search begins.
        max_iter: Iterations in a step.
        max_eval: Calls of the closure in a step; default ``1.25 max_iter``.
        tolerance_grad: Stop where no element of the gradient is larger.
        tolerance_change: Stop where loss or parameters change less.
        history_size: Pairs that are kept.
        line_search_fn: "strong_wolfe", or None.

    Raises:
        ValueError: The rate is negative, or there are several groups.
        RuntimeError: Another line search is asked for.

    Source:
        Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.5; the stopping rules are
        PyTorch's.
    """

    reads_whole = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_options("LBFGS", lr)
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the parameter group; there may be only one.

        Raises:
            ValueError: There is one already.
        """
        if self.param_groups:
            raise ValueError(
                "LBFGS doesn't support per-parameter options (parameter groups). Pass one list of "
                "parameters."
            )
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:
        """Run up to ``max_iter`` iterations.

        Args:
            closure: Clears gradients, computes the loss, calls backward, returns the loss.

        Returns:
            The loss before the step.
        """
        if closure is None:
            raise TypeError("LBFGS.step() needs a closure that computes the loss again.")
        modes = local.state
        before, modes.grad = modes.grad, False
        try:
            return self._step_or_back(enable_grad()(closure))
        finally:
            modes.grad = before

    def _step_or_back(self, closure: Any) -> Any:
        first = self.param_groups[0]["params"][0]
        draft: dict[str, Any] = {
            k: v[:] if type(v) is list else v for k, v in self.state.get(first, {}).items()
        }
        for name in ("d", "prev_flat_grad"):  # these two are written in place
            if draft.get(name) is not None:
                draft[name] = own(draft[name].clone())
        x = self._flat()
        try:
            found = self._step(closure, draft)
        except BaseException:
            with defer_interrupts():
                self._go_to(x)
            raise
        with defer_interrupts():
            state = self.state[first]
            state.clear()
            state.update(draft)
        return found

    def _step(self, closure: Any, state: dict[str, Any]) -> Any:
        group = self.param_groups[0]
        search = group["line_search_fn"]
        if search not in (None, "strong_wolfe"):
            raise RuntimeError(f"LBFGS: only 'strong_wolfe' is supported; got {search!r}.")
        lr, small = number(group["lr"]), group["tolerance_change"]
        first_loss = closure()
        loss, evaluations = float(value_or_hint(first_loss, 0.0)), 1
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        g = self._flat_gradient()
        if _largest(g) <= group["tolerance_grad"]:
            return first_loss
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            d = self._direction(g, state, group["history_size"])
            before = state["prev_loss"] = loss
            first = state["n_iter"] == 1  # no curvature is known yet: a step of length 1 at most
            t = min(1.0, 1.0 / value_or_hint(g.abs().sum(), 2.0)) * lr if first else lr
            state["t"] = t
            slope = value_or_hint(g.dot(d), -1.0)
            if slope > -small:
                break
            calls, flat = 0, False
            if search is not None:
                probe = partial(self._probe, closure, self._flat(), d, loss)
                most = group["max_eval"] - evaluations
                loss, g, t, calls = strong_wolfe(probe, t, d, loss, g, slope, most)
                del probe  # and with it where the search began
                state["t"] = t
                self._move(t, d)
                flat = _largest(g) <= group["tolerance_grad"]
            else:
                self._move(t, d)
                if iteration != group["max_iter"]:  # else the next step computes it anyway
                    loss, calls = float(value_or_hint(closure(), before - 1.0)), 1
                    g = self._flat_gradient()
                    flat = _largest(g) <= group["tolerance_grad"]
            evaluations += calls
            state["func_evals"] += calls
            stopped = evaluations >= group["max_eval"] or flat
            if stopped or abs(t) * _largest(d) <= small or abs(loss - before) < small:
                break
        return first_loss

    def _direction(self, g: Any, state: dict[str, Any], history: int) -> Any:
        """Compute the next direction and update the history and ``prev_flat_grad``."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            state["prev_flat_grad"] = own(g.clone())
            state["d"] = own(g.neg())
            return state["d"]
        before, d = state["prev_flat_grad"], state["d"]
        ys, ss, ro = state["old_dirs"], state["old_stps"], state["ro"]
        y, s = own(g.sub(before)), own(d.mul(number(state["t"])))
        curvature = value_or_hint(y.dot(s), 2.0)
        if curvature > 1e-10:  # else H would not stay positive
            if len(ys) == history:
                for old in (ys, ss, ro):
                    del old[0]
            ys.append(y)
            ss.append(s)
            ro.append(1.0 / curvature)
            state["H_diag"] = curvature / value_or_hint(y.dot(y), 1.0)
        q = d.copy_(g).neg_()
        weights = [0.0] * len(ys)
        for i in reversed(range(len(ys))):
            weights[i] = value_or_hint(ss[i].dot(q), 0.5) * number(ro[i])
            q.add_(ys[i], alpha=-weights[i])
        q.mul_(number(state["H_diag"]))
        for i in range(len(ys)):
            q.add_(ss[i], alpha=weights[i] - value_or_hint(ys[i].dot(q), 1.0) * number(ro[i]))
        before.copy_(g)
        return q

    # Parameters as one flat vector of real numbers

    def _views(self, what: str) -> Any:
        for p in self.param_groups[0]["params"]:
            t = p if what == "p" else p._grad
            if t is not None:
                t = t.detach()
                t = view_as_real(t) if t.is_complex() else t
            yield t, p.numel() * (2 if p.is_complex() else 1)

    def _gathered(self, what: str) -> Any:
        sizes = [n for _, n in self._views(what)]
        first = next(self._views("p"))[0]
        flat = empty(sum(sizes), dtype=first.dtype, device=first.device)
        at = 0
        for t, n in self._views(what):
            part = flat[at : at + n]
            if t is None:
                part.zero_()
            else:
                part.view(t.shape).copy_(t)
            at += n
        return flat

    def _flat(self) -> Any:
        return self._gathered("p")

    def _flat_gradient(self) -> Any:
        return self._gathered("g")

    def _move(self, t: float, d: Any) -> None:
        at = 0
        for p, n in self._views("p"):
            p.add_(d[at : at + n].view(p.shape), alpha=t)
            at += n

    def _probe(self, closure: Any, x: Any, d: Any, before: float, t: float) -> tuple[float, Any]:
        """Compute loss and gradient at ``x + t d``, then restore the parameters."""
        self._move(t, d)
        loss = float(value_or_hint(closure(), before - t))
        g = self._flat_gradient()
        self._go_to(x)
        return loss, g

    def _go_to(self, x: Any) -> None:
        at = 0
        for p, n in self._views("p"):
            p.copy_(x[at : at + n].view(p.shape))
            at += n


def _largest(x: Any) -> float:
    return float(value_or_hint(x.abs().max(), 1.0))
