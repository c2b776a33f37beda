"""Lazy modules: sizes are inferred from the first input.

Until then parameters are placeholders without elements. The first call (or a state dict) gives them
their shape and values, and the layer becomes an ordinary one of its class. Pass one batch through
the model before the optimizer is made.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from ..framework.modes import no_grad
from ..framework.ops.creation.fill import empty
from ..framework.ops.creation.from_data import tensor
from ..framework.tensor import Tensor
from .batchnorm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    _InstanceNorm,
)
from .convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .linear import Linear
from .parameter import Parameter


class _Placeholder(Tensor):
    # What stands for a parameter or buffer whose shape is not known.
    settled: type[Tensor]

    @property
    def shape(self) -> Any:
        """The shape, which is not known yet.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. Call the module on a "
            "batch first."
        )

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Convert to an ordinary parameter or buffer of ``shape``, uninitialized."""
        made = empty(shape, device=device or self.device, dtype=dtype or self.dtype)
        with no_grad():
            self.data = made
        settled: Any = type(self).settled
        self.__class__ = settled

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return the placeholder for another device or dtype."""
        made = self.detach().to(*args, **kwargs)
        return type(self)(self.requires_grad, made.device, made.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        found = memo.get(id(self))
        if found is None:
            found = memo[id(self)] = type(self)(
                requires_grad=self.requires_grad, device=self.device, dtype=self.dtype
            )
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(_Placeholder, Parameter):
    """A parameter whose shape is not known yet.

    Args:
        requires_grad: Whether it will be trained.
        device: Where it will lie.
        dtype: Its type.
    """

    settled = Parameter

    def __new__(
        cls, requires_grad: bool = True, device: Any = None, dtype: Any = None
    ) -> UninitializedParameter:
        """Create a placeholder."""
        made = super().__new__(cls, empty(0, device=device, dtype=dtype), requires_grad)
        assert isinstance(made, UninitializedParameter)
        return made


class UninitializedBuffer(_Placeholder):
    """A buffer whose shape is not known yet; arguments as :class:`UninitializedParameter`."""

    settled = Tensor

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None
    ) -> UninitializedBuffer:
        """Create a placeholder."""
        made = empty(0, device=device, dtype=dtype).requires_grad_(requires_grad)
        made.__class__ = cls
        return made


def is_lazy(value: Any) -> bool:
    """True for a parameter or buffer whose shape is not known yet."""
    return isinstance(value, _Placeholder)


class LazyModuleMixin:
    """Mixin of lazy modules; subclasses define the final class and how shapes are inferred."""

    cls_to_become: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        module: Any = self
        handles = (
            module.register_forward_pre_hook(_prepare, with_kwargs=True),
            module.register_load_state_dict_pre_hook(_read),
        )
        object.__setattr__(self, "_lazy_handles", handles)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Set shapes and values of parameters from the arguments of the first call."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}."
        )

    def has_uninitialized_params(self) -> bool:
        """True if some parameter or buffer has no shape yet."""
        module: Any = self
        return any(map(is_lazy, (*module._parameters.values(), *module._buffers.values())))

    def _settle(self) -> None:
        for handle in self.__dict__.pop("_lazy_handles", ()):
            handle.remove()
        if type(self).cls_to_become is not None:
            self.__class__ = type(self).cls_to_become


def _prepare(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    module.initialize_parameters(*args, **kwargs)
    if module.has_uninitialized_params():
        raise RuntimeError(
            f"module {type(module).__name__} has not been fully initialized by "
            "initialize_parameters. Materialize every parameter there."
        )
    module._settle()


def _read(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    # Shapes come from the state dict; the values are copied afterwards, as for any layer.
    for registry in (module._parameters, module._buffers):
        for name, value in registry.items():
            given = state_dict.get(prefix + name)
            if is_lazy(value) and given is not None and not is_lazy(given):
                value.materialize(tuple(given.shape))


class _Lazy(LazyModuleMixin):
    # Placeholders in the registries of a layer that was made with sizes of 0.
    def _wait(self, names: dict[str, bool], kind: Any, device: Any, dtype: Any) -> None:
        module: Any = self
        parameters = kind is UninitializedParameter
        register = module.register_parameter if parameters else module.register_buffer
        for name, there in names.items():
            register(name, kind(device=device, dtype=dtype) if there else None)

    def reset_parameters(self) -> None:
        """Reinitialize the parameters, once their shapes are known."""
        module: Any = self
        values = [*module._parameters.values(), *module._buffers.values()]
        if not any(v is not None and (is_lazy(v) or not v.numel()) for v in values):
            super().reset_parameters()  # type: ignore[misc]


class LazyLinear(_Lazy, Linear):
    """A :class:`Linear` that infers ``in_features`` from its first input.

    Args:
        out_features: Size of the result's last dimension.
        bias: Whether to add a bias.
        device: Where its parameters will lie.
        dtype: Their type.
    """

    cls_to_become = Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._wait({"weight": True, "bias": bias}, UninitializedParameter, device, dtype)

    def initialize_parameters(self, input: Tensor) -> None:
        """Infer the size of the last dimension."""
        if self.has_uninitialized_params():
            self.in_features = int(input.shape[-1])
            _materialize(self.weight, (self.out_features, self.in_features))
            _materialize(self.bias, (self.out_features,))
            self.reset_parameters()
        self.in_features = int(self.weight.shape[-1])


class _LazyConv(_Lazy):
    def __init__(self, out_channels: int, *args: Any, **kwargs: Any) -> None:
        # The arguments are the layer's own, without the first.
        bound = signature(type(self).cls_to_become).bind(0, 0, *args, **kwargs).arguments
        bias = bound.pop("bias", True)
        device, dtype = bound.pop("device", None), bound.pop("dtype", None)
        super().__init__(**bound, bias=False)
        layer: Any = self
        if out_channels % layer.groups:
            raise ValueError(
                f"{type(self).__name__}: out_channels must be divisible by groups; got "
                f"{out_channels} and {layer.groups}."
            )
        layer.out_channels = out_channels
        self._wait({"weight": True, "bias": bias}, UninitializedParameter, device, dtype)

    def initialize_parameters(self, input: Tensor, *_: Any) -> None:
        """Infer the number of channels."""
        layer: Any = self
        if self.has_uninitialized_params():
            nd = layer.nd
            if input.ndim not in (nd + 1, nd + 2):
                raise RuntimeError(
                    f"{type(self).__name__}: expected {nd + 1}D (unbatched) or {nd + 2}D (batched) "
                    f"input; got {tuple(input.shape)}."
                )
            channels = int(input.shape[-nd - 1])
            if channels % layer.groups:
                raise ValueError(
                    f"{type(self).__name__}: in_channels must be divisible by groups; got "
                    f"{channels} and {layer.groups}."
                )
            layer.in_channels = channels
            sizes = [layer.out_channels, channels // layer.groups]
            if layer.transposed:
                sizes = [channels, layer.out_channels // layer.groups]
            _materialize(layer.weight, (*sizes, *layer.kernel_size))
            _materialize(layer.bias, (layer.out_channels,))
            self.reset_parameters()
        shape = layer.weight.shape
        layer.in_channels = int(shape[0] if layer.transposed else shape[1] * layer.groups)


class LazyConv1d(_LazyConv, Conv1d):
    """A :class:`Conv1d` that infers ``in_channels`` from its first input; same other arguments."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """A :class:`Conv2d` that infers ``in_channels`` from its first input; same other arguments."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """A :class:`Conv3d` that infers ``in_channels`` from its first input; same other arguments."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConv, ConvTranspose1d):
    """A :class:`ConvTranspose1d` that infers ``in_channels`` from its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConv, ConvTranspose2d):
    """A :class:`ConvTranspose2d` that infers ``in_channels`` from its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConv, ConvTranspose3d):
    """A :class:`ConvTranspose3d` that infers ``in_channels`` from its first input."""

    cls_to_become = ConvTranspose3d


class _LazyNorm(_Lazy):
    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, False, False)
        layer: Any = self
        layer.affine, layer.track_running_stats = affine, track_running_stats
        wanted = {"weight": affine, "bias": affine and bias}
        self._wait(wanted, UninitializedParameter, device, dtype)
        averages = dict.fromkeys(("running_mean", "running_var"), track_running_stats)
        self._wait(averages, UninitializedBuffer, device, dtype)
        count = tensor(0, device=device) if track_running_stats else None
        layer.register_buffer("num_batches_tracked", count)

    def initialize_parameters(self, input: Tensor) -> None:
        """Infer the number of channels."""
        layer: Any = self
        layer._check_input_dim(input)
        unbatched = isinstance(self, _InstanceNorm) and input.ndim == min(layer.dimensions)
        waiting = self.has_uninitialized_params()
        layer.num_features = int(input.shape[0 if unbatched else 1])
        if waiting:
            for name in ("weight", "bias", "running_mean", "running_var"):
                _materialize(getattr(layer, name), (layer.num_features,))
            self.reset_parameters()


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A :class:`BatchNorm1d` that infers ``num_features`` from its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A :class:`BatchNorm2d` that infers ``num_features`` from its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A :class:`BatchNorm3d` that infers ``num_features`` from its first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An :class:`InstanceNorm1d` that infers ``num_features`` from its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An :class:`InstanceNorm2d` that infers ``num_features`` from its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An :class:`InstanceNorm3d` that infers ``num_features`` from its first input."""

    cls_to_become = InstanceNorm3d


def _materialize(value: Any, shape: tuple[int, ...]) -> None:
    if is_lazy(value):
        value.materialize(shape)
