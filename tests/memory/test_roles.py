"""What bytes are for: each role begins and ends where a user would say it does."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import ROLES


def role(t: lt.Tensor) -> str:
    return ROLES[t._storage.role]


def roles() -> dict[str, int]:
    return dict(lt.memory_stats("cpu")["by_role"])


def test_a_parameter_stays_one_when_its_data_is_replaced_or_converted():
    layer = nn.Linear(3, 2)
    assert {role(p) for p in layer.parameters()} == {"parameter"}
    layer.weight.data = lt.zeros(2, 3)
    assert role(layer.weight) == "parameter"
    layer.double()
    assert {role(p) for p in layer.parameters()} == {"parameter"}
    layer.load_state_dict({k: lt.ones_like(v) for k, v in layer.state_dict().items()}, assign=True)
    assert {role(p) for p in layer.parameters()} == {"parameter"}


def test_a_gradient_is_one_when_backward_or_the_user_puts_it_there():
    w = lt.ones(3, requires_grad=True)
    during = []
    w.register_hook(lambda g: during.append(role(g)))
    (w * 2).sum().backward()
    assert during == ["temporary"]  # in the making
    assert role(w.grad) == "gradient"
    w.grad = lt.zeros(3)
    assert role(w.grad) == "gradient"
    w.grad = lt.tensor([1.0, 2.0, 3.0])
    assert role(w.grad) == "gradient"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_peak_knows_a_gradient_as_one(device):
    ledger = backend(lt.device(device)).ledger
    x, w = lt.ones(2, 50, device=device), lt.ones(50, 40, device=device, requires_grad=True)
    y, g = x @ w, lt.ones(2, 40, device=device)
    ledger.reset_peak()
    before, gradients = ledger.live, ledger.roles[ROLES.index("gradient")]
    y.backward(g)
    assert ledger.peak - before == 4 * 50 * 40
    assert ledger.peak_roles[ROLES.index("gradient")] - gradients == 4 * 50 * 40
    assert role(w.grad) == "gradient"


def test_a_gradient_is_one_at_the_peak_that_is_over_when_it_is_accumulated():
    ledger = backend(lt.device("cpu")).ledger
    x, w = lt.ones(50, 60), lt.ones(60, 80, requires_grad=True)
    loss = (x @ w).exp().sum()
    before = ledger.roles[ROLES.index("gradient")]
    ledger.reset_peak()
    loss.backward()  # the gradient that arrives at the product goes before the leaf gets its own
    assert ledger.live < ledger.peak
    assert ledger.peak_roles[ROLES.index("gradient")] - before == w.nbytes


@pytest.mark.parametrize("hooked", [False, True])
def test_a_saved_value_was_one_at_the_peak_though_the_graph_lets_go_of_it(hooked):
    ledger = backend(lt.device("cpu")).ledger
    x = lt.ones(1000, requires_grad=True)
    kept = []

    def pack(tensor):
        kept.append(tensor.detach())
        return kept[-1]

    saved = ledger.roles[ROLES.index("saved")]
    ledger.reset_peak()
    if hooked:
        with lt.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            y = x.exp()
    else:
        y = x.exp()
        kept.append(y.detach())
    assert ledger.live == ledger.peak
    del y
    assert role(kept[0]) == "temporary"
    assert ledger.live == ledger.peak
    assert ledger.peak_roles[ROLES.index("saved")] - saved == kept[0].nbytes


def test_what_a_rule_returns_is_no_gradient_if_it_does_not_become_one():
    seen = {}

    def look(name):
        return lambda *_: seen.setdefault(name, roles()["gradient"] - before) and None

    a, b, c = (lt.ones(30, requires_grad=True) for _ in range(3))
    before = roles()["gradient"]
    # `add` hands the same gradient to both; that of `c` is added to the one that is there.
    c.grad = lt.zeros(30)
    y = a + b
    y.register_hook(look("sum"))
    loss = (y * c).sum()
    a.register_post_accumulate_grad_hook(look("first"))
    loss.backward(retain_graph=True)
    assert seen == {"sum": 120, "first": 240}
    assert {role(t.grad) for t in (a, b, c)} == {"gradient"}
    assert roles()["gradient"] - before == 360
    assert a.grad.data_ptr() != b.grad.data_ptr()
    # With inputs= the caller gets them, and nothing is accumulated.
    (g,) = lt.autograd.grad(loss, [c])
    assert role(g) == "temporary"
    assert roles()["gradient"] - before == 360


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_follow_their_module(to_none):
    layer = nn.Linear(3, 2)
    layer(lt.ones(1, 3)).sum().backward()
    layer.double()
    assert {role(p.grad) for p in layer.parameters()} == {"gradient"}
    layer.zero_grad(set_to_none=to_none)
    left = {None if p.grad is None else role(p.grad) for p in layer.parameters()}
    assert left == ({None} if to_none else {"gradient"})


def test_a_retained_gradient_is_one():
    w = lt.ones(3, requires_grad=True)
    y = w * 2
    y.retain_grad()
    y.sum().backward()
    assert role(y.grad) == "gradient"


def test_a_buffer_is_one_wherever_it_came_from():
    module = nn.Module()
    module.register_buffer("made", lt.zeros(3))
    module.register_buffer("given", lt.tensor([1.0, 2.0]))
    w = lt.ones(3, requires_grad=True)
    kept = lt.ones(3) * 1
    y = kept * w  # keeps it
    module.register_buffer("kept", kept)
    module.made = lt.ones(3)
    assert {role(b) for b in module.buffers()} == {"buffer"}
    module.double()
    assert {role(b) for b in module.buffers()} == {"buffer"}
    del y
    assert role(kept) == "buffer"


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda p: lt.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: lt.optim.Adam(p, lr=0.1), 2),
        (lambda p: lt.optim.AdamW(p, lr=0.1), 2),
    ],
)
def test_optimizer_state_is_counted_also_after_loading(make, state):
    before = roles()
    w = lt.ones(10, requires_grad=True)
    optimizer = make([w])
    (w * w).sum().backward()
    optimizer.step()
    assert roles()["optimizer"] - before["optimizer"] == 40 * state
    other = make([w])
    other.load_state_dict(optimizer.state_dict())
    assert roles()["optimizer"] - before["optimizer"] == 2 * 40 * state


def test_a_saved_value_that_gets_other_data_takes_no_role_along():
    before = roles()
    w = lt.ones(10, requires_grad=True)
    x = lt.ones(10) * 1
    y = x * w
    assert role(x) == "saved"
    x.data = lt.zeros(10)
    assert role(x) == "temporary"
    x.resize_(20)
    del y
    assert role(x) == "temporary"
    assert roles()["saved"] == before["saved"]


def test_a_saved_value_that_grows_leaves_its_role_with_the_old_bytes():
    w = lt.ones(10, requires_grad=True)
    x = lt.ones(10) * 1
    y = x * w
    x.resize_(20)
    assert role(x) == "temporary"
    assert roles()["saved"] >= 40
    del y
