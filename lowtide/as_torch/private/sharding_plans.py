"""Plans of how tensors would be cut among processes: they can be written down, not carried out.

Model libraries make tables of ``Shard(0)`` and ``ColwiseParallel()`` when they are imported. To
distribute a tensor or a module by them is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowtide.as_torch.private import many_processes as _many


class Placement:
    """How one tensor lies on one dimension of a mesh of devices."""

    def is_shard(self, dim: int | None = None) -> bool:
        """True for :class:`Shard`, of dimension ``dim`` if it is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """True for :class:`Replicate`."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True for :class:`Partial`, with the reduction ``reduce_op`` if it is given."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """Cut along dimension ``dim``, one part for each device."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True)
class Replicate(Placement):
    """Replicated on each device."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, repr=False)
class Partial(Placement):
    """A term on each device, still to be reduced."""

    reduce_op: str = "sum"

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


class ParallelStyle:
    """How a module would be cut: the arguments are kept under their names.

    Raises:
        NotImplementedError: It is applied to a module.
    """

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        return _many.__getattr__("parallelize_module")(module, device_mesh, self)


class _CutLinear(ParallelStyle):
    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = (input_layouts or self._given[0],)
        self.output_layouts = (output_layouts or self._given[1],)
        self.use_local_output = use_local_output

    _given: tuple[Placement, Placement]


class ColwiseParallel(_CutLinear):
    """A linear layer or an embedding whose columns would be cut."""

    _given = Replicate(), Shard(-1)


class RowwiseParallel(_CutLinear):
    """A linear layer or an embedding whose rows would be cut."""

    _given = Shard(-1), Replicate()


class SequenceParallel(ParallelStyle):
    """A normalization or dropout whose input would be cut along the sequence."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output


class _Prepare(ParallelStyle):
    def __init__(self, **layouts: Any) -> None:
        unknown = layouts.keys() - self._names
        if unknown:
            raise TypeError(f"{type(self).__name__}: unexpected arguments {sorted(unknown)}.")
        self.__dict__.update(dict.fromkeys(self._names), **layouts)

    _names: frozenset[str] = frozenset()


_INPUT = frozenset(
    f"{which}input_{kind}layouts" for which in ("", "desired_") for kind in ("", "kwarg_")
)
_OUTPUT = frozenset({"output_layouts", "desired_output_layouts", "use_local_output"})


class PrepareModuleInput(_Prepare):
    """A module whose inputs would be redistributed."""

    _names = _INPUT | {"use_local_output"}


class PrepareModuleOutput(_Prepare):
    """A module whose outputs would be redistributed."""

    _names = _OUTPUT


class PrepareModuleInputOutput(_Prepare):
    """A module whose inputs and outputs would be redistributed."""

    _names = _INPUT | _OUTPUT | {"use_local_input"}


def __getattr__(name: str) -> Any:
    """Any other name is refused when it is used."""
    return _many.__getattr__(name)
