"""The command line as a whole: which run and checkpoint are meant, errors in one line, looking leaves no trace."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli import demo as holdfast_demo
from holdfast.cli import main
from holdfast.spec import names
from tests.made import make_attempt, make_checkpoint, make_run
from tests.terminal import holdfast

COMMANDS = ("ls", "show", "verify", "diff", "export", "pin", "unpin", "prune", "demo")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints of two attempts, two of them at step 20."""
    store = make_run(tmp_path / "runs" / "digits")
    make_attempt(store, 1, ending="killed")
    make_checkpoint(store, 10)
    make_checkpoint(store, 20)
    make_attempt(store, 2, ending="finished")
    make_checkpoint(store, 20, 2)
    make_checkpoint(store, 15, 2)
    return tmp_path / "runs" / "digits"


def _everything_in(folder: Path) -> list[tuple[str, int, int]]:
    found = (path for path in folder.rglob("*"))
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "0000000020-a000002"),
        (["latest"], "0000000020-a000002"),
        (["10"], "0000000010-a000001"),
        (["0000000010"], "0000000010-a000001"),
        (["20"], "0000000020-a000002"),
        (["0000000020-a000001"], "0000000020-a000001"),
        (["15"], "0000000015-a000002"),
    ],
)
def test_a_checkpoint_is_meant_by_name_step_or_age(run: Path, words: list[str], name: str) -> None:
    """A name means itself, a step the newest of that step, nothing and `latest` what a resume would try first."""
    assert holdfast("show", run, *words, "--json").facts["checkpoint"] == name


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}"])
def test_a_checkpoints_folder_means_that_checkpoint(run: Path, form: str) -> None:
    """The folder of a checkpoint stands for the run and the checkpoint at once."""
    folder = run / "checkpoints" / "0000000020-a000001"
    facts = holdfast("show", form.format(folder), "--json").facts
    assert (facts["run"], facts["checkpoint"]) == (str(run), "0000000020-a000001")


def test_a_relative_path_is_a_run_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is found from inside its own folder, and a checkpoint from inside its."""
    monkeypatch.chdir(run)
    assert holdfast("show", ".", "--json").facts["checkpoint"] == "0000000020-a000002"
    monkeypatch.chdir(run / "checkpoints" / "0000000010-a000001")
    assert holdfast("show", ".", "--json").facts["checkpoint"] == "0000000010-a000001"


def test_a_run_without_its_run_json_is_still_looked_at(run: Path) -> None:
    """Losing run.json hides nothing."""
    (run / names.RUN).unlink()
    assert len(holdfast("ls", run, "--json").facts["checkpoints"]) == 4


@pytest.mark.parametrize("command", [["ls"], ["show"], ["verify"], ["export"], ["pin"], ["unpin"], ["prune"], ["diff"]])
def test_a_place_that_holds_no_run_is_an_error(tmp_path: Path, command: list[str]) -> None:
    """A missing folder, an empty one, a file and a foreign folder each get one line, a code, and stay as they are."""
    rest = {"export": [tmp_path / "out"], "pin": ["1"], "unpin": ["1"], "diff": ["1", "2"]}.get(command[0], [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    (tmp_path / "foreign" / "deep").mkdir(parents=True)
    before = _everything_in(tmp_path)
    for place, code, word in (
        ("missing", 10, "there is no such folder"),
        ("empty", 10, "the folder is empty"),
        ("file", 10, "that is a file"),
        ("foreign", 78, "is not a Holdfast run"),
    ):
        said = holdfast(*command, tmp_path / place, *rest)
        assert (said.code, said.out) == (code, "")
        assert said.err.startswith("holdfast: ")
        assert word in said.err
        assert said.err.count("\n") == 1
        assert str(tmp_path / place) in said.err
    assert _everything_in(tmp_path) == before


def test_a_url_that_no_store_serves_is_a_usage_error() -> None:
    """What cannot be opened at all is said, with code 2."""
    said = holdfast("ls", "s3://bucket/run")
    assert (said.code, said.out) == (2, "")
    assert "s3://bucket/run" in said.err


@pytest.mark.parametrize(
    "words", [["show", "99"], ["verify", "99"], ["pin", "99"], ["unpin", "99"], ["diff", "10", "99"]]
)
def test_a_checkpoint_that_is_not_there_is_an_error(run: Path, words: list[str]) -> None:
    """Code 11, and a line that names the newest ones there are."""
    said = holdfast(words[0], run, *words[1:])
    assert (said.code, said.out) == (11, "")
    assert "no checkpoint '99'" in said.err
    assert "0000000020-a000002" in said.err


def test_a_run_that_has_committed_nothing_yet_is_listed_but_has_no_latest(tmp_path: Path) -> None:
    """`ls` is content with it; `show` and `verify` have nothing to look at, which must not pass for sound."""
    make_run(tmp_path)
    assert "nothing is committed yet" in holdfast("ls", tmp_path).out
    assert [holdfast(*words).code for words in (("show", tmp_path), ("verify", tmp_path, "--all"))] == [11, 11]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "{checkpoint}", "10"],
        ["verify", "{checkpoint}", "--all"],
        ["verify", "{run}", "10", "--all"],
        ["diff", "{checkpoint}", "10", "20"],
        ["pin", "{run}"],
        ["prune", "{run}", "--best", "1"],
        ["prune", "{run}", "--metric", "loss"],
        ["prune", "{run}", "--last", "0"],
        ["prune", "{run}", "--every-steps", "-1"],
        ["prune", "{run}", "--mode", "middle"],
        ["show"],
        ["frobnicate"],
    ],
)
def test_arguments_that_make_no_sense_are_usage_errors(run: Path, words: list[str]) -> None:
    """Code 2, a word on standard error, nothing on standard output."""
    places = {"run": run, "checkpoint": run / "checkpoints" / "0000000010-a000001"}
    said = holdfast(*(word.format_map(places) for word in words))
    assert (said.code, said.out) == (2, "")
    assert said.err


@pytest.mark.parametrize(
    "words", [["ls"], ["show"], ["verify", "--all"], ["diff", "10", "20"], ["prune", "--last", "1", "--dry-run"]]
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_looking_changes_nothing(run: Path, words: list[str], form: list[str]) -> None:
    """Whoever only looks leaves no file, changes none and removes none."""
    before = _everything_in(run)
    command, *rest = words
    said = holdfast(command, run, *rest, *form)
    assert (said.code, said.err) == (0, "")
    assert _everything_in(run) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example(command: str) -> None:
    """Every command's help shows it in use, and the overview names it."""
    assert f"Example: holdfast {command} " in holdfast(command, "--help").out
    assert f" {command} " in holdfast("--help").out


def test_the_installed_command_ends_with_the_exit_code(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`holdfast` on a shell is `holdfast.cli:main`, and a shell sees 0 or the error's code."""
    for words, code in ((["ls", str(run)], 0), (["show", str(run), "99"], 11)):
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
    assert "0000000020-a000002" in capsys.readouterr().out


def test_the_demo_is_told_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only options that were given are passed on, so that the demo's own defaults hold; its code is the exit code."""
    told: list[Any] = []

    def play(folder: Path, *, as_json: bool, console: Console, steps: int = 7, kills: int = 3) -> int:
        told.append((folder, as_json, console.stderr, steps, kills))
        return 5

    monkeypatch.setattr(holdfast_demo, "demo", play, raising=False)
    assert holdfast("demo", tmp_path, "--kills", "4").code == 5
    assert holdfast("demo", tmp_path, "--steps", "90", "--json").code == 5
    assert told == [(tmp_path, False, False, 7, 4), (tmp_path, True, True, 90, 3)]


def test_the_demo_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch or matplotlib there is one line on how to get them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = holdfast("demo")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "pip install 'holdfast[demo]'" in said.err


def test_looking_needs_no_torch(run: Path) -> None:
    """Commands that compute nothing import neither torch nor numpy: they start at once, anywhere."""
    words = ["ls", "show", "verify", "diff", "pin", "unpin", "prune"]
    rest = {"diff": ["10", "20"], "pin": ["10"], "unpin": ["10"]}
    lines = [[word, str(run), *rest.get(word, [])] for word in words]
    code = (
        "import sys\nfrom holdfast.cli.app import app\n"
        f"for line in {lines!r}:\n    app(line, standalone_mode=False)\n"
        "sys.exit(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
