"""The command's own words: help, wrong calls, what it says where a script used PyTorch itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.runtime import blas, cache_folder

ROOT = Path(__file__).resolve().parents[1]
SUBCOMMANDS = sorted(cli.EXAMPLES)


def subparsers():
    return cli.build_parser()._subparsers._group_actions[0].choices


def test_every_subcommand_has_an_example():
    assert set(subparsers()) == set(cli.EXAMPLES)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_has_a_sentence_and_an_example_that_can_be_parsed(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    parser = subparsers()[name]
    assert parser.description[0].isupper()
    assert parser.description.endswith(".")
    example = cli.EXAMPLES[name]
    assert told.rstrip().endswith(f"Example: {example}")
    options = cli.build_parser().parse_args(example.split()[1:])
    assert options.command == name


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_option_that_takes_a_value_has_words(name):
    for action in subparsers()[name]._actions:
        assert action.help, action.dest


@pytest.mark.parametrize(
    "name", ["profile", "estimate", "leaks", "advise", "fit", "run-as-torch", "fit-table", "launch"]
)
def test_without_a_script_an_example_is_shown(name, capsys):
    assert cli.main([name]) == 2
    told = capsys.readouterr()
    assert told.err == f"lowtide {name} takes a script, as in: {cli.EXAMPLES[name]}\n"
    assert told.out == ""


@pytest.mark.parametrize("name", ["profile", "leaks", "estimate", "advise", "fit-table"])
def test_a_folder_is_no_script(name, tmp_path, capsys):
    assert cli.main([name, str(tmp_path)]) == 2
    assert "is a folder without a __main__.py. Name the script in it" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_jobs_are_counted_from_one(jobs, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compile", f"--jobs={jobs}"])
    assert stop.value.code == 2
    assert "takes a number of processes, 1 or more; got" in capsys.readouterr().err


@pytest.mark.skipif(not library.supported(), reason="libraries: x86-64 Linux, CPython")
def test_doctor_shows_the_kernels_and_clear_removes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path))
    (tmp_path / "kernels").mkdir(mode=0o700)
    for name, size in (("a.so", 1000), ("b.so", 24)):
        (tmp_path / "kernels" / name).write_bytes(bytes(size))
    cli.main(["doctor"])
    assert f"2 in {tmp_path / 'kernels'}, 1.00 KiB" in capsys.readouterr().out
    assert cli.main(["compile", "--clear"]) == 0
    assert capsys.readouterr().out == f"removed 2 files from {tmp_path / 'kernels'}\n"
    tmp_path.chmod(0o777)
    cli.main(["doctor"])
    assert f"not kept: {tmp_path} is writable by other users" in capsys.readouterr().out
    assert cli.main(["compile", "--clear"]) == 1
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("chosen", ["Haswell", None])
def test_doctor_says_which_kernels_products_take(chosen):
    if blas.kernels() is None:
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    environment["LOWTIDE_MKL"] = "0"
    if chosen is not None:
        environment["OPENBLAS_CORETYPE"] = chosen
    command = [sys.executable, "-m", "lowtide", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"^  products: OpenBLAS with kernels for (\w+)$", done.stdout, re.M)
    assert found is not None
    assert chosen in (None, found[1])
    assert ("OPENBLAS_CORETYPE has chosen these" in done.stdout) == (chosen is not None)
    assert "LOWTIDE_MKL=0 keeps MKL from being used" in done.stdout


def test_doctor_says_that_a_library_is_missing(tmp_path):
    missing = tmp_path / "libmkl_rt.so"
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", "doctor"],
        env=os.environ | {"LOWTIDE_MKL": str(missing)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"LOWTIDE_MKL={missing}: there is no such file; 0 switches MKL off" in done.stdout


FAKE = "__version__ = 'of a test'\n"  # PyTorch, for a script that only imports it
ABSENT = """raise ModuleNotFoundError("No module named 'torch'", name="torch")\n"""


def lowtide(folder, *words):
    path = os.pathsep.join([str(ROOT), str(folder / "site")])
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("name", ["profile", "leaks", "estimate", "advise"])
def test_a_script_of_pytorch_is_told_of_as_torch(name, installed, tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(FAKE if installed else ABSENT)
    done = lowtide(tmp_path, name, "train.py")
    words = f"Let `import torch` mean lowtide in it, as it is: lowtide {name} --as-torch train.py"
    assert words in " ".join(done.stderr.split())


def test_a_script_without_tensors_is_told_nothing_of_torch(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    done = lowtide(tmp_path, "profile", "train.py")
    assert done.returncode == 0
    assert "Nothing was recorded, so nothing was written." in done.stdout
    assert "torch" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py"]


STEP = "import lowtide as lt\nlt.ones(256, requires_grad=True).sum().backward()\n"


@pytest.mark.deep
def test_a_profile_that_fails_or_is_empty_leaves_the_good_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STEP)
    assert lowtide(tmp_path, "profile", "--no-timeline", "train.py").returncode == 0
    run = tmp_path / "train-memory" / "run.json"
    good = run.read_bytes()
    script.write_text(f"{STEP}raise ValueError\n")
    failed = lowtide(tmp_path, "profile", "--no-timeline", "train.py")
    assert failed.returncode == 1
    assert run.read_bytes() == good
    assert "the earlier profile" in failed.stdout
    assert (run.parent / "failed" / "run.json").stat().st_size > 0
    script.write_text("print('hello')\n")
    assert lowtide(tmp_path, "profile", "--no-timeline", "train.py").returncode == 0
    assert run.read_bytes() == good
    script.write_text("import lowtide as lt\nlt.ones(9, requires_grad=True).sum().backward()\n")
    assert lowtide(tmp_path, "profile", "--no-timeline", "train.py").returncode == 0
    assert run.read_bytes() != good


def test_the_file_of_a_fit_table_sees_no_arguments_of_ours(tmp_path):
    (tmp_path / "models.py").write_text("import sys\nraise ValueError(sys.argv)\n")
    done = lowtide(tmp_path, "fit-table", "models.py", "--limits", "1GiB")
    assert "ValueError: ['models.py']" in done.stderr
