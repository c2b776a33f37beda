"""Recurrent cells for one time step: RNNCell, LSTMCell, GRUCell.

A step is a sequence of length one, so the ops are those of the layers.
"""

from __future__ import annotations

import math
from typing import Any

from ..framework.ops.creation.fill import empty
from ..framework.ops.recurrent.gru import _gru
from ..framework.ops.recurrent.lstm import _lstm
from ..framework.ops.recurrent.rnn import _rnn
from ..framework.tensor import Tensor
from .initialization import init
from .module import Module
from .parameter import Parameter
from .recurrent import need_tensors, state_pair


class RNNCellBase(Module):
    """Base of recurrent cells: parameters, checks and ``repr``.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        bias: Whether there are biases, two of them.
        num_chunks: Gates.
        device: Where its parameters lie.
        dtype: Their type.

    Attributes:
        weight_ih: (num_chunks * hidden_size, input_size), uniform within 1 / sqrt(hidden_size).
        weight_hh: (num_chunks * hidden_size, hidden_size), likewise.
        bias_ih: (num_chunks * hidden_size,), likewise; or None.
        bias_hh: The same.
    """

    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        wide = num_chunks * hidden_size
        like = {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty(wide, input_size, **like))
        self.weight_hh = Parameter(empty(wide, hidden_size, **like))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(wide, **like)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize uniformly within ``1 / sqrt(hidden_size)``."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        """Sizes, and what is not the default."""
        shown = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            shown += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            shown += f", nonlinearity={self.nonlinearity}"
        return shown

    def _step(self, run: Any, input: Tensor, states: tuple[Any, ...], **options: Any) -> Any:
        """Compute the new states, with the input's number of dimensions."""
        batched = input.ndim == 2
        if not batched:
            input = input.unsqueeze(0)
            states = tuple(None if s is None else s.unsqueeze(0) for s in states)
        if input.shape[1] != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.shape[1]} expected "
                f"{self.input_size}"
            )
        for s in states:
            if s is not None and tuple(s.shape) != (input.shape[0], self.hidden_size):
                raise RuntimeError(
                    f"{type(self).__name__} expects hidden states ({input.shape[0]}, "
                    f"{self.hidden_size}); got {tuple(s.shape)}."
                )
        biases = (self.bias_ih, self.bias_hh)
        runs = ((1, input.shape[0]),)
        extra = (None,) if run is _lstm else ()
        out, *finals = run(
            input,
            self.weight_ih,
            self.weight_hh,
            *biases,
            *extra,
            *states,
            runs=runs,
            reverse=False,
            **options,
        )
        found = (out, *finals[1:])
        return found if batched else tuple(s.squeeze(0) for s in found)

    def _check(self, input: Tensor, states: tuple[Any, ...], names: tuple[str, ...]) -> None:
        need_tensors(type(self).__name__, states)
        for name, x in (("input", input), *zip(names, states, strict=True)):
            if x is not None and x.ndim not in (1, 2):
                raise ValueError(
                    f"{type(self).__name__}: Expected {name} to be 1D or 2D, got {x.ndim}D instead"
                )


class RNNCell(RNNCellBase):
    """One time step of an RNN: ``h = tanh(w_ih x + b_ih + w_hh h + b_hh)``.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        bias: Whether there are biases.
        nonlinearity: "tanh" or "relu".
        device: Where its parameters lie.
        dtype: Their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the new hidden state.

        Args:
            input: (N, input_size) or (input_size,).
            hx: (N, hidden_size) or (hidden_size,); None for zeros.

        Raises:
            RuntimeError: Sizes do not fit, or the nonlinearity is neither tanh nor relu.
        """
        self._check(input, (hx,), ("hidden",))
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}. Pass 'tanh' or 'relu'.")
        squash = self.nonlinearity == "tanh"
        out: Tensor = self._step(_rnn, input, (hx,), squash=squash)[0]
        return out


class GRUCell(RNNCellBase):
    """One time step of :class:`~lowtide.nn.GRU`; gates in the order r, z, n.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        bias: Whether there are biases.
        device: Where its parameters lie.
        dtype: Their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the new hidden state; see :meth:`RNNCell.forward`."""
        self._check(input, (hx,), ("hidden",))
        out: Tensor = self._step(_gru, input, (hx,))[0]
        return out


class LSTMCell(RNNCellBase):
    """One time step of :class:`~lowtide.nn.LSTM`; gates in the order i, f, g, o.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        bias: Whether there are biases.
        device: Where its parameters lie.
        dtype: Their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the new (h, c).

        Args:
            input: (N, input_size) or (input_size,).
            hx: (h, c), (N, hidden_size) or (hidden_size,) each; None for zeros.

        Raises:
            RuntimeError: Sizes do not fit.
        """
        states = state_pair("LSTMCell", hx)
        self._check(input, states, ("hx[0]", "hx[1]"))
        h, c = self._step(_lstm, input, states)
        return h, c
