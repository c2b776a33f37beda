"""Options of recipes are checked first; runs keep out of each other's folders."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.utils import CheckpointDirectory

options = importlib.import_module("lowtide.recipes.options").options
RunFolder = importlib.import_module("lowtide.recipes.run_folder").RunFolder

WRONG = {
    "--batch-size 0": "--batch-size: takes an integer, 1 or more; got '0'",
    "--steps two": "--steps: takes an integer, 1 or more; got 'two'",
    "--epochs -3": "--epochs: takes an integer, 1 or more; got '-3'",
    "--checkpoint-every 0": "--checkpoint-every: takes an integer",
    "--lr fast": "--lr: takes a number, 0 or more, as in 1e-3; got 'fast'",
    "--lr -1": "--lr: takes a number, 0 or more",
    "--lr nan": "--lr: takes a number, 0 or more",
    "--device gpu": "--device: device must be one of cpu, cuda, meta",
    "--device meta": "--device: a recipe needs values: takes cpu or cuda; got 'meta'",
    "--data-dir nowhere": "--data-dir: takes a folder; 'nowhere' does not exist",
    "--data-dir file": "--data-dir: takes a folder; 'file' is a file",
    "--out file": "--out: takes a folder to write to; ",
    "--out file/below": "--out: takes a folder to write to; ",
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["digits"])
    (tmp_path / "file").write_text("")


@pytest.mark.parametrize("words", WRONG, ids=str)
def test_a_wrong_option_is_named_with_its_rule_and_value(words, capsys):
    parser = options("Train.", epochs=1, batch_size=2, lr=0.1)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: lowtide run digits ")
    assert WRONG[words] in said


def test_right_options_have_the_types_of_what_they_mean(tmp_path):
    parser = options("Train.", epochs=1, batch_size=2, lr=0.1)
    args = parser.parse_args("--epochs 3 --lr 2e-3 --out new/runs --data-dir .".split())
    assert (args.epochs, args.lr, args.out, args.data_dir) == (3, 2e-3, Path("new/runs"), ".")
    assert not Path("new").exists()


def finish(path, step=4):
    CheckpointDirectory(path / "checkpoints").save(step)
    (path / "results.json").write_text("{}")


def test_each_run_has_a_folder_of_its_own():
    first = RunFolder("digits", None, False)
    assert (first.path, first.skipped) == (Path("runs/digits"), [])
    finish(first.path)
    before = (first.path / "checkpoints" / "step_00000004.safetensors").read_bytes()
    second = RunFolder("digits", None, False)
    assert (second.path, second.skipped) == (Path("runs/digits-2"), [])
    assert (first.path / "checkpoints" / "step_00000004.safetensors").read_bytes() == before


def test_an_unfinished_run_is_passed_by_and_named_and_resumed():
    CheckpointDirectory("runs/digits/checkpoints").save(3)
    fresh = RunFolder("digits", None, False)
    assert fresh.path == Path("runs/digits-2")
    assert fresh.skipped == ["runs/digits holds an unfinished run: --resume goes on with it"]
    finish(fresh.path)
    assert RunFolder("digits", None, True).path == Path("runs/digits")


def test_nothing_to_resume_is_a_new_run():
    finish(Path("runs/digits"))
    assert RunFolder("digits", None, True).path == Path("runs/digits-2")


def test_a_folder_that_was_asked_for_and_holds_a_run_is_refused():
    finish(Path("mine"), 7)
    with pytest.raises(
        SystemExit, match="mine holds a finished run, at step 7. Write elsewhere wi"
    ):
        RunFolder("digits", Path("mine"), False)
    assert RunFolder("digits", Path("mine"), True).path == Path("mine")
    Path("mine/results.json").unlink()
    with pytest.raises(SystemExit, match="an unfinished run, at step 7. Go on with --resume, or"):
        RunFolder("digits", Path("mine"), False)


IN_USE = "runs/digits/checkpoints is written to by process 4711 on other"


@pytest.fixture
def in_use(monkeypatch):
    """The first folder belongs to another process."""
    import lowtide as lt

    claim = CheckpointDirectory.claim

    def refused(self):
        if "digits-" not in str(self.path):
            raise lt.SerializationError(IN_USE)
        claim(self)

    monkeypatch.setattr(CheckpointDirectory, "claim", refused)


def test_a_second_run_at_the_same_time_goes_elsewhere_and_says_who_is_there(in_use):
    found = RunFolder("digits", None, False)
    assert (found.path, found.skipped) == (Path("runs/digits-2"), [IN_USE])
    with pytest.raises(SystemExit, match="process 4711"):
        RunFolder("digits", Path("runs/digits"), False)


def test_the_command_without_a_name_lists_the_recipes(capsys):
    assert cli.main(["run"]) == 2
    said = capsys.readouterr().err
    assert "as in `lowtide run digits`" in said
    assert "autoencoder, chargpt" in said
    assert "args" not in said


def test_the_list_of_recipes_has_no_markup(capsys):
    assert cli.main(["recipes"]) == 0
    said = capsys.readouterr().out
    assert "samples.png" in "".join(said.split())
    assert "``" not in said


def test_a_batch_larger_than_the_data_is_refused(capsys, monkeypatch):
    assert cli.main("run digits --batch-size 9999 --quick".split()) == 1
    assert "there is no step to do: a batch of 9999 is more than all" in capsys.readouterr().err


def test_results_hold_options_as_what_they_are(capsys):
    assert cli.main("run digits --steps 1 --quick --batch-size 32".split()) == 0
    options = json.loads(Path("runs/digits/results.json").read_text())["options"]
    assert (options["batch_size"], options["lr"], options["quick"]) == (32, 2e-3, True)
    assert options["out"] is options["data_dir"] is None
    said = capsys.readouterr().out
    assert "activations kept for backward" in said
    assert "as trained: at most" in said
    assert "█" in said
    assert "Always there: " in said
