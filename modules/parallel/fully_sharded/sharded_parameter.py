"""Parameters of which each rank has some rows: what optimizers and state dicts see."""

from __future__ import annotations

from ....framework.distributed.shards import Shard, mark
from ....framework.distributed.whole_tensors import gathered
from ....framework.tensor import Tensor
from ...parameter import Parameter


class ShardedParameter(Parameter):
    """The rows of a parameter that this rank has.

    It is a leaf of the local shape. ``.grad`` gets the average over the ranks of these rows.
    Unlike PyTorch's ``DTensor`` it computes with these rows only: its ``shape``, its ``norm()``
    and its ``sum()`` are those of the part. ``nn.utils.clip_grad_norm_`` knows of the other ranks.

    Attributes:
        shard: Which rows of what.
    """

    @classmethod
    def of(cls, whole: Tensor, shard: Shard, requires_grad: bool) -> ShardedParameter:
        """Return this rank's rows of a tensor, in separate memory."""
        first, last = shard.own
        made = cls(whole.detach()[first:last].clone(), requires_grad)
        mark(made, shard)
        return made

    @property
    def shard(self) -> Shard:
        """Which rows of what."""
        assert self._extra is not None
        found: Shard = self._extra["shard"]
        return found

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the parameter of all ranks."""
        return self.shard.shape

    def detach(self) -> Tensor:
        """Return the rows outside of any graph, still known as a shard."""
        found: Tensor = super().detach()
        if self._extra is not None and "shard" in self._extra:
            mark(found, self.shard)
        return found

    def to_local(self) -> Tensor:
        """Return this rank's rows as a plain tensor on the same memory."""
        return super().detach()

    def full_tensor(self) -> Tensor:
        """Return the parameter of all ranks, outside of any graph; all ranks call it."""
        return gathered(self, self.shard)

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n(rows {self.shard.own} of shape {self.full_shape})"
