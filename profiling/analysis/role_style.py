"""Colors and labels of memory roles, shared by plots, pages and exports.

The colors can be told apart by people who see no red or no green, lie on white as well as on dark
gray, and are stacked so that what stays from step to step is at the bottom and the tide on top.
"""

from __future__ import annotations

from ...framework.memory.ledger import ROLES

ROLE_COLORS = {
    "parameter": "#4477aa",
    "buffer": "#66c2d7",
    "optimizer": "#2e8b57",
    "gradient": "#ee8866",
    "input": "#8a6fb3",
    "saved": "#d1495b",
    "temporary": "#e3b23c",
    "communication": "#b5651d",
    "workspace": "#98a1ab",
}
ROLE_WORDS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "gradient": "gradients",
    "input": "inputs",
    "saved": "saved for backward",
    "temporary": "temporaries",
    "communication": "communication",
    "workspace": "workspace",
}
PHASE_COLORS = {
    "forward": "#5b8ff9",
    "backward": "#f08a4b",
    "recompute": "#b08ae4",
    "optimizer": "#4caf7a",
    "evaluation": "#2fb5c4",
    "other": "#b0b4ba",
}
# For modules and lines, in the order of their bytes; the last is for all others.
GROUP_COLORS = (
    "#4477aa",
    "#d1495b",
    "#e3b23c",
    "#2e8b57",
    "#8a6fb3",
    "#ee8866",
    "#66c2d7",
    "#b5651d",
    "#c77cc0",
    "#7f9c3b",
    "#3f6f8f",
)
OTHERS_COLOR = "#98a1ab"
STACK = tuple(ROLES.index(role) for role in ROLE_COLORS)  # role numbers, bottom first
