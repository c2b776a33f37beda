"""Symbolic traces: the graph that is noted, its code, what it computes, and what is refused."""

from __future__ import annotations

import copy
import math
import operator
import pickle

import pytest

import lowtide as lt
from lowtide import fx, nn
from lowtide.fx._symbolic_trace import is_fx_tracing
from lowtide.fx.proxy import TraceError
from lowtide.nn import functional as F


@fx.wrap
def rows(x):
    return [float(v) for v in x[:, 0]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(lt.full((4, 1, 1), 0.5))
        self.register_buffer("shift", lt.ones(4, 1, 1))
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.fc = nn.Linear(4, 2)

    def forward(self, x, power=2.0, *, names=None):
        y = lt.relu(self.norm(self.conv(x))) * self.scale + self.shift
        y = lt.cat([y, self.tail(y)], dim=1)
        a, b = y.chunk(2, dim=1)
        y = F.gelu(a) ** power - b.mean()
        y = F.adaptive_avg_pool2d(y, 1).flatten(1)
        assert self.scale.shape[0] == 4  # known while it is traced
        return self.fc(y.view(y.shape[0], -1)), {"first": y[:, :2], "names": names}


@pytest.fixture
def block() -> Block:
    return Block().eval()


@pytest.fixture
def x() -> lt.Tensor:
    return lt.randn(2, 3, 5, 5)


def equal(a, b) -> bool:
    return lt.equal(a[0], b[0]) and lt.equal(a[1]["first"], b[1]["first"])


def test_a_trace_notes_each_call(block: Block) -> None:
    graph = fx.symbolic_trace(block).graph
    assert [(n.op, n.name) for n in graph.nodes] == [
        ("placeholder", "x"), ("placeholder", "power"), ("placeholder", "names"),
        ("call_module", "conv"), ("call_module", "norm"), ("call_function", "relu"),
        ("get_attr", "scale"), ("call_function", "mul"), ("get_attr", "shift"),
        ("call_function", "add"), ("call_module", "tail_0"), ("call_module", "tail_1"),
        ("call_function", "cat"), ("call_method", "chunk"), ("call_function", "getitem"),
        ("call_function", "getitem_1"), ("call_function", "gelu"), ("call_function", "pow_1"),
        ("call_method", "mean"), ("call_function", "sub"),
        ("call_function", "adaptive_avg_pool2d"), ("call_method", "flatten"),
        ("call_function", "getattr_1"), ("call_function", "getitem_2"), ("call_method", "view"),
        ("call_module", "fc"), ("call_function", "getitem_3"), ("output", "output"),
    ]  # fmt: skip
    by_name = {n.name: n for n in graph.nodes}
    assert by_name["gelu"].target is F.gelu
    assert by_name["relu"].target is lt.relu
    assert by_name["tail_1"].target == "tail.1"
    assert by_name["cat"].args == ([by_name["add"], by_name["tail_1"]],)
    assert by_name["cat"].kwargs == {"dim": 1}
    assert list(by_name["add"].users) == [by_name["tail_0"], by_name["cat"]]
    assert by_name["mul"].all_input_nodes == [by_name["relu"], by_name["scale"]]
    graph.lint()


def test_a_graph_computes_what_the_module_does(block: Block, x: lt.Tensor) -> None:
    traced = fx.symbolic_trace(block)
    expected = block(x)
    assert equal(traced(x), expected)
    assert equal(traced(x, 3.0, names="n"), block(x, 3.0))
    assert equal(fx.Interpreter(traced).run(x), expected)
    assert equal(fx.Transformer(traced).transform()(x), expected)
    assert equal(copy.deepcopy(traced)(x), expected)
    assert equal(pickle.loads(pickle.dumps(traced))(x), expected)
    assert traced.state_dict().keys() == block.state_dict().keys()
    assert traced.conv is block.conv


def test_gradients_go_through(block: Block, x: lt.Tensor) -> None:
    traced = fx.symbolic_trace(block)
    traced(x)[0].sum().backward()
    grads = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    block(x)[0].sum().backward()
    assert all(lt.equal(a, p.grad) for a, p in zip(grads, block.parameters(), strict=True))


def test_the_code_lets_go_of_values(block: Block) -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert traced.code == (
        "def forward(self, input):\n"
        "    input_1 = input; input = None\n"
        '    _0 = getattr(self, "0")(input_1); input_1 = None\n'
        '    _1 = getattr(self, "1")(_0); _0 = None\n'
        "    return _1\n"
    )
    assert "cat = lowtide_cat([add, tail_1], dim=1); add = None; tail_1 = None" in (
        fx.symbolic_trace(block).code
    )


def test_a_trace_puts_everything_back(block: Block) -> None:
    before = lt.relu, F.gelu, nn.Module.__call__, nn.Module.__getattr__, lt.Tensor.__add__
    with pytest.raises(TraceError):
        fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
    fx.symbolic_trace(block)
    assert before == (lt.relu, F.gelu, nn.Module.__call__, nn.Module.__getattr__, lt.Tensor.__add__)
    assert not is_fx_tracing()


def test_a_graph_is_changed(block: Block, x: lt.Tensor) -> None:
    traced = fx.symbolic_trace(block)
    graph = traced.graph
    for node in graph.nodes:
        if node.op == "call_function" and node.target is F.gelu:
            with graph.inserting_after(node):
                other = graph.call_function(F.silu, node.args, node.kwargs)
            assert node.replace_all_uses_with(other) == [next(iter(other.users))]
            graph.erase_node(node)
    graph.lint()
    traced.recompile()
    assert "gelu" not in traced.code
    expected = copy.deepcopy(block)
    assert not equal(traced(x), expected(x))
    assert [n.target for n in graph.find_nodes(op="call_function", target=F.silu)] == [F.silu]


def test_dead_nodes_go_and_writes_stay() -> None:
    def program(x):
        unused = x * 2
        (unused + 1).abs()
        x.add_(1)
        return x.relu()

    traced = fx.symbolic_trace(program)
    assert traced.graph.eliminate_dead_code()
    assert [n.name for n in traced.graph.nodes] == ["x", "add_", "relu", "output"]
    assert not traced.graph.eliminate_dead_code()


def test_known_arguments_are_no_inputs() -> None:
    def program(x, negative):
        return -x if negative else x + 1

    traced = fx.symbolic_trace(program, concrete_args={"negative": True})
    assert traced(lt.ones(1)).item() == -1
    with pytest.raises(TraceError, match="the value of negative is not known"):
        fx.symbolic_trace(program)


def test_wrapped_functions_are_one_node() -> None:
    traced = fx.symbolic_trace(lambda x: rows(x + 1))
    assert [n.target for n in traced.graph.nodes][-2] is rows
    assert traced(lt.ones(2, 2)) == [2.0, 2.0]


def test_tensors_and_operators_on_either_side() -> None:
    constant = lt.tensor([1.0, 2.0])

    def program(x):
        return [constant + x, 2 - x, x @ constant, 3 / x, -x, x[0], x == 1, math.sqrt(4) * x]

    traced = fx.symbolic_trace(program)
    x = lt.tensor([3.0, 4.0])
    assert [a.tolist() for a in traced(x)] == [a.tolist() for a in program(x)]
    targets = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert targets[:2] == [operator.add, operator.sub]
    assert traced.graph.find_nodes(op="get_attr")[0].target == "_tensor_constant0"


def test_arguments_in_stars() -> None:
    traced = fx.symbolic_trace(lambda *xs, **named: lt.add(xs[0], named["b"]))
    assert traced(lt.ones(1), b=lt.ones(1)).item() == 2


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (lambda x: [v + 1 for v in x], TraceError, "cannot be iterated"),
        (lambda x: len(x), RuntimeError, "'len' is not supported"),
        (lambda x: range(x), TraceError, "is used as a number of Python"),
        (lambda x: 1 in x, TraceError, "`in` asks for the values"),
        (lambda x: nn.Linear(2, 2).weight if x.any() else x, TraceError, "control flow"),
    ],
)
def test_what_depends_on_values_is_refused(program, error, words: str) -> None:
    with pytest.raises(error, match=words):
        fx.symbolic_trace(program)


def test_wrong_graphs_are_refused() -> None:
    graph = fx.Graph()
    a = graph.placeholder("a")
    b = graph.call_function(operator.neg, (a,))
    with pytest.raises(RuntimeError, match="still had 1 users in the graph"):
        graph.erase_node(a)
    with pytest.raises(ValueError, match="is a node of another graph"):
        fx.Graph().call_function(operator.neg, (a,))
    b.append(a)
    with pytest.raises(RuntimeError, match="was used before it has been defined"):
        graph.lint()
    with pytest.raises(ValueError, match="op is one of placeholder"):
        graph.create_node("nonsense", "x")
    with pytest.raises(NotImplementedError, match="top level of a module"):
        fx.wrap("len")
    other = fx.Graph()
    other.output(other.get_attr("weight"))
    with pytest.raises(RuntimeError, match="nonexistent target weight"):
        fx.GraphModule(nn.Module(), other)


def test_a_graph_is_made_by_hand() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_method("mul", (x, graph.get_attr("weight")))
    graph.output((y, graph.call_module("norm", (y,))))
    root = {"weight": nn.Parameter(lt.full((2,), 3.0)), "norm": nn.LayerNorm(2)}
    module = fx.GraphModule(root, graph, "Made")
    assert type(module).__name__ == "Made"
    assert [name for name, _ in module.named_parameters()] == ["weight", "norm.weight", "norm.bias"]
    a, b = module(lt.tensor([1.0, 2.0]))
    assert a.tolist() == [3.0, 6.0]
    assert lt.equal(b, root["norm"](a))
    assert str(graph) == (
        "graph():\n"
        "    %x : [num_users=1] = placeholder[target=x]\n"
        "    %weight : [num_users=1] = get_attr[target=weight](args = (), kwargs = {})\n"
        "    %mul : [num_users=2] = call_method[target=mul](args = (x, weight), kwargs = {})\n"
        "    %norm : [num_users=1] = call_module[target=norm](args = (mul,), kwargs = {})\n"
        "    return (mul, norm)"
    )


def test_submodules_that_no_node_names_are_taken_away(block: Block) -> None:
    traced = fx.symbolic_trace(block)
    assert traced.add_submodule("extra.one", nn.ReLU())
    assert "extra.one" in dict(traced.named_modules())
    traced.delete_all_unused_submodules()
    assert "extra" not in dict(traced.named_modules())
    assert traced.delete_submodule("fc")
    assert not traced.delete_submodule("fc")


def test_an_error_names_the_line_of_the_code() -> None:
    traced = fx.symbolic_trace(lambda x: x @ x)
    with pytest.raises(RuntimeError) as caught:
        traced(lt.ones(2, 3))
    assert caught.value.__notes__[-1] == "In the graph's code: matmul = x @ x; x = None"


def test_an_interpreter_is_changed() -> None:
    class Negative(fx.Interpreter):
        def call_function(self, target, args, kwargs):
            return -super().call_function(target, args, kwargs)

    traced = fx.symbolic_trace(lambda x: lt.exp(x) + 1)
    assert Negative(traced).run(lt.zeros(1)).item() == 0
    with pytest.raises(RuntimeError, match="Expected positional argument for parameter x"):
        fx.Interpreter(traced).run()
