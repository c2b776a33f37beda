"""Anomaly detection: find the forward op whose backward raised or returned NaN.

While the mode is on, each node remembers the stack of the user's own frames as plain text (no
frame and no tensor is kept), and backward looks at every gradient for NaN. That is slow, and for
the search only.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from .. import execution
from ..attribution.scopes import enter_node, listening
from ..devices import backend
from ..interrupts import RestoringExit
from ..modes import _Mode, local, state_of_thread
from ..tensor import Tensor
from .node import Node

_PACKAGE = __name__.partition(".")[0]
_OURS = tuple(f"{_PACKAGE}.{p}" for p in ("framework", "modules", "optim", "profiling"))
_DEPTH = 12  # user frames to remember


class set_detect_anomaly(_Mode):
    """Turn anomaly detection on or off; a function, and a context manager.

    Args:
        mode: True turns it on.
        check_nan: Also raise if a gradient is NaN.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.mode = bool(mode)
        self.check_nan = bool(check_nan)
        self._before = [local.state.anomaly, local.state.check_nan]
        self._set()

    def _set(self) -> None:
        local.state.anomaly, local.state.check_nan = self.mode, self.check_nan

    def _again(self) -> Any:
        return set_detect_anomaly(self.mode, self.check_nan)

    def __enter__(self) -> None:
        self._set()

    __exit__ = RestoringExit(state_of_thread, "anomaly", "check_nan")


class detect_anomaly(_Mode):
    """Find the op whose backward raises or returns NaN, and the line that called it.

    Args:
        check_nan: Raise if a gradient is NaN; else only say where a failing op was made.

    Example:
        >>> import lowtide as lt
        >>> x = lt.tensor([1.0, 4.0], requires_grad=True)
        >>> with lt.autograd.detect_anomaly():
        ...     (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 8.0]
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = bool(check_nan)
        self._before: list[Any] = [None, None]

    def _again(self) -> Any:
        return detect_anomaly(self.check_nan)

    def __enter__(self) -> None:
        state = local.state
        self._before[:] = state.anomaly, state.check_nan
        state.anomaly, state.check_nan = True, self.check_nan

    __exit__ = RestoringExit(state_of_thread, "anomaly", "check_nan")


def is_anomaly_enabled() -> bool:
    """True if anomaly detection is on in this thread."""
    return local.state.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """True if anomaly detection also checks gradients for NaN."""
    return local.state.check_nan


def remember(node: Node) -> None:
    """Store the creation stack on a new node."""
    frame: Any = sys._getframe(1)
    lines: list[traceback.FrameSummary] = []
    while frame is not None and len(lines) < _DEPTH:
        module = frame.f_globals.get("__name__", "")
        if not (module.startswith(_OURS) or frame.f_code.co_filename.startswith("<op ")):
            code = frame.f_code
            lines.append(
                traceback.FrameSummary(
                    code.co_filename, frame.f_lineno, code.co_name, lookup_line=False
                )
            )
        frame = frame.f_back
    node._extras()["trace"] = lines[::-1]


def where_made(node: Node) -> str:
    """Format the creation stack of a node for an error message."""
    trace = (node.extra or {}).get("trace")
    if not trace:
        return (
            "No forward pass information available. Enable detect_anomaly during the forward "
            "pass for more information."
        )
    last = trace[-1]
    stack = "".join(traceback.StackSummary.from_list(trace).format())
    return (
        f"It was made at {last.filename}:{last.lineno}. Traceback of forward call that caused the "
        f"error:\n{stack}"
    )


def apply_watched(
    node: Node,
    grads: list[Tensor | None],
    wanted: Sequence[bool] | None,
    retain: bool,
    create: bool,
) -> Sequence[Tensor | None]:
    """Run a node's backward under a profiler or anomaly detection.

    Where the latter is on, a failure says where the node was made.

    Raises:
        RuntimeError: A gradient it returned is NaN.
    """
    if listening():
        enter_node(node)
    if not local.state.anomaly:
        return node.apply(grads, wanted, retain, create)
    try:
        results = node.apply(grads, wanted, retain, create)
    except Exception as error:
        error.add_note(f"Error detected in {node.name()}. {where_made(node)}")
        raise
    if local.state.check_nan and execution.current.computes:
        for k, g in enumerate(results):
            if isinstance(g, Tensor) and _has_nan(g):
                raise RuntimeError(
                    f"Function '{node.name()}' returned nan values in its {k}th output. "
                    + where_made(node)
                )
    return results


def _has_nan(tensor: Tensor) -> bool:
    xp = backend(tensor.device).xp
    if xp is None or not tensor.dtype.is_differentiable:
        return False
    return bool(xp.isnan(tensor.array).any())
