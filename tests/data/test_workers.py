"""Worker processes: what they send arrives, and they end, however the loader ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import lowtide as lt
from lowtide.framework.data.shared_memory import SharedMemoryReceiver, SharedMemorySender
from lowtide.framework.data.workers import WorkerPool, reraise
from lowtide.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

ROOT = Path(__file__).resolve().parents[2]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def children():
    """Processes of this one, but for Python's own that counts what spawned ones share."""
    return [p for p in psutil.Process().children(recursive=True) if not _counts_for_python(p)]


def _counts_for_python(process):
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def named_memory():
    return set(os.listdir("/dev/shm"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process, no descriptor, no named shared memory outlives a test."""
    shared = named_memory()
    before, open_before = {p.pid for p in children()}, descriptors()
    yield
    assert {p.pid for p in children()} - before == set()
    assert descriptors() <= open_before
    deadline = time.monotonic() + 600  # tests beside this one have named memory for a while
    while named_memory() - shared and time.monotonic() < deadline:
        time.sleep(0.05)
    assert named_memory() - shared == set()


class Calls(Dataset):
    """Sample ``i`` is ``fn(i)``."""

    def __init__(self, fn, n=8):
        self.fn, self.n = fn, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.fn(i)


def as_is(batch):
    return batch


# What is sent


def test_a_worker_knows_itself_and_the_main_process_is_none() -> None:
    assert get_worker_info() is None

    def who(i):
        info = get_worker_info()
        return (info.id, info.num_workers, info.seed, len(info.dataset), lt.initial_seed())

    lt.manual_seed(3)
    loader = DataLoader(Calls(who), batch_size=None, num_workers=2, collate_fn=as_is)
    answers = list(loader)
    assert [a[0] for a in answers] == [0, 1] * 4
    assert {a[1:2] + a[3:4] for a in answers} == {(2, 8)}
    assert answers[1][2] == answers[0][2] + 1
    assert all(a[2] == a[4] for a in answers)


def test_everything_in_a_batch_arrives_as_it_was() -> None:
    big = lt.randn(100, 200)
    batch = {
        "big": big,
        "same": big,
        "bf": lt.randn(200, 200).to(lt.bfloat16),
        "small": lt.tensor(1),
        "view": lt.arange(60_000).reshape(200, 300).T,
        "bool": lt.rand(300, 300) > 0.5,
        "array": np.arange(20_000.0),
        "objects": np.array(["a", None], object),
        "empty": lt.zeros(0),
        "text": "x" * 200_000,
        "meta": lt.zeros(10_000, 10, device="meta"),
        "parameter": lt.nn.Parameter(lt.ones(20_000)),
        "leaf": lt.ones(10_000, requires_grad=True),
    }
    (got,) = DataLoader(Calls(lambda i: batch, 1), None, num_workers=1, collate_fn=as_is)
    assert list(got) == list(batch)
    for name, value in batch.items():
        if isinstance(value, lt.Tensor) and value.device.type != "meta":
            assert lt.equal(got[name].detach(), value.detach()), name
            assert got[name].dtype is value.dtype
            assert got[name].requires_grad is value.requires_grad
    assert got["same"] is got["big"]
    assert got["array"].tolist() == batch["array"].tolist()
    assert got["array"].flags.writeable
    assert got["objects"].tolist() == ["a", None]
    assert got["text"] == batch["text"]
    assert got["meta"].shape == (10_000, 10)
    assert type(got["parameter"]) is lt.nn.Parameter


def test_a_large_batch_crosses_the_socket_by_name_only_and_reuses_its_segment() -> None:
    near, far = multiprocessing.Pipe(duplex=True)
    outbox, inbox = SharedMemorySender(far), SharedMemoryReceiver(near)
    sizes = []
    receive = near.recv_bytes

    def counted(*args):
        data = receive(*args)
        sizes.append(len(data))
        return data

    near.recv_bytes = counted
    for k in range(5):
        outbox.send([lt.full((1 << 20,), k), "x" * (1 << 20)])
        got = inbox.open(inbox.receive())
        assert got[0][-1].item() == k
        assert len(got[1]) == 1 << 20
        outbox.freed(inbox.read())
    assert max(sizes) < 200
    assert len(outbox._segments) == len(inbox._segments) == 1
    outbox.send(lt.zeros(1 << 21))  # too large for it: another takes its place
    assert inbox.open(inbox.receive()).shape == (1 << 21,)
    assert len(outbox._segments) == len(inbox._segments) == 1
    inbox.forget()
    near.close()
    far.close()


def test_a_tensor_with_a_history_is_refused_in_the_worker() -> None:
    w = lt.ones(3, requires_grad=True)
    loader = DataLoader(Calls(lambda i: w * 2), None, num_workers=1)
    with pytest.raises(RuntimeError, match=r"has a history.*Return \.detach\(\)"):
        next(iter(loader))


def test_what_cannot_be_pickled_is_an_error_that_says_so() -> None:
    loader = DataLoader(Calls(lambda i: lambda: 0), None, num_workers=1, collate_fn=as_is)
    with pytest.raises((pickle.PicklingError, AttributeError), match="in DataLoader worker"):
        next(iter(loader))


def test_a_limit_of_the_main_process_binds_what_arrives_not_the_workers() -> None:
    def large(i):
        lt.zeros(1 << 22)
        return lt.zeros(1 << 16)

    before = lt.get_memory_limit("cpu")
    loader = iter(DataLoader(Calls(large), None, num_workers=1))
    try:
        lt.set_memory_limit(lt.memory_allocated() + (1 << 18), "cpu")
        first = next(loader)
        with pytest.raises(lt.MemoryLimitError):
            next(loader)
        del first
        assert next(loader).nbytes == 1 << 18  # the one that did not fit is lost, not the loader
    finally:
        lt.set_memory_limit(before, "cpu")


# Errors


def failing(kind):
    def fn(i):
        if i == 2:
            raise kind
        return i

    return fn


@pytest.mark.parametrize("kind", [ValueError("bad sample"), KeyError("bad sample")])
def test_an_error_keeps_its_type_and_says_where_it_came_from(kind) -> None:
    loader = iter(DataLoader(Calls(failing(kind)), None, num_workers=2))
    assert [next(loader), next(loader)] == [0, 1]
    with pytest.raises(type(kind)) as caught:
        next(loader)
    text = str(caught.value)
    assert f"Caught {type(kind).__name__} in DataLoader worker process 0.\nOriginal Trace" in text
    assert "in fn" in text
    assert "bad sample" in text
    assert list(loader) == [3, 4, 5, 6, 7]


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one}{two}")


def test_an_error_that_cannot_be_made_again_is_its_base_or_a_runtime_error() -> None:
    class Local(ZeroDivisionError):
        pass

    for kind, expected in ((Local("x"), ZeroDivisionError), (Odd("a", "b"), RuntimeError)):
        loader = iter(DataLoader(Calls(failing(kind)), None, num_workers=1))
        next(loader), next(loader)
        with pytest.raises(expected, match=f"Caught {type(kind).__name__} in DataLoader"):
            next(loader)


def test_an_error_of_the_worker_init_function_reaches_the_loop() -> None:
    def refuse(number):
        raise OSError(f"no disk for {number}")

    loader = DataLoader(range(4), num_workers=2, worker_init_fn=refuse)
    with pytest.raises(OSError, match="no disk for 0"):
        next(iter(loader))


def test_an_error_when_an_iterable_starts_reaches_the_loop() -> None:
    class Broken(IterableDataset):
        def __iter__(self):
            raise ValueError("no file")

    with pytest.raises(ValueError, match="no file"):
        next(iter(DataLoader(Broken(), num_workers=1)))


def test_a_key_error_prints_its_traceback_with_line_ends() -> None:
    with pytest.raises(KeyError) as caught:
        reraise(KeyError, "line\nline")
    assert str(caught.value) == "line\nline"


def test_worker_init_is_called_once_in_each_and_may_seed() -> None:
    def seed(number):
        np.random.seed(number)  # noqa: NPY002
        lt.manual_seed(100 + number)

    def draw(i):
        return int(np.random.randint(1 << 30)), lt.initial_seed()  # noqa: NPY002

    loader = DataLoader(
        Calls(draw),
        None,
        num_workers=2,
        worker_init_fn=seed,
        persistent_workers=True,
        collate_fn=as_is,
    )
    streams = [np.random.RandomState(k) for k in range(2)]
    expected = [(int(streams[i % 2].randint(1 << 30)), 100 + i % 2) for i in range(16)]
    assert list(loader) + list(loader) == expected


# Ends


def test_workers_end_with_the_loop() -> None:
    before = {p.pid for p in children()}
    loader = iter(DataLoader(range(8), num_workers=2))
    assert len(children()) == len(before) + 2
    list(loader)
    assert {p.pid for p in children()} == before


def test_workers_end_when_the_loop_is_left() -> None:
    before = {p.pid for p in children()}
    for _ in DataLoader(TensorDataset(lt.zeros(64, 100_000)), 8, num_workers=2):
        break
    assert {p.pid for p in children()} == before


def test_workers_end_when_the_loop_fails() -> None:
    before = {p.pid for p in children()}
    with contextlib.suppress(ZeroDivisionError):
        for _ in DataLoader(range(8), num_workers=2):
            1 / 0  # noqa: B018
    assert {p.pid for p in children()} == before


def test_persistent_workers_stay_and_end_with_the_loader() -> None:
    before = {p.pid for p in children()}
    loader = DataLoader(range(8), num_workers=2, persistent_workers=True)
    list(loader)
    pids = {p.pid for p in children()} - before
    list(loader)
    assert {p.pid for p in children()} - before == pids
    assert len(pids) == 2
    del loader
    assert {p.pid for p in children()} == before


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_that_says_how_it_ended(persistent) -> None:
    before = {p.pid for p in children()}

    def fn(i):
        if i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    data = Calls(fn)
    loader = DataLoader(data, None, num_workers=2, persistent_workers=persistent)
    with pytest.raises(RuntimeError, match=r"pid\(s\) \d+\) exited unexpectedly: killed by signal"):
        list(loader)
    assert {p.pid for p in children()} == before
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)


def test_a_worker_that_takes_too_long_is_a_timeout() -> None:
    loader = iter(DataLoader(Calls(lambda i: time.sleep(i)), None, num_workers=1, timeout=0.2))
    assert next(loader) is None
    with pytest.raises(RuntimeError, match="timed out after 0.2 seconds"):
        next(loader)
    assert children() == []
    with pytest.raises(RuntimeError, match="shut down"):
        next(loader)


def test_an_interrupt_while_waiting_ends_the_workers() -> None:
    class Interrupt(Exception):
        pass

    def stop(*_):
        raise Interrupt

    old = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interrupt):
            list(DataLoader(Calls(lambda i: time.sleep(1)), num_workers=2))
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, old)


def test_a_loop_in_a_thread_works_and_ends() -> None:
    found = []
    loader = DataLoader(range(6), 2, num_workers=2)
    thread = threading.Thread(target=lambda: found.extend(b.tolist() for b in loader))
    thread.start()
    thread.join()
    assert found == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.deep
def test_forking_beside_busy_threads_does_not_hang() -> None:
    stop = threading.Event()

    def busy():
        x = lt.randn(64, 64)
        while not stop.is_set():
            (x @ x).sum().item()
            lt.rand(100)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(10):
            data = Calls(lambda i: (lt.rand(100) @ lt.rand(100, 3)).sum())
            assert len(list(DataLoader(data, 4, num_workers=2))) == 2
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_two_crews_live_side_by_side() -> None:
    a = iter(DataLoader(range(6), 2, num_workers=2))
    b = iter(DataLoader(range(6, 12), 2, num_workers=2))
    pairs = [(x.tolist(), y.tolist()) for x, y in zip(a, b, strict=True)]
    assert pairs == [([0, 1], [6, 7]), ([2, 3], [8, 9]), ([4, 5], [10, 11])]


def test_closing_twice_and_in_a_forked_copy_is_safe() -> None:
    loader = iter(DataLoader(range(4), num_workers=1))
    crew: WorkerPool = loader.crew
    pid = os.fork()
    if pid == 0:
        crew.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert next(loader).tolist() == [0]
    crew.close()
    crew.close()
    assert children() == []


# Scripts: what only a process of its own shows


def start(tmp_path, code, **options):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # where the tests themselves run in the background, SIGINT is ignored and stays so
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def gone(pids, seconds=600.0):
    deadline = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


SLOW = r"""
    import os, time
    import lowtide as lt
    from lowtide.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, i):
            os.write(1, b"%d\n" % os.getpid())  # one write: lines of processes do not mix
            time.sleep(0 if i < 4 else 100)
            return lt.zeros(100_000)

    loader = iter(DataLoader(Slow(), 1, num_workers=2))
    next(loader)
"""


def worker_pids(process, count):
    pids = set()
    while len(pids) < count:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        pids.add(int(line))
    return pids


def test_a_script_needs_no_guard_and_no_picklable_data_set(tmp_path) -> None:
    code = """
        from lowtide.utils.data import DataLoader, Dataset
        class Local(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return i * self.factor
        data = Local()
        data.factor = (lambda: 3)()
        print([b.tolist() for b in DataLoader(data, 2, num_workers=2, collate_fn=None)])
        print([b for b in DataLoader(data, 2, num_workers=2, collate_fn=lambda b: b)])
    """
    out, err = start(tmp_path, code).communicate(timeout=600)
    assert out.splitlines() == ["[[0, 3], [6, 9]]"] * 2, err


@pytest.mark.deep
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.deep), "forkserver"])
def test_the_other_start_methods_work_behind_a_guard(tmp_path, method) -> None:
    code = f"""
        import lowtide as lt
        from lowtide.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            lt.manual_seed(1)
            data = TensorDataset(lt.randn(20, 1000), lt.arange(20))
            here = [b[1].tolist() for b in DataLoader(data, 4, shuffle=True)]
            lt.manual_seed(1)
            lt.randn(20, 1000)
            loader = DataLoader(
                data, 4, shuffle=True, num_workers=2, multiprocessing_context={method!r}
            )
            assert [b[1].tolist() for b in loader] == here
            x = next(iter(loader))[0]
            assert any(lt.equal(x[0], row) for row in data.tensors[0])
            print("same")
    """
    out, err = start(tmp_path, code).communicate(timeout=600)
    assert (out, err) == ("same\n", "")


@pytest.mark.deep
def test_without_a_guard_spawn_says_what_to_do(tmp_path) -> None:
    code = """
        from lowtide.utils.data import DataLoader
        print(list(DataLoader(range(3), num_workers=1, multiprocessing_context="spawn")))
    """
    out, err = start(tmp_path, code).communicate(timeout=600)
    assert out == ""
    assert "the script needs `if __name__ == '__main__':`" in err


@pytest.mark.deep
def test_workers_end_when_the_main_process_is_killed(tmp_path) -> None:
    process = start(tmp_path, SLOW + "\n    next(loader); next(loader); next(loader); next(loader)")
    pids = worker_pids(process, 2)
    process.kill()
    process.wait()
    ended = gone(pids)
    for pid in pids:  # else one that stayed would hold up every test after this
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert ended


@pytest.mark.deep  # the workers have five seconds to end by themselves
def test_ctrl_c_ends_the_run_with_one_traceback_and_no_worker(tmp_path) -> None:
    code = SLOW + "\n    os.write(1, b'waiting\\n')\n    [next(loader) for _ in range(9)]"
    process = start(tmp_path, code, start_new_session=True)
    lines = []
    while "waiting" not in lines:
        lines.append(process.stdout.readline().strip())
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert gone({int(line) for line in lines if re.fullmatch(r"\d+", line)})


def test_the_interpreter_ends_with_a_loader_still_open(tmp_path) -> None:
    code = SLOW.replace("100)", "0.1)").replace("num_workers=2", "num_workers=2, timeout=30")
    process = start(tmp_path, code)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    assert gone({int(line) for line in out.split()})
