"""Recurrent layers: RNN, LSTM, GRU.

Each layer in each direction is one op over the whole sequence
(``framework/ops/recurrent/sequences.py``), so a step of training records a handful of nodes. Names,
order and distribution of parameters are PyTorch's: ``weight_ih_l0``, ``weight_hh_l0``,
``bias_ih_l0``, ``bias_hh_l0``, ``weight_hr_l0``, and ``_reverse`` behind those of the other
direction.
"""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

from ..framework.modes import local
from ..framework.ops.creation.fill import empty
from ..framework.ops.manipulation.cat import cat, stack
from ..framework.ops.recurrent.gru import _gru
from ..framework.ops.recurrent.lstm import _lstm
from ..framework.ops.recurrent.rnn import _rnn
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .packing import PackedSequence, runs_of
from .parameter import Parameter

_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}


class RNNBase(Module):
    """Base of recurrent layers: parameters by layer and direction, and the loop over layers.

    Args:
        mode: "RNN_TANH", "RNN_RELU", "GRU" or "LSTM".
        input_size: Features of the input.
        hidden_size: Features of the state.
        num_layers: Layers on top of one another.
        bias: Whether there are biases, two for each layer.
        batch_first: Input and output are (N, T, features) instead of (T, N, features).
        dropout: Probability with which outputs of all layers but the last are zeroed in training.
        bidirectional: A second set of layers runs from the last step to the first.
        proj_size: Size the state is projected to, LSTM only; 0 for none.
        device: Where its parameters lie.
        dtype: Their type.

    Raises:
        ValueError: A size is not positive, or ``dropout`` no probability.
        TypeError: ``hidden_size`` is no integer.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_options(mode, hidden_size, num_layers, dropout, proj_size)
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        wide = _GATES[mode] * hidden_size
        size = proj_size or hidden_size
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            for end in self._directions:
                features = input_size if layer == 0 else size * len(self._directions)
                shapes: dict[str, tuple[int, ...]] = {}
                shapes[f"weight_ih_l{layer}{end}"] = (wide, features)
                shapes[f"weight_hh_l{layer}{end}"] = (wide, size)
                if bias:
                    shapes |= {f"bias_{kind}_l{layer}{end}": (wide,) for kind in ("ih", "hh")}
                if proj_size:
                    shapes[f"weight_hr_l{layer}{end}"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name, Parameter(empty(shape, device=device, dtype=dtype)))
                self._all_weights.append(list(shapes))
        self.reset_parameters()

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Any]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    def reset_parameters(self) -> None:
        """Reinitialize uniformly within ``1 / sqrt(hidden_size)``."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing; accepted for compatibility with PyTorch."""

    def extra_repr(self) -> str:
        """Sizes, and what is not the default."""
        shown = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
        }
        for name, default in defaults.items():
            value = getattr(self, name)
            if value != default:
                shown += f", {name}={value}"
        return shown

    # Forward

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise an error if the dtype, number of dims or size of the input does not fit."""
        expected: Any = getattr(self, self._all_weights[0][0]).dtype
        if input.dtype is not expected and not local.state.autocast:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({expected}). "
                "Convert to input.to(weight.dtype), or vice versa."
            )
        dims = 2 if batch_sizes is not None else 3
        if input.ndim != dims:
            raise RuntimeError(f"input must have {dims} dimensions, got {input.ndim}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{type(self).__name__}: input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]} of input {tuple(input.shape)}. Features "
                "come last; batches come first with batch_first=True."
            )
        if batch_sizes is None and input.shape[1 if self.batch_first else 0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")

    def _check_state(self, state: Tensor, batch: int, size: int, name: str = "hidden") -> None:
        expected = (self.num_layers * len(self._directions), batch, size)
        if tuple(state.shape) != expected:
            raise RuntimeError(f"Expected {name} size {expected}, got {list(state.shape)}")

    def _weights(self, layer: int, end: str) -> tuple[Any, ...]:
        """Return (w_ih, w_hh, b_ih, b_hh, w_hr) of a layer and direction, None where absent."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return tuple(getattr(self, f"{kind}_l{layer}{end}", None) for kind in kinds)

    def _direction(self, x: Tensor, weights: Any, states: Any, runs: Any, reverse: bool) -> Any:
        """Run one layer in one direction; return (output, final states)."""
        raise NotImplementedError

    def _layers(self, x: Tensor, states: tuple[Any, ...], runs: Any) -> tuple[Tensor, list[Any]]:
        """Run all layers; return (output, final states by layer and direction)."""
        finals: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            found = []
            for k, end in enumerate(self._directions):
                at = layer * len(self._directions) + k
                own = tuple(None if s is None else s[at] for s in states)
                out, *last = self._direction(x, self._weights(layer, end), own, runs, k == 1)
                found.append(out)
                finals.append(last)
            x = found[0] if len(found) == 1 else cat(found, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        last = zip(*finals, strict=True)
        return x, [s[0].unsqueeze(0) if len(s) == 1 else stack(list(s)) for s in last]

    def _run(self, input: Any, states: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
        """Run on any kind of input; return (output, final states)."""
        if isinstance(input, PackedSequence):
            return self._run_packed(input, states, sizes)
        batched = self._check_dims(input, states)
        if not batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            states = tuple(None if s is None else s.unsqueeze(1) for s in states)
        self.check_input(input, None)
        x = input.transpose(0, 1) if self.batch_first else input
        self._check_states(states, x.shape[1], sizes)
        out, finals = self._layers(x, states, None)
        if self.batch_first:
            out = out.transpose(0, 1)
        if not batched:
            out = out.squeeze(0 if self.batch_first else 1)
            finals = [s.squeeze(1) for s in finals]
        return out, finals

    def _run_packed(self, input: PackedSequence, states: Any, sizes: Any) -> Any:
        need_tensors(type(self).__name__, states)
        data, batch_sizes, order, back = input
        self.check_input(data, batch_sizes)
        runs = runs_of(batch_sizes)
        if order is not None:
            states = tuple(None if s is None else s.index_select(1, order) for s in states)
        self._check_states(states, runs[0][1], sizes)
        out, finals = self._layers(data, states, runs)
        if back is not None:
            finals = [s.index_select(1, back) for s in finals]
        return PackedSequence(out, batch_sizes, order, back), finals

    def _check_dims(self, input: Tensor, states: tuple[Any, ...]) -> bool:
        name = type(self).__name__
        if input.ndim not in (2, 3):
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.ndim}D instead")
        need_tensors(name, states)
        batched = input.ndim == 3
        dims = [s.ndim for s in states if s is not None]
        if any(n != input.ndim for n in dims):
            kind = "batched 3-D" if batched else "unbatched 2-D"
            raise RuntimeError(
                f"For {kind} input, hx should also be {input.ndim}-D but got "
                f"{', '.join(f'{n}-D' for n in dims)} tensor"
            )
        return batched

    def _check_states(self, states: Any, batch: int, sizes: tuple[int, ...]) -> None:
        names = ("hidden",) if len(states) == 1 else ("hidden[0]", "hidden[1]")
        for state, size, name in zip(states, sizes, names, strict=True):
            if state is not None:
                self._check_state(state, batch, size, name)


def state_pair(name: str, hx: Any) -> tuple[Any, Any]:
    """Return the two states (h, c) that a user passed to an LSTM, or (None, None).

    Raises:
        TypeError: They are no pair of tensors.
        RuntimeError: There are more or fewer than two.
    """
    if hx is None:
        return None, None
    if not isinstance(hx, list | tuple | Tensor):
        raise TypeError(f"{name}: hx must be a pair of tensors (h, c); got {type(hx).__name__}.")
    states = tuple(hx)
    if len(states) != 2:
        raise RuntimeError(
            f"{name}: hx must be a pair of tensors (h, c); got {len(states)}. Pass both, or None "
            "for zeros."
        )
    return states


def need_tensors(name: str, states: tuple[Any, ...]) -> None:
    """Raise an error unless each state is a tensor or None.

    Raises:
        TypeError: One is something else.
    """
    for state in states:
        if state is not None and not isinstance(state, Tensor):
            raise TypeError(
                f"{name}: a hidden state must be a Tensor; got {type(state).__name__}. Pass the "
                "state that an earlier call returned, or None for zeros."
            )


def _check_options(
    mode: str, hidden_size: Any, num_layers: int, dropout: Any, proj_size: int
) -> None:
    if mode not in _GATES:
        raise ValueError("Unrecognized RNN mode: " + mode)
    a_number = isinstance(dropout, numbers.Number) and not isinstance(dropout, bool)
    if not a_number or not 0 <= dropout <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element "
            f"being zeroed; got {dropout!r}."
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
            f"expects num_layers greater than 1, but got dropout={dropout} and "
            f"num_layers={num_layers}",
            stacklevel=4,
        )
    if not isinstance(hidden_size, int):
        raise TypeError(f"hidden_size should be of type int, got: {type(hidden_size).__name__}")
    for name, size in (("hidden_size", hidden_size), ("num_layers", num_layers)):
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero; got {size}.")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if proj_size >= hidden_size:
        raise ValueError("proj_size has to be smaller than hidden_size")
    if proj_size and mode != "LSTM":
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


class RNN(RNNBase):
    """Multi-layer Elman RNN: ``h = tanh(w_ih x + b_ih + w_hh h + b_hh)``.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        num_layers: Layers on top of one another.
        nonlinearity: "tanh" or "relu".
        bias: As in :class:`RNNBase`, like all that follow.
        batch_first: (N, T, features) instead of (T, N, features).
        dropout: Between layers.
        bidirectional: In both directions.
        device: Where its parameters lie.
        dtype: Their type.

    Memory:
        Backward keeps the input and the states of each layer.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            f"RNN_{nonlinearity.upper()}",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Run the RNN over a sequence.

        Args:
            input: (T, N, input_size), (N, T, input_size) with ``batch_first``, (T, input_size), or
                a PackedSequence.
            hx: (num_layers * directions, N, hidden_size), or without N; None for zeros.

        Returns:
            (output (T, N, directions * hidden_size), packed if the input is; last states like
            ``hx``).

        Raises:
            ValueError: The input's dtype is not the weights', or it has 1 or more than 3 dims.
            RuntimeError: Sizes do not fit.
        """
        out, finals = self._run(input, (hx,), (self.hidden_size,))
        return out, finals[0]

    def _direction(self, x: Tensor, weights: Any, states: Any, runs: Any, reverse: bool) -> Any:
        squash = self.mode == "RNN_TANH"
        return _rnn(x, *weights[:4], *states, runs=runs, reverse=reverse, squash=squash)


class GRU(RNNBase):
    """Multi-layer gated recurrent unit (GRU).

    ``r, z = sigmoid(..)``, ``n = tanh(W x + b + r (U h + c))``, ``h = (1 - z) n + z h``; the gates'
    weights lie one above the other in the order r, z, n. Arguments: see :class:`RNNBase`.

    Memory:
        Backward keeps four numbers per unit and step, the input and the states.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Run the GRU over a sequence; see :meth:`RNN.forward`."""
        out, finals = self._run(input, (hx,), (self.hidden_size,))
        return out, finals[0]

    def _direction(self, x: Tensor, weights: Any, states: Any, runs: Any, reverse: bool) -> Any:
        return _gru(x, *weights[:4], *states, runs=runs, reverse=reverse)


class LSTM(RNNBase):
    """Multi-layer long short-term memory (LSTM).

    ``c = f c + i g``, ``h = o tanh(c)`` with ``i, f, o = sigmoid(..)`` and ``g = tanh(..)``, whose
    weights lie one above the other in the order i, f, g, o. Arguments: see :class:`RNNBase`.

    Memory:
        Backward keeps five numbers per unit and step, the input and the states.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    def forward(
        self, input: Any, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Run the LSTM over a sequence.

        Args:
            input: (T, N, input_size), (N, T, input_size) with ``batch_first``, (T, input_size), or
                a PackedSequence.
            hx: (h, c): (num_layers * directions, N, size) each, or without N; None for zeros. The
                size of h is ``proj_size`` where there is one, that of c ``hidden_size``.

        Returns:
            (output (T, N, directions * size), packed if the input is; (h, c) after the last step).

        Raises:
            ValueError: The input's dtype is not the weights', or it has 1 or more than 3 dims.
            RuntimeError: Sizes do not fit.
        """
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)
        out, (h, c) = self._run(input, state_pair("LSTM", hx), sizes)
        return out, (h, c)

    def _direction(self, x: Tensor, weights: Any, states: Any, runs: Any, reverse: bool) -> Any:
        return _lstm(x, *weights, *states, runs=runs, reverse=reverse)
