"""Optimizer: parameter groups, lazily made state, and one update rule per parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ..framework.autograd.modes import enable_grad, no_grad
from ..framework.memory.ledger import OPTIMIZER
from ..framework.tensor import Tensor


class Optimizer:
    """Base class: holds parameter groups and state, and applies :meth:`update` to each parameter.

    Args:
        params: Tensors, (name, tensor) pairs, or dicts with ``params`` and options of their own.
        defaults: Options of groups that do not set them.

    Attributes:
        param_groups: Dicts of ``params`` and options.
        state: Each parameter's state.
        elements: Of all parameters.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.elements = 0
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                "dicts; got a Tensor. Wrap it in a list."
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list.")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with options of its own.

        Raises:
            TypeError: Something in it is no tensor.
            ValueError: A tensor is no leaf, or is in another group already.
        """
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors; got {type(p).__name__}.")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor. Pass the leaf it is made from.")
            if id(p) in known:
                raise ValueError("some parameters appear in more than one parameter group.")
            known.add(id(p))
        self.elements += sum(p.numel() for p in params)
        self.param_groups.append({**self.defaults, **param_group, "params": params})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if p._grad is not None:
                    if set_to_none:
                        p._grad = None
                    else:
                        p._grad = p._grad.detach().zero_()

    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: Computes the loss again and returns it, after its own ``zero_grad``.

        Returns:
            What ``closure`` returned, or None.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p._grad is not None:
                        self.update(p, p._grad, self.state[p], group)
        return loss

    def update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Change one parameter in place; subclasses define it."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Options and state, with parameters numbered in group order."""
        number: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                number.setdefault(id(p), len(number))
            options = {k: v for k, v in group.items() if k != "params"}
            groups.append({**options, "params": [number[id(p)] for p in group["params"]]})
        state = {number[id(p)]: dict(s) for p, s in self.state.items() if id(p) in number}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over options and state; tensors keep the dtype they were saved with.

        Raises:
            ValueError: Groups or their sizes differ.
        """
        groups = state_dict["param_groups"]
        mine = [len(g["params"]) for g in self.param_groups]
        if mine != [len(g["params"]) for g in groups]:
            raise ValueError(
                "loaded state dict has parameter groups of other sizes: this optimizer has "
                f"{mine}, the state dict {[len(g['params']) for g in groups]}."
            )
        by_number: dict[int, Any] = {}
        for group, saved in zip(self.param_groups, groups, strict=True):
            by_number.update(zip(saved["params"], group["params"], strict=True))
            group.update({k: v for k, v in saved.items() if k != "params"})
        self.state.clear()
        for number, saved_state in state_dict["state"].items():
            p = by_number[number]
            self.state[p] = {
                k: own(v.detach().to(p.device).clone()) if isinstance(v, Tensor) else v
                for k, v in saved_state.items()
            }

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {n}: {v}" for n, v in sorted(group.items()) if n != "params"]
        return "\n".join([*lines, ")"])


def own(tensor: Any) -> Any:
    """Count a tensor as optimizer state."""
    tensor._storage.set_role(OPTIMIZER)
    return tensor
