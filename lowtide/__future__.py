"""Switches of PyTorch for behaviours to come: each can be set and read."""

_state = {"overwrite": True, "swap": False}


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Remember it; ``Module.to`` writes into the parameters' place here."""
    _state["overwrite"] = bool(value)


def get_overwrite_module_params_on_conversion() -> bool:
    """Return what was set."""
    return _state["overwrite"]


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Remember it; ``Module.to`` writes into the parameters' place here."""
    _state["swap"] = bool(value)


def get_swap_module_params_on_conversion() -> bool:
    """Return what was set."""
    return _state["swap"]
