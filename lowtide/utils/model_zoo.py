"""Weights by their address, under the older path; see ``lowtide.hub``."""

from lowtide.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
