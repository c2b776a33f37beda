"""Meshes of ranks: the world as a table, with a process group for each of its lines.

Source of the interface: PyTorch's ``torch.distributed.device_mesh``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..dtypes import int32
from ..ops.creation.from_data import tensor
from ..tensor import Tensor
from .initialization import init_process_group
from .process_group import (
    GroupMember,
    ProcessGroup,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    is_initialized,
    new_group,
)


class DeviceMesh:
    """Ranks as an array of any number of dims; along each dim, a rank is in one process group.

    All ranks of the world make it, also those that are not in it.

    Args:
        device_type: Such as ``"cpu"``.
        mesh: The ranks, as an array, a tensor or nested lists; each once.
        mesh_dim_names: Names of the dims.
        backend_override: Refused.

    Attributes:
        device_type: The type that was given.
        mesh_dim_names: Names of the dims, or None.

    Raises:
        ValueError: A rank comes twice or does not exist, or the names do not fit the dims.
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Any = None,
        _groups: list[Any] | None = None,
    ) -> None:
        if backend_override is not None:
            raise NotImplementedError("DeviceMesh: backend_override is not there. Leave it out.")
        given = mesh.numpy() if isinstance(mesh, Tensor) else mesh
        self._ranks = np.array(given, np.int64)
        self.device_type = device_type
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        _require_names(self.mesh_dim_names, self._ranks.ndim)
        if not is_initialized():
            init_process_group()
        world = get_world_size()
        flat = self._ranks.reshape(-1).tolist()
        if len(set(flat)) < len(flat) or not all(0 <= rank < world for rank in flat):
            raise ValueError(
                f"DeviceMesh: {self._ranks.tolist()} must name ranks of a world of {world}, each "
                "once."
            )
        self._groups = self._made_groups() if _groups is None else _groups

    def _made_groups(self) -> list[Any]:
        # The group of each dim that this rank is in; all ranks make all, in one order.
        found: list[Any] = []
        for dim in range(self._ranks.ndim):
            own: Any = GroupMember.NON_GROUP_MEMBER
            for line in np.moveaxis(self._ranks, dim, -1).reshape(-1, self._ranks.shape[dim]):
                ranks = line.tolist()
                world = ranks == list(range(get_world_size()))
                group = GroupMember.WORLD if world else new_group(ranks)
                if get_rank() in ranks:
                    own = group
            found.append(own)
        return found

    @property
    def mesh(self) -> Tensor:
        """The ranks, as a tensor of int32."""
        return tensor(self._ranks.tolist(), dtype=int32)  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._ranks.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ranks along each dim."""
        return tuple(self._ranks.shape)

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of ranks, or of those along a dim."""
        return self._ranks.size if mesh_dim is None else self._ranks.shape[mesh_dim]

    def get_rank(self) -> int:
        """Return the rank of this process in the world."""
        return get_rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return where this rank is; None if it is not in the mesh."""
        found = np.argwhere(self._ranks == get_rank())
        return tuple(found[0].tolist()) if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the rank of this process along a dim, which a mesh of one dim need not name.

        Raises:
            RuntimeError: There are several dims, or this rank is not in the mesh.
        """
        dim, at = self._dim(mesh_dim, "get_local_rank"), self.get_coordinate()
        if at is None:
            raise RuntimeError(f"DeviceMesh.get_local_rank: rank {get_rank()} is not in the mesh.")
        return at[dim]

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Return the process group along a dim, which a mesh of one dim need not name.

        Raises:
            RuntimeError: There are several dims.
        """
        return self._groups[self._dim(mesh_dim, "get_group")]  # type: ignore[no-any-return]

    def get_all_groups(self) -> list[ProcessGroup]:
        """Return the process groups of all dims."""
        return list(self._groups)

    def _dim(self, mesh_dim: int | str | None, name: str) -> int:
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(
                    f"DeviceMesh.{name}: the mesh has {self.ndim} dims. Name one of them: mesh_dim="
                )
            return 0
        return self._index(mesh_dim) if isinstance(mesh_dim, str) else range(self.ndim)[mesh_dim]

    def _index(self, name: str) -> int:
        names = self.mesh_dim_names or ()
        if name not in names:
            raise KeyError(f"DeviceMesh: there is no dim {name!r}; there are {list(names)}.")
        return names.index(name)

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the part of the mesh along some dims in which this rank is.

        Raises:
            KeyError: There is no such dim.
            RuntimeError: This rank is not in the mesh.
        """
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        dims = [self._index(name) for name in names]
        at = self.get_coordinate()
        if at is None:
            raise RuntimeError(f"DeviceMesh: rank {get_rank()} is not in the mesh.")
        where = tuple(slice(None) if k in dims else at[k] for k in range(self.ndim))
        kept = sorted(dims)
        part = np.transpose(self._ranks[where], [kept.index(dim) for dim in dims])
        groups = [self._groups[dim] for dim in dims]
        return DeviceMesh(self.device_type, part, mesh_dim_names=names, _groups=groups)

    @staticmethod
    def from_group(
        group: ProcessGroup,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Return the mesh of one dim that a process group is.

        Raises:
            NotImplementedError: Several groups are given.
        """
        if not isinstance(group, ProcessGroup):
            raise NotImplementedError(
                "DeviceMesh.from_group: a mesh of several groups is not there. Use "
                "init_device_mesh."
            )
        ranks = get_process_group_ranks(group)
        return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _groups=[group])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.device_type, self.shape, self._ranks.tobytes(), self.mesh_dim_names

    def __repr__(self) -> str:
        names = self.mesh_dim_names or [""] * self.ndim
        dims = [
            f"{n}={size}" if n else str(size) for n, size in zip(names, self.shape, strict=True)
        ]
        return f"DeviceMesh(({', '.join(dims)}), {self.device_type!r})"


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Any = None,
) -> DeviceMesh:
    """Return the ranks from 0 on as a mesh; all ranks call it.

    Args:
        device_type: Such as ``"cpu"``.
        mesh_shape: The number of ranks along each dim; the last one has neighbours.
        mesh_dim_names: Names of the dims.
        backend_override: Refused.

    Raises:
        RuntimeError: There are fewer ranks.
        ValueError: There are more or fewer names than dims.
    """
    _require_names(mesh_dim_names, len(mesh_shape))
    if not is_initialized():
        init_process_group()
    count = prod(mesh_shape)
    if count > get_world_size():
        raise RuntimeError(
            f"init_device_mesh: a mesh of {tuple(mesh_shape)} has {count} ranks, and the world has "
            f"{get_world_size()}."
        )
    ranks = np.arange(count).reshape(tuple(mesh_shape))
    return DeviceMesh(
        device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=backend_override
    )


def group_of(mesh: Any, who: str) -> Any:
    """Return the process group that a mesh of one dim means; what is none, as it is.

    Raises:
        NotImplementedError: The mesh has several dims.
    """
    if not isinstance(mesh, DeviceMesh):
        return mesh
    if mesh.ndim > 1:
        raise NotImplementedError(
            f"{who}: a mesh of {mesh.ndim} dims is not there. Take one of them, as in mesh['dp']."
        )
    return mesh.get_group()


def _require_names(names: Sequence[str] | None, ndim: int) -> None:
    if names is not None and (len(names) != ndim or len(set(names)) < ndim):
        raise ValueError(
            f"DeviceMesh: mesh_dim_names must name {ndim} dims, each once; got {tuple(names)}."
        )
