"""Values elsewhere: on the host, copied beside the kernels, and as a form among others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
from lowtide.checkpointing import offload, offload_to_disk, policy, verify
from lowtide.framework.checkpointing import offload as offload_module
from lowtide.framework.devices import backend
from tests.checkpointing.asynchronous import Gpu, running
from tests.checkpointing.nets import Block, conv_net, gpt
from tests.checkpointing.queues import Order

SIZE = 8000  # bytes of the values below


def chain(x: lt.Tensor, n: int = 6) -> lt.Tensor:
    for _ in range(n):
        x = x.exp()  # keeps its result
    return x


def leaf(where: Any = "sim") -> lt.Tensor:
    return (lt.rand(SIZE // 4) - 3).to(where).requires_grad_()


def gradient(x: lt.Tensor, context: Any) -> list[float]:
    with context:
        y = chain(x)
    y.sum().backward()
    found = x.grad.tolist()
    x.grad = None
    return found


# On the host


@pytest.mark.parametrize("ahead", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("where", ["sim", "meta"])
def test_values_leave_the_device_but_for_those_on_their_way(where: str, ahead: int) -> None:
    x = leaf(where)
    here, host = lt.memory_allocated(where), lt.memory_allocated("cpu")
    with offload(ahead=ahead):
        y = chain(x)
    # The result is alive besides, and it is the last one sent.
    left = max(min(ahead, 6), 1)
    assert lt.memory_allocated(where) - here == left * SIZE
    assert lt.memory_allocated("cpu") - host == (0 if where == "meta" else 6 * SIZE)
    if where == "sim":
        cpu = backend(lt.device("cpu")).ledger
        assert cpu.by_role()["saved"] >= 6 * SIZE
    del y
    assert (lt.memory_allocated(where), lt.memory_allocated("cpu")) == (here, host)


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_backward_brings_back_no_more_than_it_says(ahead: int, leak_check: None) -> None:
    x = leaf()
    expected = gradient(x, lt.enable_grad())
    with offload(ahead=ahead):
        y = chain(x, 10).sum()
    x.grad = lt.zeros_like(x)
    lt.reset_peak_memory_stats("sim")
    before = lt.memory_allocated("sim")
    y.backward()
    # The value that is read, those fetched ahead, and what plain backward has too: two gradients.
    if ahead < 9:
        assert lt.max_memory_allocated("sim") - before <= (1 + ahead + 2) * SIZE + 100
    assert gradient(x, offload(ahead=ahead)) == expected
    x.grad = None
    with offload(ahead=ahead):
        y = chain(x, 10).sum()
    y.backward(retain_graph=True)
    first = x.grad.tolist()
    x.grad = None
    y.backward()
    assert x.grad.tolist() == first
    del x, y


@pytest.mark.parametrize("net", [gpt, conv_net])
@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("stash", ["offload", "disk", "limited"])
def test_offload_changes_no_bit(net: Any, where: str, stash: str, tmp_path: Path) -> None:
    model, x = net()
    chosen = {
        "offload": offload(min_bytes=0),
        "disk": offload_to_disk(tmp_path, min_bytes=0),
        "limited": offload_to_disk(tmp_path, limit=40_000, min_bytes=0),
    }[stash]
    report = verify(model.to(where), x.to(where).requires_grad_(), policy=chosen)
    assert report.equal
    assert list(tmp_path.iterdir()) == []


def test_values_of_the_cpu_stay() -> None:
    x = leaf("cpu")
    before = lt.memory_allocated()
    with offload():
        y = chain(x)
    assert lt.memory_allocated() - before == 6 * SIZE
    assert y.grad_fn.saved[0].held_bytes == SIZE


def test_a_storage_is_sent_once_and_what_lives_anyway_never() -> None:
    x, w = leaf(), leaf()
    bias = lt.nn.Parameter(lt.zeros(2000, device="sim"))
    host = lt.memory_allocated("cpu")
    with offload():
        y = (x * w).exp()
        z = (y[:1000] * y[1000:] * x.view(2, 1000)[0]).sum() + (y * bias).sum()
    # y is kept by exp, by the product of its halves and by that with bias; then the first product.
    assert lt.memory_allocated("cpu") - host == SIZE  # the product of halves is below min_bytes
    z.backward()
    assert lt.memory_allocated("cpu") == host


def test_what_was_computed_before_is_sent_too() -> None:
    x = leaf()
    y = x.exp()
    here = lt.memory_allocated("sim")
    with offload(ahead=0):
        z = y.sin().sum()
    del y
    # exp holds its result itself.
    assert lt.memory_allocated("sim") - here == z.nbytes
    x.grad = None
    u = x.cos()
    with offload(ahead=0):
        z = u.sin().sum()
    del u
    assert lt.memory_allocated("sim") - here == z.nbytes - SIZE  # not even cos's result is here
    z.backward()
    assert x.grad.shape == (2000,)


def test_recomputed_inside_and_inputs_elsewhere() -> None:
    with lt.device("meta"):
        blocks = [Block() for _ in range(4)]
        x = lt.randn(2, 8, 32)
    unit = x.nbytes

    def run(around: Any) -> int:
        with around:
            y = x
            for block in blocks:
                y = lt.checkpoint(block, y)
        total = lt.memory_allocated("meta")
        del y
        return total

    before = lt.memory_allocated("meta")
    y = x
    for block in blocks:
        y = lt.checkpoint(block, y)
    inputs = lt.memory_allocated("meta") - before
    assert inputs == 4 * unit  # three inputs made here, and the result
    del y
    with offload(ahead=0, min_bytes=0):
        y = x
        for block in blocks:
            y = lt.checkpoint(block, y)
    assert lt.memory_allocated("meta") - before == unit  # the result
    model = lt.nn.Sequential(*[Block().set_checkpointing() for _ in range(3)])
    assert verify(model, lt.randn(2, 8, 32), policy=offload()).equal


def test_offload_and_recompute_in_one_region() -> None:
    x = leaf()
    host, here = lt.memory_allocated("cpu"), lt.memory_allocated("sim")

    def f(x: lt.Tensor) -> lt.Tensor:
        return x.exp().tanh().exp().tanh().sum()

    y = lt.checkpoint(f, x, policy=policy({"op:exp": offload(ahead=0)}))
    assert lt.memory_allocated("cpu") - host == 2 * SIZE
    assert lt.memory_allocated("sim") - here == y.nbytes
    y.backward()
    found, x.grad = x.grad.tolist(), None
    f(x).backward()
    assert x.grad.tolist() == found


def test_a_write_after_sending_is_a_new_value(tmp_path: Path) -> None:
    def f(x: lt.Tensor) -> lt.Tensor:
        y = x.exp()
        y.mul_(2)
        return (y * y).sum()

    for stash in (
        offload(),
        offload(ahead=0),
        offload_to_disk(tmp_path),
        offload_to_disk(tmp_path, limit=0),
    ):
        x = leaf()
        x = (x.cpu() if isinstance(stash, offload_to_disk) else x).detach().requires_grad_()
        y = lt.checkpoint(f, x, policy=stash)
        y.backward()
        wanted = 8 * (2 * x.detach()).exp()
        assert (x.grad - wanted).abs().max().item() <= 1e-5 * wanted.abs().max().item()


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_a_write_that_sends_what_it_overwrites(ahead: int) -> None:
    # The inner region will need the value as it was: only the write itself makes it want it.
    def f(x: lt.Tensor) -> lt.Tensor:
        y = x + 1
        z = lt.checkpoint(lambda v: v.mul_(0.5).sin(), y)
        return chain(z, 4).sum()

    x = leaf()
    lt.checkpoint(f, x, policy=offload(ahead=ahead)).backward()
    found, x.grad = x.grad.tolist(), None
    chain(((x + 1) * 0.5).sin(), 4).sum().backward()
    assert x.grad.tolist() == found


def test_a_write_outside_into_what_is_still_leaving_is_refused() -> None:
    x = leaf()
    with offload(ahead=2):
        y = x.exp()
    with lt.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation \(mul_ at .*1 now"):
        y.sum().backward()
    with offload(ahead=1):
        y = x.exp()
        z = y.exp()
        with lt.no_grad():
            y.mul_(2)
        z = (z.exp() + y).sum()
    z.backward()  # inside, the recorder knew of the write


class Cube(lt.autograd.Function):
    """Saves an input and a result."""

    @staticmethod
    def forward(ctx: Any, x: lt.Tensor) -> lt.Tensor:
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx: Any, grad: lt.Tensor) -> lt.Tensor:
        x, square = ctx.saved_tensors
        return grad * (square + 2 * x * x)


def test_what_a_function_of_the_users_saves_is_sent_too() -> None:
    x = leaf()
    here, host = lt.memory_allocated("sim"), lt.memory_allocated("cpu")
    with offload(ahead=0):
        y = Cube.apply(x.sin()).sum()
    # The sine's result and its square; the cube itself nobody wants.
    assert lt.memory_allocated("cpu") - host == 2 * SIZE
    assert lt.memory_allocated("sim") - here == y.nbytes
    y.backward()
    found, x.grad = x.grad.tolist(), None
    Cube.apply(x.sin()).sum().backward()
    assert x.grad.tolist() == found


def test_gradients_of_gradients_come_through(tmp_path: Path) -> None:
    found = []
    for around in (lt.enable_grad(), offload(), offload_to_disk(tmp_path), lt.checkpointing()):
        x = leaf("cpu" if isinstance(around, offload_to_disk) else "sim")
        lt.manual_seed(1)
        x.data.copy_(lt.rand(2000).to(x.device))
        with around:
            y = (x.exp().sin() * x).sum()
        (first,) = lt.autograd.grad(y, x, create_graph=True)
        with around:
            z = (first * first).sum()
        z.backward()
        found.append(x.grad.tolist())
    assert found[0] == found[1] == found[2] == found[3]


def test_save_on_cpu_obeys_who_forbids_hooks() -> None:
    with (
        disable_saved_tensors_hooks("not in here"),
        pytest.raises(RuntimeError, match="not in here"),
        save_on_cpu(),
    ):
        pass
    x = leaf()
    host = lt.memory_allocated("cpu")
    with save_on_cpu(pin_memory=True):
        y = chain(x)
    assert lt.memory_allocated("cpu") - host == 6 * SIZE
    with pytest.raises(ValueError, match="ahead is a number of values"):
        offload(ahead=-1)
    del y


class Late:
    """A copier whose copies happen only when somebody waits for them: the slowest legal GPU."""

    def __init__(self, be: Any) -> None:
        self.direct = offload_module.SyncCopier(be)
        self.queue: list[tuple[int, Any, Any, Any]] = []
        self.count = 0

    def _ask(self, copy: Any, *args: Any) -> int:
        self.count += 1
        self.queue.append((self.count, copy, *args))
        return self.count

    def send(self, storage: Any, host: Any) -> int:
        return self._ask(self.direct.send, storage, host)

    def fetch(self, host: Any, storage: Any) -> int:
        return self._ask(self.direct.fetch, host, storage)

    def wait(self, ticket: int) -> None:
        # In the order of asking; each with the bytes as they are now, not as they were then.
        while self.queue and self.queue[0][0] <= ticket:
            _, copy, *args = self.queue.pop(0)
            copy(*args)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_copies_that_run_late_are_waited_for(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(backend(lt.device("sim")))
    monkeypatch.setattr(offload_module, "_host_transfers", {})
    monkeypatch.setattr(offload_module, "_copier_for", lambda be: late)
    for net in (gpt, conv_net):
        model, x = net()
        where = policy({"op:add|linear|batch_norm": offload(ahead=ahead, min_bytes=0)})
        for chosen in (offload(ahead=ahead, min_bytes=0), where):
            assert verify(model.to("sim"), x.to("sim").requires_grad_(), policy=chosen).equal
    assert late.count > 20
    x = leaf()
    with offload(ahead=ahead):
        y = x.exp()
        z = y.sin().sum()
        y.mul_(0)
        z = z + y.sum()
    z.backward()
    wanted = (lt.cos(x.exp()) * x.exp()).detach()
    assert x.grad.tolist() == pytest.approx(wanted.tolist(), rel=1e-5)


def test_pinned_slabs_serve_many_blocks_and_each_device_has_its_own() -> None:
    ledger = backend(lt.device("cpu")).ledger
    saved = ledger.by_role()["saved"]
    gpu = Gpu(Order())
    with running(gpu, 2) as (d, other):
        room = offload_module._room
        first, second = (room(d, 100, True) for _ in range(2))
        (slab,) = gpu.pinned
        assert (first.address, second.address) == (slab.ptr, slab.ptr + 128)
        assert ledger.by_role()["saved"] - saved == 200
        address = first.address
        del first
        again = room(d, 100, True)
        assert again.address == address
        there = room(other, 100, True)  # whose streams know nothing of those of ``d``
        assert len(gpu.pinned) == 2
        large = room(d, 1 << 20, True)  # more than a slab has
        assert [m.end - m.start for m in gpu.pinned] == [1 << 18, 1 << 18, 1 << 20]
        limit, ledger.limit = ledger.limit, ledger.live
        with pytest.raises(lt.OutOfMemoryError):
            room(d, 100, True)
        ledger.limit = limit
        last = room(d, 100, True)  # the block that was refused was given back
        assert last.address == slab.ptr + 256
        del again, second, large, there, last
    assert ledger.by_role()["saved"] == saved
