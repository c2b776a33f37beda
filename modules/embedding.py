"""Embedding layers: lookup tables, single or reduced over bags."""

from __future__ import annotations

from typing import Any

from ..framework.modes import no_grad
from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .parameter import Parameter


def _check_padding(name: str, padding_idx: int | None, rows: int) -> int | None:
    """Return the padding index counted from 0, or None."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise AssertionError(
            f"{name}: padding_idx must be within num_embeddings; got {padding_idx} for {rows} rows."
        )
    return padding_idx % rows


def _check_weight(name: str, weight: Tensor, rows: int, features: int) -> None:
    if tuple(weight.shape) != (rows, features):
        raise AssertionError(
            f"{name}: shape of weight does not match num_embeddings and embedding_dim; got "
            f"{tuple(weight.shape)}, expected {(rows, features)}."
        )


def _check_pretrained(name: str, embeddings: Tensor) -> tuple[int, int]:
    if embeddings.ndim != 2:
        raise AssertionError(
            f"{name}: embeddings parameter is expected to be 2-dimensional; got "
            f"{tuple(embeddings.shape)}."
        )
    return int(embeddings.shape[0]), int(embeddings.shape[1])


class _EmbeddingBase(Module):
    weight: Parameter
    padding_idx: int | None

    def reset_parameters(self) -> None:
        """Reinitialize from the standard normal distribution; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].fill_(0)


class Embedding(_EmbeddingBase):
    """A lookup table of embeddings: maps indices to learned rows.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Size of a row.
        padding_idx: A row that starts as zero and gets no gradient; negative ones count from the
            end.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs.
        sparse: Accepted; gradients are dense.
        device: Where the table lies.
        dtype: Its type.

    Attributes:
        weight: (num_embeddings, embedding_dim), standard normal.

    Raises:
        AssertionError: ``padding_idx`` is no row.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _check_padding("Embedding", padding_idx, num_embeddings)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is None:
            shape = (num_embeddings, embedding_dim)
            self.weight = Parameter(empty(shape, device=device, dtype=dtype), not _freeze)
            self.reset_parameters()
        else:
            _check_weight("Embedding", _weight, num_embeddings, embedding_dim)
            self.weight = Parameter(_weight, not _freeze)

    def forward(self, input: Tensor) -> Tensor:
        """Map indices (*) to embeddings (*, embedding_dim)."""
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        """Create an embedding from a given table, sharing its memory.

        Args:
            embeddings: (rows, features).
            freeze: Whether the table stays as it is.
            padding_idx: As in the constructor, like the others; the row is not zeroed.
            max_norm: Largest norm of a row that is looked up.
            norm_type: Which norm.
            scale_grad_by_freq: Divide gradients by frequency.
            sparse: Accepted.
        """
        rows, features = _check_pretrained("Embedding", embeddings)
        return cls(
            num_embeddings=rows,
            embedding_dim=features,
            _weight=embeddings,
            _freeze=freeze,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
        )

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch shows them."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        if self.sparse:
            text += ", sparse=True"
        return text


class EmbeddingBag(_EmbeddingBase):
    """Embedding bags: the sum, mean or maximum of the embeddings of each bag of indices.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Size of a row.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs; not for "max".
        mode: "sum", "mean" or "max".
        sparse: Accepted; gradients are dense.
        include_last_offset: ``offsets`` has one more element, the length of ``input``.
        padding_idx: Entries with this row number do not count; the row starts as zero.
        device: Where the table lies.
        dtype: Its type.

    Attributes:
        weight: (num_embeddings, embedding_dim), standard normal.

    Raises:
        AssertionError: ``padding_idx`` is no row.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.padding_idx = _check_padding("EmbeddingBag", padding_idx, num_embeddings)
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset
        if _weight is None:
            shape = (num_embeddings, embedding_dim)
            self.weight = Parameter(empty(shape, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            _check_weight("EmbeddingBag", _weight, num_embeddings, embedding_dim)
            self.weight = Parameter(_weight)

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Map bags of indices to (B, embedding_dim).

        Args:
            input: (B, N), one bag per line; or all bags one after the other, 1-D.
            offsets: For 1-D ``input``: (B,), where each bag begins.
            per_sample_weights: Factors in the shape of ``input``, for mode "sum".
        """
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Any:
        """Create an embedding bag from a given table, sharing its memory.

        Args:
            embeddings: (rows, features).
            freeze: Whether the table stays as it is.
            max_norm: As in the constructor, like the others.
            norm_type: Which norm.
            scale_grad_by_freq: Divide gradients by frequency.
            mode: "sum", "mean" or "max".
            sparse: Accepted.
            include_last_offset: One more offset.
            padding_idx: A row that does not count.
        """
        rows, features = _check_pretrained("EmbeddingBag", embeddings)
        bag = cls(
            num_embeddings=rows,
            embedding_dim=features,
            _weight=embeddings,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            mode=mode,
            sparse=sparse,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )
        bag.weight.requires_grad = not freeze
        return bag

    def extra_repr(self) -> str:
        """Sizes and mode, as PyTorch shows them."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        text += f", mode={self.mode!r}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text
