"""A budget that drops values at random at every allocation: programs must not notice."""

from __future__ import annotations

import math
import random
from threading import get_ident
from typing import Any

import lowtide as lt
from lowtide.framework.autograd.remat.evictable import BudgetRegion
from lowtide.framework.autograd.remat.evictor import Evictor, can_go
from lowtide.framework.autograd.remat.replay_costs import EvictionRule


class StormyEvictor(Evictor):
    """Drops a random part of what can go whenever somebody allocates, and lets all pass.

    With stashes, half of what goes is stashed.
    """

    def __init__(self, share: float, seed: int, stashes: tuple[Any, ...] = ()) -> None:
        super().__init__(EvictionRule(smallest=0), stashes)
        self.share = share
        self.random = random.Random(seed)

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        if self.busy or get_ident() != self.thread:
            return True
        self.busy = True
        try:
            if not self.active:
                self._begin()
            self.let_go()
            for reference in list(self._by_place):
                value = None if reference is None else reference()
                if value is None or value.held is None:
                    continue
                if self.random.random() < self.share and can_go(value):
                    if self.stashing.stashes and self.random.random() < 0.5:
                        self._stash(value, math.inf)
                    value.drop()
                    self.evictions += 1
        finally:
            self.busy = False
        return True


def storm(
    share: float = 0.3, seed: int = 0, device: str = "cpu", stashes: tuple[Any, ...] = ()
) -> lt.memory_budget:
    """Return a budget of 0 bytes that drops values at random, and refuses nothing."""
    budget = lt.memory_budget(0, device)
    region = BudgetRegion("a test", StormyEvictor(share, seed, stashes))
    budget._regions[get_ident()] = region
    budget.region = region  # type: ignore[attr-defined]  # alive as long as the budget
    return budget
