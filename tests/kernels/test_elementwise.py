"""Compiled loops of elementwise ops: what several threads do with them first."""

import threading
from types import SimpleNamespace

import numpy as np

from lowtide.framework.kernels.common import elementwise


class Declaration:
    """What ``elementwise_kernel`` asks of an op; keeps the kernel that it is given."""

    scratch = ()
    inputs = ("input",)
    inplace = None

    def kernel(self, device, **_):
        def keep(function):
            if device == "cpu":
                self.function = function

        return keep


def test_threads_that_come_together_import_the_loops_once_for_all(monkeypatch):
    # Pieces of halves are computed by several threads, so the very first call may be two.
    declaration = Declaration()
    op = SimpleNamespace(op=declaration, kernel=declaration.kernel)

    def double(out, x):
        np.multiply(x, 2, out=out)

    elementwise.elementwise_kernel(op, lambda _, **__: (double, ()))
    both = threading.Barrier(2)
    importing = elementwise.import_module

    def import_together(*args):
        both.wait(timeout=600)  # both threads have found none imported
        return importing(*args)

    monkeypatch.setattr(elementwise, "import_module", import_together)
    results, errors = [np.zeros(8), np.zeros(8)], []

    def run(out):
        try:
            declaration.function(np, out, np.ones(8))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(out,)) for out in results]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all((out == 2).all() for out in results)
