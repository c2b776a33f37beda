"""Plans whose optimizers step in backward: less room, the same bits, and no misuse unnoticed."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.devices import backend
from lowtide.profiling import Plan
from tests.checkpointing.twice import bits, live

LEDGER = backend(lt.device("cpu")).ledger


pytestmark = pytest.mark.usefixtures("no_collector")

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
}


class Net(nn.Module):
    """Blocks with tied weights, and a second loss that reads detached features."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(draw.randint(3, 6)))
        self.tied = [draw.randrange(len(self.blocks)) for _ in range(draw.randint(0, 3))]
        self.side = nn.Linear(width, width)

    def forward(self, x: lt.Tensor) -> tuple[lt.Tensor, lt.Tensor]:
        features = []
        for block in [*self.blocks, *(self.blocks[k] for k in self.tied)]:
            x = nn.functional.gelu(block(x))
            features.append(x)
        side = [(self.side(f.detach()) * f.detach()).square().mean() for f in features]
        return x.square().mean(), sum(side[1:], side[0])


class World:
    """A model, its optimizer and its step; the same from the same seed."""

    def __init__(self, seed: int, kind: str = "adamw") -> None:
        draw = random.Random(seed)
        lt.manual_seed(seed)
        width = draw.choice([64, 80, 96])
        self.net = Net(draw, width)
        self.optimizer = OPTIMIZERS[kind](self.net.parameters())
        self.x = lt.randn(draw.choice([24, 40]), width)
        self.apart = False  # whether each loss has a backward pass of its own

    def backward(self) -> None:
        main, side = self.net(self.x)
        if self.apart:
            main.backward()
            side.backward()
        else:
            (main + side).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def state(self) -> object:
        state = self.optimizer.state
        parameters = list(self.net.parameters())
        moments = [v for p in parameters for v in state[p].values() if isinstance(v, lt.Tensor)]
        return bits(parameters), bits(moments)


@pytest.mark.deep
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("seed", range(8))
def test_the_same_bits_within_a_budget_that_gradients_would_not_fit(seed, kind):
    plain = World(seed, kind)
    for _ in range(4):
        plain.step()
    expected = plain.state()
    del plain
    world = World(seed, kind)
    world.step()
    world.optimizer.zero_grad()
    start = live()
    with pytest.raises(lt.InfeasibleBudget) as caught:
        lt.fit(world.step, budget=start + 1000)
    alone = caught.value
    assert "fit(..., in_backward=optimizer)" in str(alone)
    with pytest.raises(lt.InfeasibleBudget) as caught:
        lt.fit(world.step, budget=start + 1000, in_backward=world.optimizer)
    error = caught.value
    assert "in_backward=" not in str(error)
    assert error.floor < alone.floor
    assert error.floor_proved < alone.floor_proved
    limit = min(int(1.03 * (error.floor - start)) + start, alone.floor_proved - 1)
    plan = lt.fit(world.step, budget=limit, in_backward=world.optimizer, tries=0)
    assert plan.peak <= limit < alone.floor_proved <= plan.plain_peak
    assert plan.in_backward == (world.optimizer,)
    assert f"{type(world.optimizer).__name__} in backward" in str(plan)
    LEDGER.reset_peak()
    for _ in range(3):
        with plan:
            world.step()
        assert world.optimizer._in_backward is None
    assert LEDGER.peak == plan.peak
    assert world.state() == expected


def test_a_step_that_fits_as_it_is_stays_as_it_is():
    world = World(1)
    plan = lt.fit(world.step, budget="1GiB", in_backward=[world.optimizer])
    assert (plan.in_backward, plan.optimizers) == ((), [])
    with plan:
        world.step()
    assert all(p.grad is not None for p in world.net.parameters())


def accumulates(world):
    world.optimizer.zero_grad()
    for _ in range(2):
        world.backward()
    world.optimizer.step()


def clips(world):
    world.optimizer.zero_grad()
    world.backward()
    nn.utils.clip_grad_norm_(world.net.parameters(), 1.0)
    world.optimizer.step()


def reads(world):
    world.optimizer.zero_grad()
    world.backward()
    world.net.side.weight.grad.norm()
    world.optimizer.step()


def leaves_the_step_to_others(world):
    world.optimizer.zero_grad()
    world.backward()


@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (accumulates, "gradients cannot be accumulated that way"),
        (clips, "needs all gradients at once"),
        (reads, "'NoneType' object has no attribute 'norm'"),
        (leaves_the_step_to_others, r"calls backward\(\) and not step\(\) of AdamW"),
    ],
)
def test_what_needs_gradients_after_backward_is_refused_before_anything_happens(misuse, error):
    world = World(2)
    world.step()
    before, allocations, parameters = live(), LEDGER.allocations, world.state()
    with pytest.raises((RuntimeError, AttributeError), match=error) as caught:
        lt.fit(lambda: misuse(world), budget=before + 1000, in_backward=world.optimizer)
    assert any("p.grad is None" in note for note in caught.value.__notes__)
    assert (live(), LEDGER.allocations) == (before, allocations)
    assert world.state() == parameters
    assert world.optimizer._in_backward is None
    with pytest.raises(TypeError, match="got Net"):
        lt.fit(world.step, budget=before, in_backward=world.net)


def planned(world):
    world.step()
    world.optimizer.zero_grad()
    with pytest.raises(lt.InfeasibleBudget) as caught:
        lt.fit(world.step, budget=live() + 1000, in_backward=world.optimizer)
    limit = int(1.03 * caught.value.floor)
    return lt.fit(world.step, budget=limit, in_backward=world.optimizer, tries=0)


@pytest.mark.deep
def test_an_error_inside_and_generators_leave_the_optimizer_as_it_was():
    world = World(3)
    plan = planned(world)
    assert plan.in_backward

    def fails():
        with plan:
            assert world.optimizer._in_backward is not None
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fails()
    assert world.optimizer._in_backward is None

    @plan
    def steps():
        for _ in range(2):
            world.step()
            yield world.optimizer._in_backward is not None

    for inside in steps():
        assert inside
        assert world.optimizer._in_backward is None  # the consumer's optimizer steps by itself
    handle = optim.fuse_into_backward(world.optimizer)
    with plan:
        world.step()
    assert world.optimizer._in_backward is not None  # it was the user who fused it
    handle.remove()


@pytest.mark.deep
def test_a_plan_in_a_file_wants_its_optimizers(tmp_path):
    world = World(4)
    plan = planned(world)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"made with in_backward=\['AdamW'\], and got \[\]"):
        Plan.load(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", in_backward=world.optimizer)
    assert str(loaded) == str(plan)
    LEDGER.reset_peak()
    with loaded:
        world.step()
    assert LEDGER.peak == plan.peak
    tide = plan.tide()
    assert max(m.nbytes for m in tide.plain) == plan.plain_peak
    assert max(m.nbytes for m in tide.planned) == plan.peak


@pytest.mark.deep
def test_passes_in_plans_entered_one_after_another_are_not_several_steps():
    world = World(5)
    plan = planned(world)
    with plan:
        world.backward()
    before = bits(list(world.net.parameters()))
    with pytest.raises(RuntimeError, match="a second backward pass came before its step"), plan:
        world.backward()
    assert bits(list(world.net.parameters())) == before
    assert world.optimizer._in_backward is None
    world.optimizer.step()
    with plan:
        world.step()


@pytest.mark.deep
def test_advice_does_not_offer_what_would_step_too_often():
    world = World(6)
    world.step()
    for misuse in (accumulates, clips, leaves_the_step_to_others):
        found = lt.profiling.advise(lambda misuse=misuse: misuse(world), limit=live() + 1000)
        assert not any("in backward" in p.change for p in found.proposals)
        reason = next(why for what, why in found.untried.items() if "in backward" in what)
        assert "RuntimeError" in reason


def test_weights_that_a_later_pass_needs_as_they_were_are_not_updated_before_it():
    world = World(4)
    world.apart = True  # the second pass reads features of weights that the first would update
    world.step()
    world.optimizer.zero_grad()
    before = world.state()
    with pytest.raises(lt.GradientError, match="has made it version") as caught:
        lt.fit(world.step, budget=live() + 1000, in_backward=world.optimizer)
    assert any("with in_backward" in note for note in caught.value.__notes__)
    assert world.state() == before
