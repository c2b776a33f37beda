"""One process's group beside PyTorch's of the gloo backend, also of one process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch was built without torch.distributed", allow_module_level=True)
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
FRAMEWORKS = (lt, torch)


@pytest.fixture
def groups() -> Iterator[None]:
    for T in FRAMEWORKS:
        store = T.distributed.HashStore()
        T.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    for T in FRAMEWORKS:
        T.distributed.destroy_process_group()


def outcome(call: Callable[[Any, Any], Any], T: Any) -> Any:
    try:
        found = call(T, T.distributed)
    except Exception as error:
        return type(error).__name__
    return found.tolist() if isinstance(found, T.Tensor) else found


def written(name: str, *arguments: Any) -> Callable[[Any, Any], Any]:
    def call(T: Any, dist: Any) -> Any:
        into, x = T.zeros(2, 3), T.arange(6.0).reshape(2, 3)
        given = [
            {"into": into, "x": x, "[into]": [into], "[x]": [x], "flat": into.view(6)}.get(a, a)
            if isinstance(a, str)
            else a
            for a in arguments
        ]
        handle = getattr(dist, name)(*given, async_op=True)
        handle.wait()
        return [x.tolist(), into.tolist()]

    return call


SAME: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": written("all_reduce", "x"),
    "broadcast": written("broadcast", "x", 0),
    "reduce": written("reduce", "x", 0),
    "all_gather": written("all_gather", "[into]", "x"),
    "all_gather_into_tensor": written("all_gather_into_tensor", "into", "x"),
    "gather": written("gather", "x", "[into]"),
    "scatter": written("scatter", "into", "[x]"),
    "reduce_scatter": written("reduce_scatter", "into", "[x]"),
    "reduce_scatter_tensor": written("reduce_scatter_tensor", "into", "x"),
    "all_to_all_single": written("all_to_all_single", "into", "x"),
    "who": lambda T, d: [d.get_rank(), d.get_world_size(), d.get_backend(), d.is_initialized()],
    "ranks": lambda T, d: d.get_process_group_ranks(d.group.WORLD),
    "a group of all": lambda T, d: d.get_world_size(d.new_group([0])),
    "barrier": lambda T, d: d.barrier(),
    "max": lambda T, d: [x := T.ones(2), d.all_reduce(x, op=d.ReduceOp.MAX), x.tolist()][1:],
    "product": lambda T, d: [x := T.ones(2), d.all_reduce(x, d.ReduceOp.PRODUCT), x.tolist()][1:],
    "sum of complex": lambda T, d: [x := T.ones(2) + 1j, d.all_reduce(x), x.tolist()][1:],
    "greatest complex": lambda T, d: d.all_reduce(T.ones(2) + 1j, d.ReduceOp.MAX),
    "bits of complex": lambda T, d: d.all_reduce(T.ones(2) + 1j, d.ReduceOp.BAND),
    "a view": lambda T, d: [x := T.ones(2, 3), d.all_reduce(x.t()), x.tolist()][1:],
    "a leaf": lambda T, d: [
        x := T.ones(2, requires_grad=True), d.all_reduce(x), x.is_leaf, x.requires_grad
    ][1:],
    "a group for nobody": lambda T, d: d.get_rank(d.GroupMember.NON_GROUP_MEMBER),
    "a name of a backend": lambda T, d: [d.Backend("GLOO"), d.is_backend_available("gloo")],
    "a prefix": lambda T, d: [
        s := d.HashStore(), d.PrefixStore("p", s).set("k", "v"), s.get("p/k"),
    ][1:],
    "again": lambda T, d: d.init_process_group("gloo", rank=0, world_size=1),
    "no list to scatter": lambda T, d: d.scatter(T.ones(1)),
    "no list to gather": lambda T, d: d.gather(T.ones(1)),
    "not a tensor": lambda T, d: d.all_reduce([1.0]),
    "objects": lambda T, d: [made := [None], d.all_gather_object(made, {"a": 1}), made][1:],
    "scattered objects": lambda T, d: [
        made := [None], d.scatter_object_list(made, ["a"]), made
    ][1:],
    "broadcast objects": lambda T, d: [made := ["a"], d.broadcast_object_list(made), made][1:],
    "store": lambda T, d: [
        s := d.HashStore(), s.set("a", "b"), s.get("a"), s.add("n", 2), s.add("n", 1),
        s.compare_set("a", "b", "c"), s.check(["a"]), s.delete_key("a"), s.check(["a"]),
    ][1:],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_call_does_the_same(name: str, groups: None) -> None:
    ours, theirs = (outcome(SAME[name], T) for T in FRAMEWORKS)
    assert ours == theirs


BEFORE = ["all_reduce", "get_rank", "get_world_size", "get_backend", "barrier", "new_group"]


@pytest.mark.parametrize("name", BEFORE)
def test_before_there_is_a_group(name: str) -> None:
    def call(T: Any, dist: Any) -> Any:
        return getattr(dist, name)(*([T.ones(1)] if name == "all_reduce" else []))

    ours, theirs = (outcome(call, T) for T in FRAMEWORKS)
    assert ours == theirs == "ValueError"


def test_wrapped_modules_have_the_same_names(groups: None) -> None:
    names = []
    for T in FRAMEWORKS:
        model = T.nn.Sequential(T.nn.Linear(2, 3), T.nn.BatchNorm1d(3))
        wrapped = T.nn.parallel.DistributedDataParallel(model)
        names.append([list(wrapped.state_dict()), [n for n, _ in wrapped.named_modules()]])
    assert names[0] == names[1]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samplers_divide_alike(shuffle: bool, drop_last: bool, groups: None) -> None:
    counts = []
    for T in FRAMEWORKS:
        parts = [
            list(
                T.utils.data.DistributedSampler(
                    range(11), num_replicas=3, rank=rank, shuffle=shuffle, drop_last=drop_last
                )
            )
            for rank in range(3)
        ]
        counts.append([len(part) for part in parts])
        if not shuffle:
            counts[-1].append(parts)
        assert len({i for part in parts for i in part}) == (9 if drop_last else 11)
    assert counts[0] == counts[1]


def test_modules_with_synchronized_batch_norm_evaluate_alike() -> None:
    found = []
    for T in FRAMEWORKS:
        layer = T.nn.SyncBatchNorm.convert_sync_batchnorm(T.nn.BatchNorm2d(2)).eval()
        assert type(layer).__name__ == "SyncBatchNorm"
        x = T.as_tensor(np.random.default_rng(0).standard_normal((2, 2, 3, 3), np.float32))
        found.append([layer(x).detach().numpy(), repr(layer)])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    assert found[0][1] == found[1][1]


def test_compressed_gradients_are_the_same(groups: None) -> None:
    """By PowerSGD of one rank, from the same Q on: what is sent and what the error keeps."""
    columns = np.random.default_rng(0).normal(size=(30, 2))
    found = []
    for T, name in zip(FRAMEWORKS, ("lowtide", "torch"), strict=True):
        hooks = importlib.import_module(
            f"{name}.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
        )
        model = T.nn.Linear(30, 20, dtype=T.float64)
        with T.no_grad():
            model.weight.copy_(T.tensor(np.random.default_rng(1).normal(size=(20, 30))))
            model.bias.fill_(0.5)
        wrapped = T.nn.parallel.DistributedDataParallel(model)
        state = hooks.PowerSGDState(None, 2, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, hooks.powerSGD_hook)
        for step in range(6):
            if step == 2:
                if name == "torch":
                    state.p_memory_dict[0] = T.zeros(20 * 2, dtype=T.float64)
                state.q_memory_dict[0] = T.tensor(columns.reshape(-1))
            model.zero_grad()
            x = T.tensor(np.random.default_rng(step).normal(size=(7, 30)))
            wrapped(x).square().sum().backward()
            found.append([model.weight.grad.numpy().copy(), model.bias.grad.numpy().copy()])
        found.append(list(state.compression_stats()))
    for ours, theirs in zip(found[:7], found[7:], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, 1e-9, 1e-9)


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore"])
def test_stores_answer_alike(kind: str, tmp_path: Any) -> None:
    def calls(T: Any) -> list[Any]:
        D = T.distributed
        if kind == "TCPStore":
            s = D.TCPStore("127.0.0.1", 0, is_master=True)
        else:
            s = D.FileStore(str(tmp_path / T.__name__))
        s.set("a", "b")
        s.append("a", "c")
        s.set_timeout(timedelta(seconds=0.05))
        found = [
            s.get("a"),
            s.add("n", 2),
            s.add("n", 3),
            s.get("n"),
            s.check(["a", "n"]),
            s.check(["a", "m"]),
            s.compare_set("a", "bc", "d"),
            s.compare_set("a", "other", "e"),
            s.compare_set("new", "", "x"),
            s.compare_set("newer", "y", "x"),
            s.check(["newer"]),
            s.wait(["a"]),
            s.multi_get(["a", "n"]),
            s.multi_set(["k", "l"], ["1", "2"]),
            s.get("l"),
            s.delete_key("k"),
            kind == "TCPStore" and s.delete_key("k"),  # PyTorch's FileStore removes it twice
            kind == "FileStore" or s.has_extended_api(),  # PyTorch's says no, and has it
            s.timeout,
        ]
        for call in (lambda: s.get("absent"), lambda: s.wait(["absent"])):
            try:
                call()
            except RuntimeError as error:
                told = [k.__name__ for k in type(error).__mro__]
                found.append(kind == "FileStore" or "DistStoreError" in told)
        return found

    assert calls(lt) == calls(torch)


@pytest.mark.parametrize(
    "names",
    [
        ("bfloat16", None, None),
        ("bfloat16", "float32", "float32"),
        ("float64", None, "float32"),
        (None, "float64", None),
    ],
)
def test_sharded_modules_compute_in_the_same_dtypes(names: Any, groups: None) -> None:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    found = []
    for T, options in ((lt, {}), (torch, {"mesh": mesh})):
        fsdp = importlib.import_module(f"{T.__name__}.distributed.fsdp")
        model = T.nn.Sequential(T.nn.Linear(5, 4), T.nn.Tanh(), T.nn.Linear(4, 3))
        draw = np.random.default_rng(0)
        with T.no_grad():
            for p in model.parameters():
                p.copy_(T.tensor(draw.normal(size=tuple(p.shape))))
        policy = fsdp.MixedPrecisionPolicy(*[None if n is None else getattr(T, n) for n in names])
        fsdp.fully_shard(model, mp_policy=policy, **options)
        out = model(T.tensor(draw.normal(size=(6, 5)).astype(np.float32)))
        out.square().sum().backward()
        grads = [p.grad if T is lt else p.grad.full_tensor() for p in model.parameters()]
        dtypes = [str(t.dtype).partition(".")[2] for t in (out, *model.parameters(), *grads)]
        found.append((dtypes, [g.numpy() for g in grads]))
    (ours, mine), (theirs, others) = found
    assert ours == theirs
    for a, b in zip(mine, others, strict=True):
        np.testing.assert_allclose(a, b, 2e-2 if "bfloat16" in names else 1e-5, 1e-5)


MESHES = {
    "shape": lambda m, D: [m.size(), m.size(1), m.ndim, tuple(m.shape), m.mesh_dim_names],
    "place": lambda m, D: [m.get_rank(), m.get_local_rank("a"), list(m.get_coordinate())],
    "mesh": lambda m, D: [m.mesh.tolist(), str(m.mesh.dtype).partition(".")[2]],
    "a part": lambda m, D: [m["b"].mesh.tolist(), m["b"].get_local_rank(), m["a", "b"].ndim],
    "groups": lambda m, D: [D.get_world_size(g) for g in m.get_all_groups()],
    "a group": lambda m, D: D.get_process_group_ranks(m.get_group("b")),
    "of a group": lambda m, D: D.device_mesh.DeviceMesh.from_group(
        D.group.WORLD, "cpu"
    ).mesh.tolist(),
    "no group": lambda m, D: m.get_group(),
    "no dim": lambda m, D: m["c"],
    "too large": lambda m, D: D.device_mesh.init_device_mesh("cpu", (2,)),
}


@pytest.mark.parametrize("name", MESHES)
def test_meshes_are_alike(name: str, groups: None) -> None:
    def call(T: Any, D: Any) -> Any:
        mesh = D.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        return MESHES[name](mesh, D)

    ours, theirs = (outcome(call, T) for T in FRAMEWORKS)
    assert ours == theirs
