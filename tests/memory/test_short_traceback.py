"""Which frames an out-of-memory error shows, and that those it hides keep nothing alive."""

import gc
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_room():
    """No allocation of more than 600 bytes passes, from the call of what this returns."""
    ledger = backend(lt.device("cpu")).ledger

    def begin(more=600):
        gc.collect()
        lt.set_memory_limit(ledger.live + more)

    yield begin
    lt.set_memory_limit(None)


def frames(f):
    """The functions between the line in ``f`` and the message."""
    with pytest.raises(lt.MemoryLimitError) as caught:
        f()
    found = traceback.extract_tb(caught.value.__traceback__)
    last = max(i for i, frame in enumerate(found) if frame.filename == __file__)
    return [frame.name for frame in found[last + 1 :]]


def test_an_operator_shows_the_users_line_alone(no_room):
    x = lt.ones(64, 64, requires_grad=True)
    no_room()
    assert frames(lambda: x * 2) == []
    assert frames(lambda: x @ x) == []
    assert frames(lambda: x.exp()) == []


def test_functions_show_their_public_names(no_room):
    x = lt.ones(64, 64, requires_grad=True)
    no_room()
    assert frames(lambda: F.relu(x)) == ["relu", "relu"]
    assert frames(lambda: lt.cat([x, x])) == ["cat"]
    assert frames(lambda: lt.zeros(10**6)) == ["zeros", "target"]
    assert frames(lambda: lt.tensor([1.0] * 1000)) == ["tensor", "copied"]


def test_layers_show_three_frames_at_any_depth(no_room):
    net = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU())))
    x = lt.ones(64, 8)
    no_room(64 * 8 * 4 + 600)
    assert frames(lambda: net(x)) == ["forward", "relu", "relu"]


# Compositions of compositions, and how much of their memory is refused.
DEEP = {
    "cond": lambda x: lt.linalg.cond(x),
    "einsum": lambda x: lt.einsum("ij,kl->", x, x),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[None, None], 2, 8),
    "histogram": lambda x: x.histogram(4),
    "indices": lambda x: x[[0] * 1000],
    "lu_solve": lambda x: lt.linalg.lu_solve(x, lt.arange(64, dtype=lt.int32), x),
    "masked_select": lambda x: x.masked_select(x.mT > 0),
    "matrix_power": lambda x: lt.linalg.matrix_power(x, -3),
    "matrix_rank": lambda x: lt.linalg.matrix_rank(x),
    "max_unpool1d": lambda x: F.max_unpool1d(x, lt.zeros(64, 64, dtype=lt.int64), 2),
    "normal": lambda x: lt.normal(0.0, 1.0, (64, 64)),
    "pca_lowrank": lambda x: lt.pca_lowrank(x),
    "stft": lambda x: lt.stft(x, 16, return_complex=True, window=lt.ones(16)),
    "tensorinv": lambda x: lt.linalg.tensorinv(x, ind=1),
    "vander": lambda x: lt.linalg.vander(x, N=64),
}


@pytest.mark.parametrize("name", DEEP)
def test_compositions_show_three_frames_wherever_they_are_refused(no_room, name):
    x = lt.eye(64)
    refused = 0
    for more in (0, 600, 5_000, 9_000, 17_000, 34_000, 68_000, 140_000):
        no_room(more)
        try:
            DEEP[name](x)
        except lt.MemoryLimitError as error:
            found = traceback.extract_tb(error.__traceback__)
            assert len([f.name for f in found if f.filename != __file__]) <= 3
            refused += 1
    assert refused


def test_the_users_own_layers_stay_between_ours(no_room):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.ReLU())

        def forward(self, x):
            return self.inner(x)

    net, x = nn.Sequential(Block()), lt.ones(64, 8, requires_grad=True)
    no_room()
    with pytest.raises(lt.MemoryLimitError) as caught:
        net(x)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    here = names.index("test_the_users_own_layers_stay_between_ours")
    assert names[here + 1 :][-4:] == ["forward", "forward", "relu", "relu"]
    assert len(names[here + 1 :]) <= 7
    assert not [name for name in names if name.startswith("_")]


def test_backward_and_step_show_three_at_most(no_room):
    w = lt.ones(64, 64, requires_grad=True)
    loss = (w * w).exp().sum()
    no_room()
    assert frames(loss.backward) == ["backward", "backward"]
    lt.set_memory_limit(None)
    w.grad = lt.ones(64, 64)
    step = lt.optim.Adam([w]).step
    no_room()
    assert len(frames(step)) <= 3


def test_type_attributes_and_a_plain_memory_error_stay(no_room):
    class Odd(nn.Module):
        def forward(self, x):
            raise MemoryError("not ours")

    with pytest.raises(MemoryError, match="not ours") as caught:
        nn.Sequential(Odd())(lt.ones(1))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names.count("__call__") == 2
    x = lt.ones(1000)
    no_room()
    with pytest.raises(lt.OutOfMemoryError) as caught:
        x + 1
    assert type(caught.value) is lt.MemoryLimitError
    assert caught.value.requested_bytes == 4000
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_hidden_frames_keep_nothing_alive(no_room):
    kept = []

    class Inner(nn.Module):
        def forward(self, x):
            y = x.detach()
            kept.append(weakref.ref(y))
            return F.relu(y)

    x = lt.ones(64, 64)
    no_room()
    try:
        nn.Sequential(Inner())(x)
    except lt.OutOfMemoryError as error:
        held = error
    names = [f.f_code.co_name for f, _ in traceback.walk_tb(held.__traceback__)]
    assert "dispatch" not in names
    assert "execute" not in names
    held.__traceback__ = None  # the user's own frames are the user's
    del held
    gc.collect()
    assert kept[0]() is None


def test_an_uncaught_error_is_printed_short_and_no_hook_is_exchanged():
    code = (
        "import sys, lowtide as lt; before = sys.excepthook\n"
        "lt.set_memory_limit('1KiB'); m = lt.nn.Sequential(lt.nn.ReLU())\n"
        "x = lt.ones(200)\n"
        "try: x + x\nexcept RuntimeError: pass\n"
        "assert sys.excepthook is before\n"
        "m(x)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    printed = done.stderr
    assert "MemoryLimitError" in printed
    assert printed.count("  File ") <= 4, printed
    assert "bitmask" not in printed
    assert "dispatch" not in printed
