"""Compiled loops of elementwise ops: what several threads do with them first."""

import threading

import numpy as np

from lowtide.framework.kernels.formula.formula import Formula
from tests.kernels.test_formula import imported


def test_threads_that_come_together_print_a_formula(tmp_path):
    # Pieces of halves are computed by several threads, so the very first call may be two.
    module = imported(tmp_path / "together.py", "def doubled(x):\n    return x * 2\n")
    made = Formula(module.doubled, "doubled", True, lambda *_, **__: False)
    both = threading.Barrier(4)
    results, errors = [np.zeros(8) for _ in range(4)], []

    def run(out):
        try:
            both.wait(timeout=600)
            made.plain(np, out, np.ones(8))
            assert made.variant({}) is made.variant({})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(out,)) for out in results]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all((out == 2).all() for out in results)
