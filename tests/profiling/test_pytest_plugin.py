"""The pytest plugin, run by pytest on tests of its own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lowtide as lt

pytest_plugins = "pytester"
ROOT = Path(__file__).resolve().parents[2]

TESTS = """
    import lowtide as lt
    import pytest

    x = lt.ones(1000)

    @pytest.fixture
    def large():
        return lt.ones(10**6)

    def wide(large=None):
        return (x + 1) * 2

    @pytest.mark.limit_memory("8000 B")
    def test_within(large):
        wide()

    @pytest.mark.limit_memory(7999)
    def test_beyond():
        wide()

    @pytest.mark.limit_memory("1 KiB")
    def test_wrong():
        wide()
        assert 1 == 2

    @pytest.mark.limit_memory("1 GiB", device="cpu")
    @pytest.mark.limit_memory("39 B", device="meta")
    def test_devices():
        wide()
        lt.zeros(10, device="meta")

    @pytest.mark.limit_memory("1 KiB")
    class TestAll:
        def test_inherits(self):
            wide()

        @pytest.mark.limit_memory("1 MiB")
        def test_has_its_own(self):
            wide()

        @pytest.mark.parametrize("n", [1, 10**5])
        def test_of_a_parameter(self, n):
            lt.zeros(n)
"""


@pytest.fixture
def run(pytester):
    """Run pytest with the plugin on a file."""

    def ran(text, *args):
        pytester.makepyfile(text)
        plugins = ("-p", "pytest_lowtide", "-p", "no:xdist", "-p", "no:cacheprovider")
        return pytester.runpytest_inprocess(*plugins, "--strict-markers", *args)

    return ran


def test_limits_are_judged_to_the_byte_without_the_fixtures(run):
    result = run(TESTS, "-v")
    result.assert_outcomes(passed=3, failed=5)
    result.stdout.fnmatch_lines_random(
        [
            "*::test_within PASSED*",
            "*::test_beyond FAILED*",
            "test_beyond took 7.81 KiB (8000 B) of cpu at its peak, 1 B above the limit of*",
            "*test_limits_are_judged_to_the_byte_without_the_fixtures.py:*",
            "*assert 1 == 2*",
            "test_devices took 40 B (40 B) of meta at its peak, 1 B above the limit of 39 B",
            "*::TestAll::test_inherits FAILED*",
            "*::TestAll::test_has_its_own PASSED*",
            "*::TestAll::test_of_a_parameter?1? PASSED*",
            "*::TestAll::test_of_a_parameter?100000? FAILED*",
        ]
    )
    assert "test_wrong took" not in result.stdout.str()  # its own failure comes first


def test_a_prediction_runs_nothing(run):
    result = run("""
        import lowtide as lt
        import pytest

        x = lt.ones(1000)

        @pytest.mark.limit_memory("8000 B", predict=True)
        def test_within():
            y = (x + 1) * 2

        @pytest.mark.limit_memory("4 GiB", predict=True)
        def test_larger_than_this_machine():
            lt.zeros(1 << 33)

        @pytest.mark.parametrize("n", [10])
        @pytest.mark.limit_memory("1 GiB", predict=True)
        def test_has_no_effect(n):
            x.fill_(n)

        def test_had_none():
            assert x.sum() == 1000
    """)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["test_larger_than_this_machine would take 32.00 GiB * of cpu at its peak,*predicted*"]
    )


def test_a_test_case_of_unittest_is_judged_and_a_coroutine_is_refused(run):
    result = run("""
        import unittest
        import lowtide as lt
        import pytest

        class Case(unittest.TestCase):
            @pytest.mark.limit_memory(10)
            def test_beyond(self):
                lt.ones(10)

        @pytest.mark.limit_memory(10)
        async def test_later():
            pass

        @pytest.mark.limit_memory()
        def test_without_a_size():
            pass
    """)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*test_beyond took 40 B*30 B above the limit of 10 B",
            "limit_memory judges test functions that are not async; test_later is none.",
            "limit_memory(size, device=None, predict=False) was given*",
        ]
    )


def test_the_fixture_asserts_peaks_and_leaks(run):
    result = run("""
        import lowtide as lt

        held = []

        def test_a_peak(lowtide_memory):
            with lowtide_memory.limit("40 B"):
                lt.ones(10)
            assert lowtide_memory.peak(lambda: lt.ones(10)) == 40

        def test_a_leak(lowtide_memory):
            with lowtide_memory.no_leak():
                held.append(lt.ones(10))
    """)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: the block left 40 B (40 B) alive on cpu:"])


def test_a_profiler_inside_of_a_marked_test_works(run):
    run("""
        import lowtide as lt
        import pytest

        @pytest.mark.limit_memory("1 MiB")
        def test_profiles():
            with lt.profiling.MemoryProfiler() as prof:
                lt.ones(10)
            lt.reset_peak_memory_stats()
            assert prof.peak_bytes >= 40
    """).assert_outcomes(passed=1)


def test_starting_pytest_imports_nothing_of_lowtide(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n"
        "    assert not {'lowtide', 'numpy', 'numba'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_lowtide", "-p", "no:hypothesispytest",
         "-p", "no:_hypothesis_pytestplugin", "test_it.py"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_is_declared():
    conf = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert conf["project"]["entry-points"]["pytest11"] == {"pytest_lowtide": "pytest_lowtide"}
    assert conf["tool"]["setuptools"]["py-modules"] == ["pytest_lowtide"]
    assert (ROOT / "pytest_lowtide.py").is_file()
    assert lt.profiling.assertions.MemoryCheck


def test_the_documented_tests_pass(run):
    page = (ROOT / "docs" / "tasks" / "memory_tests.md").read_text()
    (first, _) = re.findall(r"```python\n(.*?)```", page, re.S)
    run(first).assert_outcomes(passed=4)
