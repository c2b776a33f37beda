"""Block masks of flexible attention: which blocks of the matrix of scores are masked, and how far.

A ``mask_mod`` says of one pair of positions whether the query sees the key. A :class:`BlockMask`
keeps that function and, for each block of scores, whether all, some or none of its pairs are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...framework import ops
from ...framework.dtypes import bool_, int32
from ...framework.ops.creation.fill import zeros
from ...framework.ops.creation.ranges import arange
from ...framework.tensor import Tensor
from ...framework.vmap.transform import vmap

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_DEFAULT_SPARSE_BLOCK_SIZE = 128
_PARTS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Return True: every query sees every key."""
    return batch.new_ones((), dtype=bool_)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return the mask of the pairs that all of ``mask_mods`` let see."""
    return _joined("and_masks", mask_mods, True)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return the mask of the pairs that one of ``mask_mods`` lets see."""
    return _joined("or_masks", mask_mods, False)


def _joined(name: str, mask_mods: tuple[MaskMod, ...], every: bool) -> MaskMod:
    if not all(callable(one) for one in mask_mods):
        raise RuntimeError(f"{name}: all inputs should be callable mask_mods; got {mask_mods}.")

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        found = b.new_full((), every, dtype=bool_)
        for one in mask_mods:
            seen = one(b, h, q_idx, kv_idx)
            found = found & seen if every else found | seen
        return found

    return mask


def over_pairs(function: Callable[..., Any], score: bool) -> Callable[..., Any]:
    """Map a function of one pair over batch, heads, queries and keys: five tensors or four."""
    first = 0 if score else ()
    for mapped in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None)):
        function = vmap(function, in_dims=(first, *mapped) if score else mapped)
    return vmap(function, in_dims=(0, 0, None, None, None) if score else (0, None, None, None))


def create_mask(
    mod_fn: Callable[..., Tensor],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
) -> Tensor:
    """Create the mask of every pair, (B, H, Q_LEN, KV_LEN) bool.

    Args:
        mod_fn: A ``mask_mod`` of four indices; or a ``score_mod`` of a score and four indices,
            which masks where it makes a zero minus infinity.
        B: Batches; None for 1, a mask that serves all.
        H: Heads; None for 1.
        Q_LEN: Number of queries.
        KV_LEN: Number of keys.
        device: Where it is made.
    """
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    indices = [arange(n, device=device) for n in sizes]
    if _is_score_mod(mod_fn):
        scores = over_pairs(mod_fn, True)(zeros(sizes, device=device), *indices)
        return ops.isneginf(scores).logical_not()
    found = over_pairs(mod_fn, False)(*indices)
    return found.to(bool_).expand(sizes).contiguous()


def _is_score_mod(function: Callable[..., Any]) -> bool:
    import inspect  # of all calls, only this one needs it

    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is p.empty and p.kind not in (2, 3, 4) for p in given) == 5


class BlockMask:
    """Which blocks of the matrix of scores attention may leave out.

    Row by row, ``kv_num_blocks`` (B, H, rows) counts the blocks of which some pairs are seen, and
    ``kv_indices`` (B, H, rows, columns) begins with their columns; ``full_*`` of those of which all
    are. The ``q_*`` say the same column by column. All are int32.

    Attributes:
        seq_lengths: Numbers of queries and of keys.
        BLOCK_SIZE: Queries and keys of a block.
        mask_mod: What decides about a pair in a block of the first kind.
    """

    seq_lengths: tuple[int, int]
    BLOCK_SIZE: tuple[int, int]
    mask_mod: MaskMod

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None,
        full_kv_indices: Tensor | None,
        q_num_blocks: Tensor | None,
        q_indices: Tensor | None,
        full_q_num_blocks: Tensor | None,
        full_q_indices: Tensor | None,
        BLOCK_SIZE: tuple[int, int] = (128, 128),
        mask_mod: MaskMod = noop_mask,
    ) -> None:
        if kv_indices.dim() < 2:
            raise RuntimeError(
                f"BlockMask: kv_indices must have at least 2 dimensions; got {kv_indices.dim()}."
            )
        for name, a, b in (
            ("full_kv", full_kv_num_blocks, full_kv_indices),
            ("q", q_num_blocks, q_indices),
            ("full_q", full_q_num_blocks, full_q_indices),
        ):
            if (a is None) != (b is None):
                raise AssertionError(
                    f"BlockMask: {name}_num_blocks and {name}_indices must be given together."
                )
        self.seq_lengths = seq_lengths
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.BLOCK_SIZE = BLOCK_SIZE
        self.mask_mod = mask_mod

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:
        """Create a block mask from what is seen row by row; without lengths, of whole blocks."""
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        if seq_lengths is None:
            seq_lengths = kv_indices.shape[-2] * size[0], kv_indices.shape[-1] * size[1]
        columns: tuple[Any, Any, Any, Any] = (None, None, None, None)
        if compute_q_blocks:
            columns = (*_listed(_dense(kv_num_blocks, kv_indices).mT), None, None)
            if full_kv_num_blocks is not None and full_kv_indices is not None:
                full = _listed(_dense(full_kv_num_blocks, full_kv_indices).mT)
                columns = (*columns[:2], *full)
        return cls(
            seq_lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            *columns,
            BLOCK_SIZE=size,
            mask_mod=mask_mod or noop_mask,
        )

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """Return all parts in the order of the constructor."""
        parts = tuple(getattr(self, name) for name in _PARTS)
        if flatten:
            return (*self.seq_lengths, *parts, *self.BLOCK_SIZE, self.mask_mod)
        return (self.seq_lengths, *parts, self.BLOCK_SIZE, self.mask_mod)

    @property
    def shape(self) -> tuple[int, ...]:
        """Batches, heads, queries and keys."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """Return the number of pairs, seen or not."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    def sparsity(self) -> float:
        """Return the share of pairs that lie in no block to compute, in percent."""
        blocks = int(self.kv_num_blocks.sum().item())
        if self.full_kv_num_blocks is not None:
            blocks += int(self.full_kv_num_blocks.sum().item())
        return 100 * (1 - blocks * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1] / self.numel())

    def to_dense(self) -> Tensor:
        """Return 1 for each block to compute, 0 for the others: (B, H, rows, columns) int32."""
        found = _dense(self.kv_num_blocks, self.kv_indices)
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            found = found | _dense(self.full_kv_num_blocks, self.full_kv_indices)
        return found

    def to(self, device: Any) -> BlockMask:
        """Return it with all parts on a device."""
        parts: Any = ((name, getattr(self, name)) for name in _PARTS)
        moved: dict[str, Any] = {n: None if part is None else part.to(device) for n, part in parts}
        return BlockMask(
            self.seq_lengths, **moved, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod
        )

    def __getitem__(self, index: Any) -> BlockMask:
        """Return the mask of some batches, heads and rows of blocks.

        Its ``mask_mod`` and its ``seq_lengths`` stay: set them to what the rows are, as PyTorch's
        users do.
        """
        index = index if isinstance(index, tuple) else (index,)
        index = tuple(slice(i, i + 1 or None) if isinstance(i, int) else i for i in index)
        full: tuple[Any, Any] = (None, None)
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            full = self.full_kv_num_blocks[index], self.full_kv_indices[index]
        return BlockMask.from_kv_blocks(
            self.kv_num_blocks[index],
            self.kv_indices[index],
            *full,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=self.mask_mod,
            seq_lengths=self.seq_lengths,
            compute_q_blocks=self.q_indices is not None,
        )

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """Draw at most ``limit`` of its masks, each in at most ``grid_size`` rows and columns.

        ``██`` is computed, ``░░`` in part, blanks are left out.
        """
        rows, columns = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        dense = self.to_dense()
        lead = dense.shape[:-2]
        flat = dense.reshape(-1, *dense.shape[-2:]).float()
        drawn = []
        for number, mask in enumerate(flat[:limit]):
            where: list[int] = []
            for n in reversed(lead):
                number, place = divmod(number, n)
                where.insert(0, place)
            down = -(-mask.shape[0] // max(1, rows)) or 1
            across = -(-mask.shape[1] // max(1, columns)) or 1
            lines = [
                "".join(
                    _shade(mask[r : r + down, c : c + across].mean().item()) * 2
                    for c in range(0, mask.shape[1], across)
                )
                for r in range(0, mask.shape[0], down)
            ]
            drawn.append("\n".join([str(tuple(where)), *lines]))
        if flat.shape[0] > limit:
            drawn.append(f"... {flat.shape[0] - limit} more")
        return "\n".join(drawn)

    def __str__(self) -> str:
        head = f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, "
        return f"{head}\n{self.to_string()}\n)"

    def __repr__(self) -> str:
        lines = []
        for name in _PARTS:
            part = getattr(self, name)
            lines.append(f"{name}={None if part is None else part.shape}")
        lines += [f"BLOCK_SIZE={self.BLOCK_SIZE}", f"shape={self.shape}"]
        lines.append(f"sparsity={self.sparsity():.2f}%")
        lines.append(f"mask_mod={getattr(self.mask_mod, '__name__', self.mask_mod)}")
        return "BlockMask(\n    " + ",\n    ".join(lines) + "\n)"


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile: bool = False,
    separate_full_blocks: bool = True,
) -> BlockMask:
    """Create the block mask of a ``mask_mod``.

    Args:
        mask_mod: Takes the indices of a batch, a head, a query and a key, 0-d integer tensors;
            returns whether the query sees the key.
        B: Batches; None for one mask for all.
        H: Heads; None likewise.
        Q_LEN: Number of queries.
        KV_LEN: Number of keys.
        device: Where its parts lie.
        BLOCK_SIZE: Queries and keys of a block, or one number for both.
        _compile: Ignored.
        separate_full_blocks: Whether blocks that are seen whole are listed apart.

    Memory:
        The mask of all pairs, B H Q_LEN KV_LEN bytes and a few times that, while it is made.
    """
    size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    seen = _pairs_in_blocks(mask, size)
    full = seen == size[0] * size[1]
    some = (seen > 0) & ~full if separate_full_blocks else seen > 0
    rows: tuple[Any, Any] = (None, None)
    columns: tuple[Any, Any] = (None, None)
    if separate_full_blocks:
        rows, columns = _listed(full), _listed(full.mT)
    return BlockMask(
        (Q_LEN, KV_LEN),
        *_listed(some),
        *rows,
        *_listed(some.mT),
        *columns,
        BLOCK_SIZE=size,
        mask_mod=mask_mod,
    )


def _pairs_in_blocks(mask: Tensor, size: tuple[int, int]) -> Tensor:
    # How many pairs are seen in each block: what sticks out beyond the last pair is not.
    b, h, q, kv = mask.shape
    rows, columns = -(-q // size[0]), -(-kv // size[1])
    if (rows * size[0], columns * size[1]) != (q, kv):
        whole = mask.new_zeros((b, h, rows * size[0], columns * size[1]))
        whole[:, :, :q, :kv] = mask
        mask = whole
    found: Tensor = mask.reshape(b, h, rows, size[0], columns, size[1]).sum((3, 5))
    return found


def _listed(dense: Tensor) -> tuple[Tensor, Tensor]:
    # How many blocks of a row count, and all their columns: those that count come first.
    dense = dense.to(int32)
    order = dense.argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1).to(int32), order.to(int32).contiguous()


def _dense(counts: Tensor, indices: Tensor) -> Tensor:
    columns = indices.shape[-1]
    counted = arange(columns, device=indices.device) < counts.unsqueeze(-1)
    found: Tensor = ops.zeros_like(indices).scatter(-1, indices.long(), counted.to(int32))
    return found


def _shade(share: float) -> str:
    return " " if share == 0 else "█" if share == 1 else "░"
