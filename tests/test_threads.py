"""The number of threads is a wish: results, bytes and shares of the work stay the same."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from queue import SimpleQueue

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.runtime import threads, thresholds


@pytest.fixture
def several():
    """As on a machine with three cores. Workspaces are sized for them: use shapes of your own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LIMIT", 3)
        patch.setattr(threads, "_wanted", 3)
        patch.setattr(threads, "_pool", None)
        yield
    lt.set_num_threads(threads.LIMIT)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_every_share_runs_once(several, wanted):
    lt.set_num_threads(wanted)
    assert lt.get_num_threads() == wanted
    seen = []
    threads.parallel_chunks(lambda part, start, stop: seen.append((part, start, stop)), 10, 3)
    assert sorted(seen) == [(0, 0, 3), (1, 3, 6), (2, 6, 10)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 70, 16), (1, 2, 300, 8), (5, 1, 64, 32)])
def test_attention_on_threads_is_attention(several, shape, causal):
    from lowtide.framework.ops.attention.sdpa import plain

    random = np.random.default_rng(0)
    q, k, v, g = (lt.tensor(random.standard_normal(shape).astype(np.float32)) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    expected = plain(*inputs, None, None, 0.0, causal, shape[-1] ** -0.5)
    assert np.allclose(out.detach().numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    ours = lt.autograd.grad(out, inputs, g)
    theirs = lt.autograd.grad(expected, inputs, g)
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)


def test_convolution_with_fewer_threads_than_shares(several):
    random = np.random.default_rng(0)
    x = lt.tensor(random.standard_normal((6, 8, 24, 24)).astype(np.float32), requires_grad=True)
    w = lt.tensor(random.standard_normal((16, 8, 3, 3)).astype(np.float32), requires_grad=True)
    results = []
    for wanted in (3, 1):
        lt.set_num_threads(wanted)
        out = F.conv2d(x, w, padding=1)
        results.append([out.detach(), *lt.autograd.grad(out.square().sum(), [x, w])])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def test_nobody_waits_for_a_thread_that_has_not_begun(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 2)
    monkeypatch.setattr(threads, "_pool", SimpleQueue())  # where nobody works
    met = []
    threads.parallel_chunks(lambda part, start, stop: met.append((part, start, stop)), 10, 2)
    assert met == [(0, 0, 5), (1, 5, 10)]


def test_an_interrupt_leaves_the_rest_undone_and_waits_for_what_runs(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 2)
    both = threading.Barrier(2)
    ended = []

    def share(part, start, stop):
        both.wait(600)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(part)

    with pytest.raises(KeyboardInterrupt):
        threads.parallel_chunks(share, 4, 2)
    assert len(ended) == 1


def test_a_failed_share_leaves_no_cycle(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 2)
    gc.collect()
    gc.disable()
    try:
        held = np.zeros(3)
        gone = weakref.ref(held)

        def fail(part, start, stop, held=held):
            raise ValueError(part)

        del held
        with pytest.raises(ValueError, match="0|1"):
            threads.parallel_chunks(fail, 4, 2)
        del fail
        assert gone() is None
    finally:
        gc.enable()


def test_a_late_helper_holds_nothing(monkeypatch):
    waiting = SimpleQueue()
    monkeypatch.setattr(threads, "_wanted", 2)
    monkeypatch.setattr(threads, "_pool", waiting)
    held = np.zeros(3)
    gone = weakref.ref(held)
    threads.parallel_chunks(lambda part, start, stop, held=held: None, 4, 2)
    assert waiting.qsize() == 1  # the invitation, which nobody took
    del held
    assert gone() is None


@pytest.mark.parametrize(("n", "error"), [(0, RuntimeError), (-1, RuntimeError), (1.5, TypeError)])
def test_a_wrong_number_of_threads_is_refused(n, error):
    before = lt.get_num_threads()
    with pytest.raises(error, match="set_num_threads expects"):
        lt.set_num_threads(n)
    assert lt.get_num_threads() == before


@pytest.mark.parametrize("compiled", [False, True])
def test_pooling_on_threads_is_pooling(several, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(thresholds, "SHARED", 1 << 60)
    # Enough elements to be shared, and planes that three do not divide.
    random = np.random.default_rng(0)
    x = lt.tensor(random.standard_normal((5, 7, 160, 161)).astype(np.float32), requires_grad=True)
    results = []
    for wanted in (3, 1):
        lt.set_num_threads(wanted)
        out, index = F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)
        assert compiled or threads._pool is not None  # the first round started it
        g = lt.ones_like(out).cumsum(-1)
        results.append([out.detach(), index, *lt.autograd.grad(out, [x], g)])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def told(code, timeout=None, **changes):
    """What a process with BLAS's timeout set to that, or to nothing, prints."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"} | changes
    if timeout is not None:
        environment["OPENBLAS_THREAD_TIMEOUT"] = timeout
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return run.stdout.split()


@pytest.mark.parametrize("given", [None, "26"])
def test_the_threads_of_blas_are_told_to_sleep_before_numpy_loads_them(given):
    code = (
        "import sys, os\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import lowtide\n"
    )
    assert told(code, given) == [given or "22"]


# Prints the process's threads before and after the import and after two large products, and whether
# these and a child's are right.
AFTER_NUMPY = """
import os, sys, threading
import numpy as np
there = threading.Event()
if BESIDE:
    threading.Thread(target=there.wait).start()
threads = lambda: len(os.listdir("/proc/self/task"))
a = np.arange(160_000.0).reshape(400, 400) % 7
before = a @ a
print(threads())
import lowtide
print(threads())
after = [a @ a]
print(threads())
after.append((lowtide.tensor(a) @ lowtide.tensor(a)).numpy())  # on lowtide's own threads
child = os.fork()
if child == 0:
    os._exit(int(np.array_equal(a @ a, before)))
print(all(np.array_equal(x, before) for x in after))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
import ctypes
library = ctypes.CDLL(np._core._multiarray_umath.__file__)
print(getattr(library, "openblas_thread_timeout", lambda: None)())
there.set()
"""
WHERE_SEEN = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


def restartable():
    """Whether NumPy's BLAS lets its threads be ended, and has any on this machine."""
    code = (
        "import ctypes, os, numpy\n"
        "library = ctypes.CDLL(numpy._core._multiarray_umath.__file__)\n"
        "print(hasattr(library, 'openblas_read_env'), len(os.listdir('/proc/self/task')) > 1)\n"
    )
    return told(code, OMP_NUM_THREADS="2") == ["True", "True"]


@WHERE_SEEN
def test_threads_of_blas_that_numpy_has_started_already_start_anew():
    if not restartable():
        pytest.skip("NumPy's BLAS has one thread here, or none that can be ended")
    before, then, after, *right = told(AFTER_NUMPY.replace("BESIDE", "False"), OMP_NUM_THREADS="2")
    assert (int(before), int(then), int(after)) == (2, 1, 2)
    assert right == ["True", "1", "22"]


@pytest.mark.quick(1)
@WHERE_SEEN
@pytest.mark.parametrize("why", ["the user chose", "one thread", "threads beside"])
def test_threads_of_blas_are_left_alone(why):
    code = AFTER_NUMPY.replace("BESIDE", str(why == "threads beside"))
    before, then, after, *right = told(
        code,
        "26" if why == "the user chose" else None,
        OMP_NUM_THREADS="1" if why == "one thread" else "2",
    )
    assert before == then == after
    assert right[:2] == ["True", "1"]
    assert right[2] != "22"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_waits_for_an_import_of_kernels_in_another_thread(tmp_path):
    (tmp_path / "numba_of_ours.py").write_text("import time; time.sleep(1); ready = True\n")
    code = (
        "import importlib, os, sys, threading, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import lowtide\n"
        "threading.Thread(target=importlib.import_module, args=['numba_of_ours']).start()\n"
        "time.sleep(0.3)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import numba_of_ours\n"
        "    os._exit(7 if numba_of_ours.ready else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert told(code) == ["7"]


def test_a_fork_takes_the_compilers_lock_along_unlocked():
    lock = pytest.importorskip("numba.core.compiler_lock").global_compiler_lock
    held, go = threading.Event(), threading.Event()

    def compile_for_a_while():
        with lock:
            held.set()
            go.wait(0.5)

    other = threading.Thread(target=compile_for_a_while)
    other.start()
    assert held.wait(600)
    child = os.fork()
    if child == 0:
        free = lock._lock.acquire(timeout=600)
        os._exit(7 if free else 1)
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with lock:
        pass


def test_a_part_is_waited_for_while_a_late_thread_comes_and_goes(monkeypatch):
    waiting = SimpleQueue()
    monkeypatch.setattr(threads, "_threads", lambda: waiting)
    inside, release, done, late = (threading.Event() for _ in range(4))
    caller = threading.get_ident()

    def run(part):
        if threading.get_ident() == caller:
            assert inside.wait(600)  # the other has taken its part
        else:
            inside.set()
            assert release.wait(600)
            done.set()

    def disturb():
        assert inside.wait(600)
        time.sleep(0.05)  # until the caller has nothing left but to wait
        threading.Thread(target=threads._help, args=(waiting,), daemon=True).start()
        while not waiting.empty():
            time.sleep(0.001)
        late.set()
        time.sleep(0.05)
        release.set()

    threading.Thread(target=threads._help, args=(waiting,), daemon=True).start()
    threading.Thread(target=disturb).start()
    threads.parallel_calls(run, [(0,), (1,), (2,)], 3)
    assert late.is_set()
    assert done.is_set()
