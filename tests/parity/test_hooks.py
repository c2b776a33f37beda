"""Hooks of modules beside PyTorch's: their order, their arguments, what they replace."""

from __future__ import annotations

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
from tests.parity.alike import agree, data, mlp  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


def log_of(log, T):
    def record(tag):
        def describe(x):
            if isinstance(x, T.Tensor):
                return x.detach().clone()
            if isinstance(x, tuple | list):
                return [describe(v) for v in x]
            if isinstance(x, dict):
                return {k: describe(v) for k, v in x.items()}
            return str(x)

        def hook(module, *args):
            log.append((tag, type(module).__name__, describe(args)))

        return hook

    return record


def test_hooks_run_in_the_same_order_with_the_same_arguments():
    def case(T):
        log = []
        record = log_of(log, T)
        net = mlp(T)
        for name, m in net.named_modules():
            m.register_forward_pre_hook(record(f"{name} pre"))
            m.register_forward_pre_hook(record(f"{name} pre kwargs"), with_kwargs=True)
            m.register_forward_pre_hook(record(f"{name} first pre"), prepend=True)
            m.register_forward_hook(record(f"{name} after"))
            m.register_forward_hook(record(f"{name} first after"), prepend=True, with_kwargs=True)
            m.register_full_backward_pre_hook(record(f"{name} back pre"))
            m.register_full_backward_hook(record(f"{name} back"))
            m.register_full_backward_hook(record(f"{name} first back"), prepend=True)
        x = data(T, 5, 3)
        (net(x) ** 2).sum().backward()
        return [log, x.grad, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def test_hooks_replace_arguments_results_and_gradients():
    def case(T):
        net = mlp(T)
        net.a.register_forward_pre_hook(lambda m, args: args[0] * 2)
        net.act.register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True)
        net.act.register_forward_hook(lambda m, args, out: out * args[0])
        net.b.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        net.b.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[0].sum(),))
        net.a.register_full_backward_hook(lambda m, gi, go: (gi[0] * 5,))
        x = data(T, 5, 3)
        y = net(x)
        (y**2).sum().backward()
        return [y, x.grad, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def many(T):
    class Many(T.nn.Module):
        def forward(self, x, mask, n, y, z, *, scale=1.0):
            return x * mask * n * scale, (y * 2).detach(), y * 3, "text"

    return Many()


def test_backward_hooks_with_several_inputs_and_outputs():
    def case(T, used):
        log = []
        net = many(T)
        net.register_full_backward_pre_hook(log_of(log, T)("pre"))
        net.register_full_backward_hook(log_of(log, T)("full"))
        x, y, z = data(T, 3), data(T, 3), data(T, 3)
        out = net(x, data(T, 3, grad=False), 2, y, z, scale=3.0)
        sum(out[k].sum() for k in used).backward()
        pre, (_, _, (grad_input, grad_output)) = log
        # PyTorch shows zeros for `mask`, which needs no gradient, if another input needs one.
        mask = grad_input.pop(1)
        assert mask == "None" if T is lt else not mask.any()
        return [
            pre,
            grad_input,
            grad_output,
            x.grad,
            y.grad,
            z.grad,
            [type(o).__name__ for o in out],
        ]

    for used in ([0, 2], [0], [2]):
        agree(case, used)


def test_backward_hooks_without_a_differentiable_input():
    def case(T):
        log = []
        net = mlp(T)
        net.a.register_full_backward_hook(log_of(log, T)("full"))
        net.a.register_full_backward_pre_hook(log_of(log, T)("pre"))
        net(data(T, 5, 3, grad=False)).sum().backward()
        return [log, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


BAD_HOOKS = {
    "full, too many": ("register_full_backward_hook", lambda m, gi, go: (*gi, None)),
    "pre, too many": ("register_full_backward_pre_hook", lambda m, go: (*go, None)),
    "pre-hook returns one": (
        "register_forward_pre_hook",
        lambda m, a, k: a,
        {"with_kwargs": True},
    ),
    "forward hook raises": ("register_forward_hook", lambda m, a, out: {}["x"]),
}


@pytest.mark.parametrize("name", BAD_HOOKS)
def test_bad_hooks_raise_alike(name):
    register, hook, *options = BAD_HOOKS[name]

    def case(T):
        net = mlp(T)
        getattr(net.a, register)(hook, **(options[0] if options else {}))
        net(data(T, 5, 3)).sum().backward()

    agree(case)


def test_hooks_that_are_always_called():
    def case(T):
        log = []
        net = mlp(T)
        net.act.register_forward_pre_hook(lambda m, args: {}["missing"])
        net.act.register_forward_hook(lambda m, a, out: log.append("usual"))
        net.act.register_forward_hook(lambda m, a, out: log.append(out), always_call=True)
        net.register_forward_hook(
            lambda m, a, k, out: log.append((k, out)), always_call=True, with_kwargs=True
        )
        with pytest.raises(KeyError):
            net(data(T, 5, 3))
        return log

    agree(case)


def test_state_dict_hooks_run_in_the_same_order():
    def case(T):
        log = []
        net = T.nn.Sequential(T.nn.Linear(1, 1), T.nn.Sequential(T.nn.Linear(1, 1)))
        for name, m in net.named_modules():
            m.register_state_dict_pre_hook(
                lambda m, prefix, keep, name=name: log.append(("pre", name, prefix, keep))
            )
            m.register_state_dict_post_hook(
                lambda m, s, prefix, meta, name=name: log.append(("post", name, prefix, list(s)))
            )
            m.register_load_state_dict_pre_hook(
                lambda m, s, prefix, meta, strict, missing, unexpected, errors, name=name: (
                    log.append(("load", name, prefix, list(s), strict, list(missing), errors[:]))
                )
            )
        state = net.state_dict()
        net.load_state_dict(state, strict=False)
        return log

    agree(case)


def test_hooks_after_loading_forgive():
    def case(T, forgive):
        net = T.nn.Sequential(T.nn.Linear(1, 1), T.nn.Linear(1, 1))
        log = []

        def after(m, keys):
            log.append((type(m).__name__, list(keys.missing_keys), list(keys.unexpected_keys)))
            if forgive:
                keys.missing_keys.clear()

        net[1].register_load_state_dict_post_hook(after)
        net.register_load_state_dict_post_hook(after)
        state = {"0.weight": T.ones(1, 1), "0.bias": T.ones(1), "1.weight": T.ones(1, 1)}
        return [tuple(net.load_state_dict(state)), log]

    for forgive in (True, False):
        agree(case, forgive)
