"""What a GPU must show beside the ops of ``test_twins.py``. Where there is one: ``pytest -m gpu``.

The same tests run on ``sim``, and on ``queues``: the model of CUDA's streams of
``tests/checkpointing/asynchronous.py``, under the backend that GPUs have.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import offload, offload_to_disk, pack, policy, verify
from lowtide.framework.checkpointing import offload as offload_module
from lowtide.framework.devices import backend
from lowtide.framework.devices.cuda import device_count
from lowtide.profiling import MemoryProfiler, estimate
from lowtide.profiling.record.system_memory import look, rows
from tests.checkpointing.asynchronous import Gpu, running
from tests.checkpointing.nets import Block, conv_net, gpt
from tests.checkpointing.queues import Late

F = nn.functional


@pytest.fixture(params=["sim", "queues", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[lt.device]:
    """Where the tests run."""
    if request.param == "queues":
        with running(Gpu(Late("kernel", "back", "out"), size=1 << 26)) as (found,):
            yield found
            gc.collect()
        return
    found = lt.device(request.param)
    try:
        backend(found)
    except RuntimeError as error:
        pytest.skip(f"no cuda device: {error}")
    yield found


@pytest.fixture
def gpu() -> Any:
    """A real one."""
    try:
        return backend(lt.device("cuda"))
    except RuntimeError as error:
        pytest.skip(f"no cuda device: {error}")


class Gpt(nn.Module):
    """A GPT that learns to tell the next of 61 letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(61, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 61)

    def forward(self, letters: lt.Tensor) -> lt.Tensor:
        where = lt.arange(letters.shape[1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letters(letters) + self.places(where))))


def training(place: lt.device, around: Callable[[], Any] = lt.enable_grad) -> Callable[[], Any]:
    """A training step of a GPT; it returns the loss."""
    lt.manual_seed(0)
    model = Gpt().to(place)
    optimizer = lt.optim.AdamW(model.parameters())
    text = (lt.rand(4, 17) * 61).long().to(place)

    def step() -> Any:
        optimizer.zero_grad()
        with around():
            out = model(text[:, :-1])
            loss = F.cross_entropy(out.reshape(-1, 61), text[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Memory


@pytest.mark.parametrize("kept", ["plain", "offload", "recompute"])
@pytest.mark.deep
def test_the_estimate_of_a_gpt_step_equals_the_ledger_to_the_byte(
    place: lt.device, kept: str
) -> None:
    around = {
        "plain": lt.enable_grad,
        "offload": lambda: offload(min_bytes=0),
        "recompute": lt.checkpointing,
    }[kept]
    step = training(place, around)
    ledger = backend(place).ledger
    for _ in range(2):  # the first makes gradients and the optimizer's state
        (found,) = [d for d in estimate(step).devices if d.device == str(place)]
        with MemoryProfiler() as prof:
            ledger.reset_peak()
            made = ledger.allocations
            step()
        assert found.peak_bytes == ledger.peak
        assert found.peak_roles == dict(zip(ledger.by_role(), ledger.peak_roles, strict=True))
        assert found.end_bytes == ledger.live
        assert found.allocations == ledger.allocations - made
        assert prof.peak_bytes >= ledger.peak  # of all devices together
    assert "AdamW" in str(prof) or prof.marks


def test_a_step_leaves_nothing_behind(place: lt.device) -> None:
    be = backend(place)
    training(place)()  # libraries take what they keep for themselves
    gc.collect()
    before = be.ledger.live, be.pool.used
    step = training(place)
    step()
    assert be.ledger.live > before[0]
    assert be.pool.used >= be.ledger.live
    del step
    gc.collect()
    assert (be.ledger.live, be.pool.used) == before


def test_figures_of_the_driver_stand_beside_the_ledger(place: lt.device) -> None:
    be = backend(place)
    kept = lt.zeros(1000, 1000, device=place)
    lt.synchronize(place)
    (found,) = look([be])["devices"].values()
    assert found["live"] == be.ledger.live >= kept.nbytes
    assert found["reserved"] >= found["used"] >= found["live"]
    lines = rows({"devices": {str(place): found}})
    if place.type == "cuda":
        assert found["driver_method"] in (
            "NVML, this process",
            "NVML, all processes",
            "cudaMemGetInfo, all processes",
        )
        assert found["driver_used"] >= found["reserved"]
        assert found["runtime_used"] >= found["reserved"]
        (used,) = [n for _, what, n, _ in lines if what == "= used"]
        assert used == sum(n for _, what, n, _ in lines if not what.startswith("="))
    else:
        assert sum(n for *_, n, _ in lines) == found["reserved"]


def test_what_has_no_room_is_refused_and_nothing_is_booked(place: lt.device) -> None:
    before = backend(place).ledger.live
    with pytest.raises(lt.OutOfMemoryError, match=r"memory|space") as caught:
        lt.empty(1 << 48, device=place)
    assert caught.value.requested_bytes == 4 << 48
    assert backend(place).ledger.live == before
    assert lt.ones(3, device=place).sum().item() == 3.0  # it goes on


# Values


@pytest.mark.parametrize("dtype", [lt.float32, lt.bfloat16, lt.float16, lt.int64, lt.bool], ids=str)
def test_values_come_back_as_they_went(place: lt.device, dtype: Any) -> None:
    for x in (
        (lt.rand(5, 7) * 4).to(dtype),
        (lt.rand(5, 7) * 4).to(dtype).T[1:],
        lt.tensor(3.0).to(dtype),
        lt.empty(0, 3, dtype=dtype),
    ):
        there = x.to(place)
        assert (there.device, there.dtype, there.shape) == (place, dtype, x.shape)
        assert there.cpu().tolist() == x.tolist()
        assert there.cpu().is_contiguous() or x.ndim == 2
        x.zero_()  # it was copied, and not only asked for
        assert there.clone().cpu().tolist() == there.tolist()


@pytest.mark.quick(8)
@pytest.mark.parametrize("net", [gpt, conv_net])
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_offload_changes_no_bit(place: lt.device, net: Any, ahead: int, pinned: bool) -> None:
    model, x = net()
    model, x = model.to(place), x.to(place).requires_grad_()
    chosen = offload(pin_memory=pinned, ahead=ahead, min_bytes=0)
    assert verify(model, x, policy=chosen).equal


@pytest.mark.quick(6)
@pytest.mark.parametrize("net", [gpt, conv_net])
@pytest.mark.parametrize("kind", ["recompute", "pack", "disk", "all"])
def test_savings_change_no_bit(place: lt.device, net: Any, kind: str, tmp_path: Any) -> None:
    model, x = net()
    model, x = model.to(place), x.to(place).requires_grad_()
    chosen = {
        "recompute": None,
        "pack": pack(),
        "disk": offload_to_disk(tmp_path, min_bytes=0),
        "all": policy(
            {"op:linear|conv2d": offload(min_bytes=0), "op:gelu": pack(), "op:add": "recompute"}
        ),
    }[kind]
    assert verify(model, x, policy=chosen).equal


@pytest.mark.quick(1)
def test_steps_of_a_gpt_are_those_of_the_cpu(place: lt.device) -> None:
    losses = {d: [] for d in ("cpu", str(place))}
    for d, found in losses.items():
        step = training(lt.device(d))
        found += [step().item() for _ in range(3)]
    np.testing.assert_allclose(*losses.values(), rtol=2e-3)
    for around in (lambda: offload(min_bytes=0), lt.checkpointing):
        step = training(place, around)
        np.testing.assert_allclose([step().item() for _ in range(3)], losses["cpu"], rtol=2e-3)


def classifying(place: lt.device) -> Callable[[], Any]:
    """A training step of a net that tells pictures apart."""
    model, x = conv_net()
    model, x = model.to(place), x.to(place)
    target, weight = lt.tensor([0, 4, 2, 1]).to(place), lt.rand(5).to(place)
    optimizer = lt.optim.AdamW(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        with offload(min_bytes=0):
            loss = F.cross_entropy(model(x), target, weight)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("make", [training, classifying])
def test_a_step_keeps_the_queue_full(make: Any) -> None:
    # Whoever asks for a value waits until all is done that was asked for before.
    gpu = Gpu(Late("kernel", "back", "out"), size=1 << 26)
    with running(gpu) as (d,):
        for step in (make(d), make(d)):
            gpu.waits = 0
            loss = step()
            assert (gpu.waits, gpu.looked) == (0, [])
        assert loss.item() > 0  # now all of it has run
        assert gpu.peeked == set()
        step = loss = None
        gc.collect()


# Time: only on a real one


def seconds(gpu: Any, work: Callable[[], Any]) -> float:
    """The GPU's time for what ``work`` queues: the least of five."""
    cuda = gpu.xp.cuda
    found = []
    for _ in range(6):
        start, end = cuda.Event(), cuda.Event()
        start.record(cuda.get_current_stream())
        work()
        end.record(cuda.get_current_stream())
        end.synchronize()
        found.append(cuda.get_elapsed_time(start, end) / 1000)
    return min(found[1:])


@pytest.mark.gpu
def test_copies_run_beside_kernels_and_the_host_waits_for_neither(gpu: Any) -> None:
    x = lt.rand(1 << 26, device="cuda")  # 256 MiB
    a = lt.rand(4096, 4096, device="cuda")
    assert (x == x.clone()).all().item()  # compiles what is asked for while copies must wait
    copier = offload_module.StreamCopier(gpu)
    host = offload_module._room(lt.device("cuda"), x.nbytes, True)
    one = seconds(gpu, lambda: a @ a)

    def copy() -> None:
        copier.wait(copier.send(x._storage, host))

    copying = seconds(gpu, copy)
    count = max(1, round(copying / one))

    def compute() -> None:
        for _ in range(count):
            a @ a

    def both() -> None:
        ticket = copier.send(x._storage, host)
        compute()
        copier.wait(ticket)

    # One after the other they take the sum; at best the longer of the two.
    assert seconds(gpu, both) < 0.9 * (copying + seconds(gpu, compute))

    for _ in range(max(1, round(0.5 / one))):  # half a second
        a @ a
    ticket, _ = copier.send(x._storage, host)
    back = lt.empty(1 << 26, device="cuda")
    fetched, stream = copier.fetch(host, back._storage)
    copier.wait((fetched, stream))
    equal = (back == x).all()
    assert not ticket.done  # all was queued, and none of it is done
    assert equal.item()
    assert ticket.done


@pytest.mark.gpu
def test_kernels_run_on_the_gpu_of_their_tensors(gpu: Any) -> None:
    if device_count() < 2:
        pytest.skip("one GPU only")
    for index in range(2):
        d = lt.device("cuda", index)
        x = lt.rand(1000, device=d)
        with offload(ahead=1, min_bytes=0):
            y = x.requires_grad_().exp().sin().exp().sum()
        y.backward()
        assert (y.device, x.grad.device) == (d, d)
        assert x.grad._array.device.id == index
        expected = x.detach().cpu().requires_grad_()
        expected.exp().sin().exp().sum().backward()
        np.testing.assert_allclose(x.grad.cpu().array, expected.grad.array, rtol=1e-4)
