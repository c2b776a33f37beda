"""Libraries on disk: whose they are, what they were made of, and what becomes of damaged ones."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lowtide.framework.kernels.cpu.compiler import ahead, fingerprint, library, notices, processor
from lowtide.framework.kernels.cpu.compiler.standard import KERNELS
from lowtide.framework.kernels.cpu.support.jit import compiled, part
from lowtide.framework.kernels.runtime import cache_folder
from lowtide.profiling.estimate.fork_sandbox import run_apart

pytestmark = pytest.mark.skipif(not library.supported(), reason="libraries: x86-64 Linux, CPython")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path / "cache"))
    return tmp_path / "cache" / library.FOLDER


TEXT = """
def inner(x):
    return x {inner}

def scaled(x):
    return step(x) * BY * {times}
"""


def _kernel(by=2.0, inner="+ 1.0", times="1"):
    names = {"BY": by, "__name__": "scaling"}
    exec(TEXT.format(inner=inner, times=times), names)
    names["step"] = part(names["inner"])
    return compiled(names["scaled"])


def _was_read(kernel):
    return kernel._callee is None


def test_a_second_kernel_of_the_same_code_is_read(own_folder):
    assert _kernel()(1.0) == 4.0
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)
    assert len(list(own_folder.iterdir())) == 1


@pytest.mark.parametrize(
    "changed", [{"by": 3.0}, {"by": np.float32(2)}, {"inner": "- 1.0"}, {"times": "2"}]
)
def test_other_code_under_the_same_name_has_a_library_of_its_own(changed, own_folder):
    first = _kernel()
    first(1.0)
    other = _kernel(**changed)
    other(1.0)
    assert not _was_read(other)
    assert library._identity(other, "f8") != library._identity(first, "f8")
    assert len(list(own_folder.iterdir())) == 2
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)


@pytest.mark.parametrize("line", KERNELS.splitlines())
def test_every_standard_kernel_has_a_fingerprint(line):
    kernel, words = ahead.kernel_of(line)
    assert library._identity(kernel, words)


def test_fingerprints_are_the_same_in_every_process():
    code = (
        "from lowtide.framework.kernels.cpu.compiler import ahead, fingerprint\n"
        "from lowtide.framework.kernels.cpu.compiler.standard import KERNELS\n"
        "print(fingerprint.of_compiler())\n"
        "for line in KERNELS.splitlines(): print(fingerprint.of_kernel(ahead.kernel_of(line)[0]))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_has_no_fingerprint():
    names = {"UNHEARD": [object()], "__name__": "odd"}
    exec("def odd(x):\n    if x > 1.0:\n        import math\n    return x + 1.0", names)
    kernel = compiled(names["odd"])
    with pytest.raises(fingerprint.Unknown, match="an import inside odd"):
        fingerprint.of_kernel(kernel)
    exec("def even(x):\n    return x + 1.0 if x else UNHEARD", names)
    with pytest.raises(fingerprint.Unknown, match=r"builtins\.object"):
        fingerprint.of_kernel(compiled(names["even"]))


def test_a_kernel_without_a_fingerprint_is_mapped_from_memory(own_folder, monkeypatch):
    def refuse(kernel):
        raise fingerprint.Unknown("something")

    monkeypatch.setattr(fingerprint, "of_kernel", refuse)
    assert _kernel()(1.0) == 4.0
    assert not own_folder.exists() or list(own_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("NUMBA_BOUNDSCHECK", "1", True),
        ("NUMBA_DEBUGINFO", "1", True),
        ("NUMBA_LOOP_VECTORIZE", "0", True),
        ("NUMBA_DISABLE_INTEL_SVML", "1", True),
        ("NUMBA_OPT", "1", True),
        ("NUMBA_A_SETTING_OF_LATER_VERSIONS", "1", True),
        ("NUMBA_NUM_THREADS", "1", False),
        ("NUMBA_CACHE_DIR", "/nowhere", False),
        ("NUMBA_DISABLE_JIT", "1", False),
    ],
)
def test_settings_that_change_code_are_part_of_the_identity(name, value, other, monkeypatch):
    kernel = _kernel()
    plain = library._identity(kernel, "f8")
    monkeypatch.setenv(name, value)
    assert (library._identity(kernel, "f8") != plain) == other


def test_a_setting_that_a_program_makes_keeps_nothing(own_folder, monkeypatch):
    from numba.core import config

    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    with pytest.raises(fingerprint.Unknown, match="BOUNDSCHECK"):
        processor.settings(check=True)
    assert _kernel()(1.0) == 4.0
    assert list(own_folder.iterdir()) == []


def test_a_compiler_that_was_replaced_meanwhile_keeps_nothing(own_folder, monkeypatch):
    import numba

    monkeypatch.setattr(numba, "__version__", "0.1")
    assert _kernel()(1.0) == 4.0
    assert list(own_folder.iterdir()) == []


STALE = """
import sys
from pathlib import Path
import numpy as np
from lowtide.framework.ops.registry import OPS
if len(sys.argv) > 1:  # an upgrade, while the process runs
    from lowtide.framework.kernels.cpu.support import vector_math
    source = Path(vector_math.__file__)
    source.write_text(source.read_text().replace(*sys.argv[1:]))
x = np.ones(64, np.float32)
out = np.empty_like(x)
OPS["_silu"].formula.variant({}).loop(out, x)
print(out[0])
"""


@pytest.mark.deep
def test_sources_that_change_after_their_import_do_not_count(tmp_path):
    root = Path(library.__file__).parents[4]
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("lowtide", "framework", "modules", "optim", "profiling"):
        shutil.copytree(root / name, copy / name)

    def run(*change):
        found = subprocess.run(
            [sys.executable, "-B", "-c", STALE, *change],
            cwd=copy,
            text=True,
            capture_output=True,
            env=os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path / "kept")},
        )
        assert found.returncode == 0, found.stderr
        return float(found.stdout)

    constants = "0.5000000013, 0.16666577003", "0.5000000013, 0.4"
    right = run(*constants)
    assert abs(right - 0.7310586) < 1e-6
    changed = run()
    assert abs(changed - right) > 1e-3  # of the new sources, not of the library that was kept
    assert run(*constants[::-1]) == changed
    assert run() == right


@pytest.mark.quick(3)
@pytest.mark.parametrize("who", ["base", "folder", "file"])
@pytest.mark.parametrize("how", ["group writes", "others write", "another's"])
def test_what_somebody_else_may_have_written_is_not_mapped(who, how, own_folder, monkeypatch):
    kernel = _kernel()
    kernel(1.0)
    (file,) = own_folder.iterdir()
    place = {"base": own_folder.parent, "folder": own_folder, "file": file}[who]
    if how == "another's":
        stat = os.fstat
        number = place.stat().st_ino

        def foreign(descriptor):
            found = stat(descriptor)
            return os.stat_result([*found[:4], 4321, *found[5:]]) if found[1] == number else found

        monkeypatch.setattr(os, "fstat", foreign)
    else:
        place.chmod(0o770 if how == "group writes" else 0o707)
    mended = who == "folder" and how != "another's"  # lowtide's own: made 0700 again
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again) == mended
    assert not mended or place.stat().st_mode & 0o777 == 0o700
    if who != "file" and not mended:
        assert str(place) in library.problem()
        assert "LOWTIDE_CACHE_DIR" in library.problem()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_links_are_not_followed(what, own_folder):
    _kernel()(1.0)
    (file,) = own_folder.iterdir()
    place = file if what == "file" else own_folder
    elsewhere = own_folder.parent.parent / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    again = _kernel()
    assert again(1.0) == 4.0
    assert not _was_read(again)


def test_a_pipe_in_the_place_of_a_file_stops_nobody(own_folder):
    kernel = _kernel()
    kernel(1.0)
    (file,) = own_folder.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert _kernel()(1.0) == 4.0
    assert file.is_file()


def test_folders_are_made_for_their_owner_alone(tmp_path):
    before = os.umask(0o002)
    try:
        cache_folder.BASE = str(tmp_path / "a" / "b")  # the fixture puts it back
        assert library.problem() == ""
    finally:
        os.umask(before)
    for name in ("a", "a/b", "a/b/kernels"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("variable", ["LOWTIDE_CACHE_DIR", "XDG_CACHE_HOME"])
def test_the_folder_is_decided_at_import(variable, tmp_path):
    code = (
        "import os, lowtide\n"
        "from lowtide.framework.kernels.runtime import cache_folder\n"
        "before = cache_folder.BASE\n"
        "os.chdir('/')\n"
        f"os.environ['{variable}'] = '/elsewhere'\n"
        "print(before, cache_folder.BASE == before)\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("LOWTIDE_CACHE_DIR",)}
    root = str(Path(library.__file__).parents[4])
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=clean | {variable: "x", "HOME": "/home/me", "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    where = tmp_path / "x" if variable == "LOWTIDE_CACHE_DIR" else "/home/me/.cache/lowtide"
    assert found.stdout.split() == [str(where), "True"]


def test_a_path_that_is_no_text(tmp_path):
    base = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    cache_folder.BASE = base  # the fixture puts it back
    kernel = _kernel()
    assert kernel(1.0) == 4.0
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)
    assert run_apart(lambda: 1) == 1  # an estimate reads which files are mapped


def test_where_no_file_may_be_run_libraries_are_mapped_from_memory(own_folder, monkeypatch):
    load = library.entry.load

    def refused(path, name, words):
        if not os.readlink(path).startswith("/memfd:"):
            raise OSError("failed to map segment from shared object")
        return load(path, name, words)

    monkeypatch.setattr(library.entry, "load", refused)
    assert _kernel()(1.0) == 4.0
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)


def test_a_library_without_an_entry_is_made_again(own_folder):
    from lowtide.framework.kernels.cpu.compiler import link, translate

    kernel = _kernel()
    data = translate.translate(kernel.numba_object(), ["f8"], False)
    with pytest.raises(library.CannotLoad, match="no"):
        library._map_memory(link.link(data, ["lowtide_table"], library.NEEDED), "scaled", "f8")
    with pytest.raises(library.CannotLoad, match="no"):
        library._map_memory(link.link(data, ["lowtide_entry"], library.NEEDED), "scaled", "f8")


def test_functions_are_linked_into_kernels_and_not_loaded(own_folder):
    kernel = _kernel()
    assert kernel(1.0) == 4.0
    callee = kernel.py_func.__globals__["step"]._callee
    (made,) = callee.overloads.values()
    assert made.library._finalized
    assert not callee._cache_misses  # Numba's own way to compile: with wrappers, and loaded
    assert [f.name for f in made.library.get_defined_functions()] == [made.fndesc.llvm_func_name]
    assert kernel.py_func.__globals__["step"](2.0) == 3.0  # alone, by Numba's way


def test_a_collector_that_is_off_stays_off(own_folder):
    assert gc.isenabled()
    gc.disable()
    try:
        _kernel()(1.0)
        assert not gc.isenabled()
    finally:
        gc.enable()
    _kernel(by=3.0)(1.0)
    assert gc.isenabled()


def test_old_files_are_removed_and_used_ones_kept(own_folder):
    _kernel()(1.0)
    (used,) = own_folder.iterdir()
    ages = {"old-1.so": 100, "new-1.so": 1, ".making-1-1-a": 1, ".making-2-1-b": 0, "notes": 400}
    for name, days in ages.items():
        (own_folder / name).write_text("x")
        then = time.time() - days * 24 * 3600
        os.utime(own_folder / name, (then, then))
    os.utime(used, (0, 0))
    _kernel()(1.0)  # it is loaded, and so used today
    library._swept.clear()
    _kernel(by=5.0)(1.0)
    left = {p.name for p in own_folder.iterdir()}
    assert used.name in left
    assert left & set(ages) == {"new-1.so", ".making-2-1-b", "notes"}
    count, nbytes = library.inventory()
    assert (count, nbytes) == (3, sum(p.stat().st_size for p in own_folder.glob("*.so")))
    assert library.clear() == 4
    assert {p.name for p in own_folder.iterdir()} == {"notes"}


NOTICE = """
import os, sys
{before}
import numpy as np
from lowtide.framework.kernels.cpu.attention import softmax
out = np.zeros((1, 5), np.float32)
softmax(out, np.ones((1, 5), np.float32))
os.write(1, str(out[0, 0]).encode())
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("before", "shell"),
    [
        ("", "2>/dev/full"),
        ("", "2>&-"),
        ("sys.stderr = None", ""),
        pytest.param("sys.stderr.close()", "", marks=pytest.mark.deep),
        pytest.param(
            "sys.stderr = type('Broken', (), {'write': 3, 'flush': lambda self: None})()",
            "",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_notice_that_cannot_be_told_stops_nothing(before, shell, tmp_path):
    command = f'exec "$0" -c "$1" {shell}'
    code = NOTICE.format(before=before)
    found = subprocess.run(
        ["sh", "-c", command, sys.executable, code],
        capture_output=True,
        text=True,
        env=os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path)},
    )
    assert (found.returncode, found.stdout) == (0, "0.2"), found.stderr


def test_a_notice_says_why_nothing_is_kept(capsys, monkeypatch):
    monkeypatch.setattr(notices, "_seconds", [])
    monkeypatch.setattr(notices, "_begun", [])
    monkeypatch.setattr(notices.atexit, "register", lambda function: None)
    cache_folder.BASE = ""  # the fixture puts it back
    notices.begin("one")
    notices.begin("two")
    assert capsys.readouterr().err == (
        "lowtide: compiling kernels for this processor "
        "(not kept: no home directory is known; set LOWTIDE_CACHE_DIR)\n"
    )


def test_every_few_seconds_a_notice_names_the_kernel(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr(notices, "_seconds", [])
    monkeypatch.setattr(notices, "_begun", [])
    monkeypatch.setattr(notices.atexit, "register", lambda function: None)
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    for k in range(7):
        notices.begin(f"kernel_{k}")
        notices.add(1.5)
        now += 1.5
    first, *more = capsys.readouterr().err.splitlines()
    assert first.startswith("lowtide: compiling kernels for this processor")
    assert more == [
        "lowtide: compiling kernel_3, kernel 4 of this process",
        "lowtide: compiling kernel_6, kernel 7 of this process",
    ]
