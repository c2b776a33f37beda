"""Policies: what they keep to the byte, and that no gradient changes."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import (
    checkpoint_name,
    everything,
    offload,
    offload_to_disk,
    pack,
    policies,
    policy,
    save_every,
    save_matmuls,
    verify,
)
from lowtide.framework.autograd.remat import values
from lowtide.framework.checkpointing.policies import ROW_NORMS, SMALL, rule_repr
from lowtide.framework.ops import registry
from lowtide.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from tests.checkpointing.nets import Block, conv_net, gpt

F = nn.functional

READY = [
    None,
    everything,
    save_matmuls,
    save_every(3),
    policies.everything_saveable,
    policies.dots_saveable,
    policies.dots_with_no_batch_dims,
    policies.save_only_these_names("gelu", "relu"),
    policies.save_any_names_but_these("x"),
    policies.save_anything_except_these_names("layer_norm.out"),
    policies.save_from_both_policies(save_matmuls, save_every(4)),
    policies.offload_dot_with_no_batch_dims(),
    policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["linear"], names_which_can_be_offloaded=["gelu"]
    ),
    policy({"op:linear|conv2d": "save", "bytes>1KiB": offload(), "*": "pack"}),
    policy({"module:mlp & op:linear": "save"}, default="prefer_save"),
    pack(),
    offload(),
]


@pytest.mark.parametrize("net", [gpt, conv_net])
@pytest.mark.parametrize("each", READY, ids=rule_repr)
def test_a_policy_changes_no_bit(net: Any, each: Any) -> None:
    model, x = net()
    report = verify(model, x.requires_grad_(), policy=each)
    assert report.equal
    assert len(report.compared) > 10


def kept(function: Any, *args: Any, policy: Any) -> int:
    """Bytes that a region keeps, besides its result."""
    before = lt.memory_allocated("meta")
    y = lt.checkpoint(function, *args, policy=policy)
    return lt.memory_allocated("meta") - before - y.nbytes


# Of a block at batch 2, length 8, width 32, 4 heads, in float32: x is (2, 8, 32), 2048 bytes.
UNIT = 2 * 8 * 32 * 4
LSE = 2 * 4 * 8 * 4
ATTENTION = UNIT
PRODUCTS = (3 + 1 + 4) * UNIT  # qkv, proj, and the first of the MLP; nobody wants the last one's


@pytest.fixture
def block() -> tuple[nn.Module, lt.Tensor]:
    with lt.device("meta"):
        model = Block().requires_grad_(True)
        return model, lt.randn(2, 8, 32)


def test_nothing_is_kept_without_a_policy(block: Any) -> None:
    assert kept(*block, policy=None) == kept(*block, policy=everything) == 0


def test_products_and_attention_with_its_statistic_are_kept(block: Any) -> None:
    assert kept(*block, policy=save_matmuls) == ATTENTION + LSE + PRODUCTS


def test_small_results_are_kept_where_they_spare_what_leads_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last normalization, sum and ReLU of a residual block are not run again."""
    run, again = values.OpCall.run, []

    def counted(call: Any, *args: Any) -> Any:
        again.append(call.name)
        return run(call, *args)

    monkeypatch.setattr(values.OpCall, "run", counted)
    convolutions = [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)]
    norms = [nn.BatchNorm2d(4) for _ in range(2)]

    def residual(x: lt.Tensor) -> lt.Tensor:
        y = norms[0](convolutions[0](x)).relu()
        return (norms[1](convolutions[1](y)) + x).relu()

    x = lt.randn(4, 4, 32, 32).requires_grad_()  # enough elements for bits
    elements = x.numel()
    before = lt.memory_allocated()
    y = lt.checkpoint(residual, x, policy=save_matmuls)
    statistics = 2 * 2 * 4 * 4
    assert lt.memory_allocated() - before - y.nbytes == 2 * (x.nbytes + elements // 8) + statistics
    y.sum().backward()
    assert again == ["batch_norm", "relu"]  # what the second convolution read
    assert verify(residual, x, policy=save_matmuls).equal


def test_dots_are_not_attention(block: Any) -> None:
    assert kept(*block, policy=policies.dots_saveable) == PRODUCTS
    assert kept(*block, policy=policies.dots_with_no_batch_dims) == PRODUCTS


def test_batched_products_are_told_from_those_of_layers() -> None:
    a = lt.zeros(4, 8, 8, device="meta", requires_grad=True)
    w = lt.zeros(8, 8, device="meta", requires_grad=True)

    def f(a: lt.Tensor, w: lt.Tensor) -> lt.Tensor:
        return (a @ w).sin() @ (a @ a).sin()

    whole = 4 * 8 * 8 * 4
    assert kept(f, a, w, policy=policies.dots_saveable) == 2 * whole
    assert kept(f, a, w, policy=policies.dots_with_no_batch_dims) == whole


def chain(x: lt.Tensor, n: int = 12) -> lt.Tensor:
    for _ in range(n):
        x = x.sin()
    return x


@pytest.mark.parametrize(("k", "count"), [(1, 11), (2, 5), (3, 3), (4, 2), (12, 0), (99, 0)])
def test_every_kth_value_of_a_chain_is_kept(k: int, count: int) -> None:
    # Of the twelve sines the last is the result, which nobody in the region wants.
    x = lt.zeros(100, device="meta", requires_grad=True)
    assert kept(chain, x, policy=save_every(k)) == count * 400


def test_what_lies_between_is_made_again_a_stretch_at_a_time() -> None:
    x = lt.zeros(100, device="meta", requires_grad=True)
    y = lt.checkpoint(chain, x, policy=save_every(4))
    lt.reset_peak_memory_stats("meta")
    before = lt.memory_allocated("meta")
    y.backward(lt.zeros_like(y))
    assert lt.max_memory_allocated("meta") - before <= 12 * 400


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        ("op:sin", 2),
        ("op:exp", 1),
        ("op:sin|exp", 2),
        ("op:s*", 2),
        ("name:exp.out", 1),
        ("bytes>=400", 2),
        ("bytes>0.390625KiB", 0),
        ("bytes==400B", 2),
        ("bytes<1KB & op:sin", 2),
        ("numel==100 & ndim==1", 2),
        ("number<2", 2),
        ("depth>0", 0),
        ("dtype:float32", 2),
        ("dtype:float64|int*", 0),
        ("*", 2),
        (lambda value: value.op == "exp", 1),
    ],
    ids=lambda v: str(getattr(v, "__name__", v)),
)
def test_rules_select_values(selector: Any, count: int) -> None:
    # Backward wants the first sine and what exp gives; that can be made from the second sine.
    x = lt.zeros(100, device="meta", requires_grad=True)

    def f(x: lt.Tensor) -> lt.Tensor:
        return x.sin().sin().exp().cos()

    assert kept(f, x, policy=policy({selector: "save"})) == count * 400


def test_the_first_rule_that_fits_decides() -> None:
    x = lt.zeros(100, device="meta", requires_grad=True)

    def f(x: lt.Tensor) -> lt.Tensor:
        return x.sin().sin().exp().cos()

    assert kept(f, x, policy=policy({"op:sin": "recompute", "*": "save"})) == 400
    assert kept(f, x, policy=policy({"*": "save", "op:sin": "recompute"})) == 2 * 400
    assert kept(f, x, policy=policy({"op:exp": everything, "*": save_every(1)})) == 2 * 400
    assert kept(f, x, policy=policy({"op:sin": everything, "*": save_every(1)})) == 400


@pytest.mark.parametrize(
    ("pattern", "units"),
    [
        ("qkv", 3),
        ("mlp", 8),  # linear and GELU's results, each of 4 units; nobody wants the last linear's
        ("mlp.0", 4),
        ("mlp.*", 8),
        ("*.0", 4),
        ("qkv|mlp.1", 7),
        ("nobody", 0),
    ],
)
def test_modules_are_selected_by_path(block: Any, pattern: str, units: int) -> None:
    rules = policy({f"module:{pattern}": "save"})
    assert kept(*block, policy=rules) == units * UNIT


def test_paths_begin_in_the_region_whoever_listens(block: Any) -> None:
    model, x = nn.Sequential(block[0]), block[1]
    rules = policy({"module:0.mlp.0": "save"})
    assert kept(model, x, policy=rules) == 4 * UNIT
    with lt.profiling.MemoryProfiler():
        assert kept(model, x, policy=rules) == 4 * UNIT
        with lt.profiling.scope("teacher"):
            assert kept(model, x, policy=rules) == 4 * UNIT
            assert kept(model[0], x, policy=rules) == 0
    assert kept(model[0], x, policy=rules) == 0
    assert kept(model[0], x, policy=policy({"module:mlp.0": "save"})) == 4 * UNIT


class FirstOfTheMLP:
    def __call__(self, value: Any) -> str:
        return "save" if value.module == "mlp.0" else "recompute"

    def method(self, value: Any) -> str:
        return self(value)


def test_a_policy_that_asks_for_modules_is_told_them(block: Any) -> None:
    asks = FirstOfTheMLP()

    def indirectly(value: Any) -> str:
        return asks(value)

    forms = [
        asks,
        asks.__call__,
        lambda value: "save" if value.module == "mlp.0" else "recompute",
        functools.partial(
            lambda where, value: "save" if value.module == where else "recompute", "mlp.0"
        ),
        policy({lambda value: value.module == "mlp.0": "save"}),
        policies.save_from_both_policies(everything, asks),
    ]
    for each in forms:
        assert kept(*block, policy=each) == 4 * UNIT
    with lt.checkpointing(asks):  # asked for what the inner region leaves to it
        assert kept(*block, policy=lambda value: "prefer_save") == 4 * UNIT
    for unseen in (indirectly, asks.method):
        with pytest.raises(RuntimeError, match="set by_module = True on the policy"):
            kept(*block, policy=unseen)
    indirectly.by_module = True  # type: ignore[attr-defined]
    assert kept(*block, policy=indirectly) == 4 * UNIT


def test_the_region_around_decides_what_the_inner_one_leaves_to_it() -> None:
    x = lt.zeros(100, device="meta", requires_grad=True)

    def f(x: lt.Tensor) -> lt.Tensor:
        return lt.checkpoint(chain, x, 4, policy=policy({"*": "prefer_save"})).sin()

    assert kept(f, x, policy=policy({"*": "save"})) == 4 * 400
    assert kept(f, x, policy=None) == 0
    assert kept(chain, x, 4, policy=policy({}, default="prefer_save")) == 3 * 400


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"ops:linear": "save"}, "selects no values"),
        ({"bytes>1QiB": "save"}, "selects no values"),
        ({"ndim==2B": "save"}, "selects no values"),
        ({3: "save"}, "a selector is a string or a function"),
        ({"*": "keep"}, "decides 'save'"),
        ({"op:relu|linaer": "save"}, r"no op is called 'linaer'\. Did you mean 'linear'"),
        ({"op:normalize": "save"}, "made of several ops has no name here"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(rules)


ONE_OP = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "baddbmm": lambda x: lt.baddbmm(lt.ones(4, 4, device="meta"), x[0], x[1]),
    "bilinear": lambda x: F.bilinear(x, x, lt.ones(2, 4, 4, device="meta")),
    "bmm": lambda x: x[0].bmm(x[1]),
    "celu": F.celu,
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, lt.ones(3, 2, 2, 2, device="meta")),
    "dropout2d": F.dropout2d,
    "interpolate": lambda x: F.interpolate(x, (8, 8)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "relu": lambda x: (x * 1).relu_(),
    "relu6": F.relu6,
    "selu": F.selu,
    "to": lambda x: x.to(lt.float64),
    "unfold": lambda x: F.unfold(x, 2),
}


@pytest.mark.parametrize("name", ONE_OP)
def test_functions_are_found_by_the_name_they_are_called_by(name: str) -> None:
    asked = []

    def watch(value: Any) -> str:
        asked.append(value)
        return "recompute"

    with lt.checkpointing(watch):
        ONE_OP[name](lt.ones(2, 3, 4, 4, device="meta", requires_grad=True))
    rules = policy({f"op:{name}": "save"})
    assert [rules(value) for value in asked].count("save") in (1, 2)  # two axes, or an index
    assert rules(asked[-1]) == "save"


def test_a_transposed_convolution_is_a_product() -> None:
    x = lt.zeros(2, 4, 8, 8, device="meta", requires_grad=True)
    up = nn.ConvTranspose2d(4, 3, 2, stride=2, device="meta")
    assert kept(lambda x: up(x).sin(), x, policy=save_matmuls) == 2 * 3 * 16 * 16 * 4


def test_a_decision_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"for exp.out it returned 'keep'"):
        lt.checkpoint(lt.exp, lt.ones(2, requires_grad=True), policy=lambda value: "keep")
    with pytest.raises(ValueError, match="save_every: k"):
        save_every(0)


@pytest.mark.parametrize("each", READY, ids=rule_repr)
def test_a_policy_can_be_pickled(each: Any) -> None:
    again = pickle.loads(pickle.dumps(each))
    assert repr(again) == repr(each)


# Names


def named(x: lt.Tensor) -> lt.Tensor:
    a = checkpoint_name(x.sin(), "a")
    b = checkpoint_name(a.exp(), "b")  # saved by its own op, before it has a name
    return (a * b).cos().sin()


@pytest.mark.parametrize(
    ("each", "count"),
    [
        (policies.save_only_these_names("a"), 1),
        (policies.save_only_these_names("b"), 1),
        (policies.save_only_these_names("a", "b", "cos"), 3),
        (policies.save_any_names_but_these(), 2),
        (policies.save_any_names_but_these("b"), 1),
        (policies.save_anything_except_these_names("a"), 3),
        (policies.save_anything_except_these_names("mul.out", "cos.out"), 2),
        (policy({"name:a": "save"}), 1),
    ],
    ids=rule_repr,
)
def test_values_are_kept_by_the_names_they_were_given(each: Any, count: int) -> None:
    x = lt.zeros(100, device="meta", requires_grad=True)
    assert kept(named, x, policy=each) == count * 400
    assert verify(named, lt.randn(100, requires_grad=True), policy=each).equal


def test_a_name_may_send_a_value_elsewhere() -> None:
    both = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"], names_which_can_be_offloaded=["b"]
    )
    x = lt.zeros(2000, device="sim", requires_grad=True)
    host, here = lt.memory_allocated("cpu"), lt.memory_allocated("sim")
    y = lt.checkpoint(named, x, policy=both)
    assert lt.memory_allocated("cpu") - host == 8000
    y.sum().backward()
    del y
    x.grad = None
    assert (lt.memory_allocated("cpu"), lt.memory_allocated("sim")) == (host, here)


def test_names_outside_of_regions_do_nothing() -> None:
    x = lt.ones(2)
    assert checkpoint_name(x, "x") is x
    with lt.checkpointing():
        assert checkpoint_name(x, "x") is x
    with pytest.raises(TypeError, match="non-empty string"):
        checkpoint_name(x, "")


# Random programs


def random_program(seed: int, x: lt.Tensor, w: lt.Tensor, region: Any) -> lt.Tensor:
    """Ops, views, random ops and writes in place on a few living values, in nested stretches."""
    r = random.Random(seed)
    values = [x, x * w]

    def stretch(depth: int) -> None:
        for _ in range(r.randint(2, 6)):
            a, b, kind = r.choice(values), r.choice(values), r.randint(0, 10)
            if kind == 10:
                if depth < 3:
                    region(stretch, depth + 1)
                continue
            values.append(OPS[kind](a, b, w))
            if len(values) > 7:
                del values[r.randint(0, len(values) - 2)]

    stretch(0)
    region(stretch, 1)
    return sum((v.sin() for v in values), w * 0)


def _written(a: lt.Tensor, b: lt.Tensor, w: lt.Tensor) -> lt.Tensor:
    v = a.clone()
    v[2:4] = b[1:3]
    return v.add_(1)


OPS: list[Any] = [
    lambda a, b, w: a * b,
    lambda a, b, w: a.sin(),
    lambda a, b, w: a.tanh(),
    lambda a, b, w: a @ w,
    lambda a, b, w: nn.functional.dropout(a, 0.3),
    lambda a, b, w: a.view(64).view(8, 8).t().contiguous(),
    lambda a, b, w: lt.where(a > b, a, b.cos()),
    lambda a, b, w: a.softmax(-1),
    lambda a, b, w: a + b,
    _written,
]


def random_policy(r: random.Random, disk: Any) -> Any:
    stashes = [pack(), offload(ahead=r.randint(0, 3), min_bytes=0), disk]
    decisions = ["save", "prefer_save", "recompute"]
    return r.choice(
        [
            None,
            save_matmuls,
            save_every(r.randint(1, 4)),
            r.choice(stashes),
            policies.save_only_these_names("add", "where", "dropout"),
            policy(
                {"op:sin|tanh|softmax": r.choice(stashes), "op:mul*": r.choice(decisions)},
                default=r.choice(decisions),
            ),
            policy({"number<5": "save", "bytes>100": r.choice([*stashes, "recompute"])}),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_under_random_policies_change_no_bit(seed: int, tmp_path: Any) -> None:
    where = ["cpu", "sim"][seed % 2]
    lt.manual_seed(seed)
    x0, w0 = (lt.rand(8, 8) + 0.1).to(where), (lt.rand(8, 8) - 0.5).to(where)
    disk = offload_to_disk(tmp_path, limit=9000, min_bytes=0)
    r = random.Random(seed)

    def region(f: Any, *args: Any) -> Any:
        with lt.checkpointing(random_policy(r, disk)):
            return f(*args)

    around = r.choice([contextlib.nullcontext(), offload(min_bytes=0, ahead=1), pack(), disk])
    found = []
    for context, inner in (
        (contextlib.nullcontext(), lambda f, *args: f(*args)),
        (around, region),
    ):
        x, w = (t.clone().requires_grad_() for t in (x0, w0))
        lt.manual_seed(seed)
        with context:
            y = random_program(seed, x, w, inner)
        y.sum().backward()
        found.append((y.tolist(), x.grad.tolist(), w.grad.tolist(), lt.get_rng_state().tolist()))
    assert repr(found[0]) == repr(found[1])


# PyTorch's spelling


def block_of(x: lt.Tensor, w: lt.Tensor) -> lt.Tensor:
    return ((x @ w).sin() @ w).exp().sin()


@pytest.mark.parametrize("form", ["list", "names", "function", "bool", "offload"])
def test_selective_contexts_keep_what_pytorch_scripts_ask_for(form: str) -> None:
    seen = []

    def by_op(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        assert not ctx.is_recompute
        seen.append((op, tuple(args[0].shape)))
        product = op is lt.matmul
        if form == "bool":
            return product
        keep = "MUST_CPU_OFFLOAD" if form == "offload" else "MUST_SAVE"
        return CheckpointPolicy[keep if product else "PREFER_RECOMPUTE"]

    given = {"list": [lt.mm], "names": ["mm"]}.get(form, by_op)
    x = lt.zeros(100, 10, device="meta")
    w = lt.zeros(10, 10, device="meta", requires_grad=True)
    context_fn = functools.partial(create_selective_checkpoint_contexts, given)
    before = lt.memory_allocated("meta")
    y = checkpoint(block_of, x, w, use_reentrant=False, context_fn=context_fn)
    # Backward wants the first product, and what exp gives, which is made from the second. What is
    # sent away is only what backward wants; at less than 4096 bytes it stays.
    expected = 4000 if form == "offload" else 8000
    assert lt.memory_allocated("meta") - before - y.nbytes == expected
    if seen:
        assert seen[0] == (lt.matmul, (100, 10))


def test_selective_contexts_refuse_what_they_do_not_know() -> None:
    with pytest.raises(TypeError, match="either a function or a list of ops"):
        create_selective_checkpoint_contexts(3)
    with pytest.raises(ValueError, match="no op is called 'normalize'"):
        create_selective_checkpoint_contexts([F.normalize])
    bad = functools.partial(create_selective_checkpoint_contexts, lambda ctx, op, *a, **k: "save")
    with pytest.raises(TypeError, match="returns a CheckpointPolicy or a bool"):
        checkpoint(lt.exp, lt.ones(2, requires_grad=True), context_fn=bad)


def test_what_a_policy_saves_by_name_is_the_result_of_some_op():
    results = {name for op in registry.OPS.values() for name in (*op.returns, *op.aux)}
    assert results >= SMALL
    assert {name.removeprefix("_") for name in registry.OPS} >= ROW_NORMS
