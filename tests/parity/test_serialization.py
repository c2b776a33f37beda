"""What torch.save writes, read without PyTorch: every dtype, layout, sharing, both formats."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import ALL

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

FORMATS = [(True, 2), (False, 2), (True, 4), (False, 4), (True, 5)]


def loaded(obj, new=True, protocol=2, **options):
    file = io.BytesIO()
    torch.save(obj, file, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    file.seek(0)
    return lt.load(file, **options)


def same(ours, theirs):
    theirs = theirs.detach()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert tuple(ours.shape) == tuple(theirs.shape)
    if theirs.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        theirs, ours = theirs.float(), ours.float()
    np.testing.assert_array_equal(ours.detach().numpy(), theirs.resolve_conj().numpy())


@pytest.mark.parametrize("d", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize(("new", "protocol"), FORMATS)
def test_every_dtype(d, new, protocol) -> None:
    dtype = getattr(torch, d.name)
    values = (torch.randn(3, 4) * 5).to(dtype)
    for t in (values, values[1:, ::2], values.T, values[0, 0], values[:0], values.new_zeros(2, 0)):
        same(loaded({"t": t}, new, protocol)["t"], t)


@pytest.mark.parametrize(("new", "protocol"), FORMATS)
def test_containers_and_values(new, protocol) -> None:
    value = OrderedDict(
        a=[1, -1, 2**40, 2.5, None, True, "text", b"bytes", 1j, (), (1, (2,))],
        b={1: {"c": 2}},
        counter=Counter("aab"),
        kind={1, 2},
    )
    got = loaded(value, new, protocol)
    assert got == value
    assert [type(v) for v in got.values()] == [type(v) for v in value.values()]
    got = loaded([torch.float16, torch.device("cpu"), torch.Size([2, 3])], new, protocol)
    assert got == [lt.float16, lt.device("cpu"), lt.Size([2, 3])]
    assert type(got[2]) is lt.Size


@pytest.mark.parametrize("new", [True, False])
def test_shared_storages_are_shared_again(new) -> None:
    base = torch.arange(12.0)
    got = loaded([base, base[2:6], base.reshape(3, 4).T, base.expand(2, 12)], new)
    for ours, theirs in zip(
        got, [base, base[2:6], base.reshape(3, 4).T, base.expand(2, 12)], strict=True
    ):
        same(ours, theirs)
        assert ours.stride() == theirs.stride()
    got[0][2] = 100
    assert got[1][0].item() == got[2][2, 0].item() == got[3][1, 2].item() == 100


@pytest.mark.parametrize("new", [True, False])
def test_parameters_and_requires_grad(new) -> None:
    p = torch.nn.Parameter(torch.ones(2))
    frozen, leaf = torch.nn.Parameter(torch.ones(2), False), torch.ones(2, requires_grad=True)
    got = loaded([p, frozen, leaf, leaf * 2, p], new)
    assert [type(t) for t in got[:3]] == [lt.nn.Parameter, lt.nn.Parameter, lt.Tensor]
    assert [t.requires_grad for t in got] == [True, False, True, True, True]
    assert got[0] is got[4]


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_training_checkpoint_loads_and_counts_its_bytes(new, mmap, tmp_path, leak_check) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(saved, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    live = lt.memory_allocated()
    got = lt.load(tmp_path / "x.pt", mmap=mmap)
    assert got["epoch"] == 3
    assert got["model"]._metadata == saved["model"]._metadata
    for name, t in saved["model"].items():
        same(got["model"][name], t)
    for k, state in saved["optimizer"]["state"].items():
        for name, t in state.items():
            same(got["optimizer"]["state"][k][name], t)
    assert got["optimizer"]["param_groups"] == saved["optimizer"]["param_groups"]
    assert got["scheduler"]["milestones"] == saved["scheduler"]["milestones"]
    tensors = [*saved["model"].values(), saved["rng"]]
    tensors += [t for s in saved["optimizer"]["state"].values() for t in s.values()]
    if not mmap:
        assert lt.memory_allocated() - live == sum(t.nbytes for t in tensors)
    elif new:  # torch aligns them
        assert lt.memory_allocated() == live
    del got


def test_our_layers_take_their_weights() -> None:
    theirs = torch.nn.Linear(3, 2)
    ours = lt.nn.Linear(3, 2)
    ours.load_state_dict(loaded(theirs.state_dict()))
    x = np.ones((1, 3), np.float32)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(lt.from_numpy(x)).detach().numpy(), expected, rtol=1e-6)


def test_a_whole_module_is_refused_by_name() -> None:
    for new in (True, False):
        with pytest.raises(
            lt.SerializationError, match=r"names torch\.nn\.modules\.linear\.Linear"
        ):
            loaded(torch.nn.Linear(1, 1), new)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_file_is_refused(tmp_path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "x")
    with pytest.raises(lt.SerializationError, match="TorchScript"):
        lt.load(tmp_path / "x")


def test_a_map_location_function_is_called_with_the_location() -> None:
    seen = []

    def place(t, location):
        seen.append(location)
        return t

    assert loaded({"t": torch.ones(2)}, map_location=place)["t"].tolist() == [1, 1]
    assert seen == ["cpu"]
    assert loaded({"t": torch.ones(2)}, map_location="meta")["t"].is_meta


def test_pytorch_reads_what_we_save_by_safetensors(tmp_path) -> None:
    theirs = pytest.importorskip("safetensors.torch")
    state = {"a": lt.randn(3, 4).T, "b": lt.ones(2).to(lt.bfloat16), "c": lt.tensor(True)}
    lt.save(state, tmp_path / "x.safetensors")
    for name, t in theirs.load_file(tmp_path / "x.safetensors").items():
        same(state[name], t)
