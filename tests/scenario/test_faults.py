"""What a person meets when something is wrong: a full disk, a wrong path, a second process, damage, another config.

Training goes on where it can. Where it cannot, the process ends with code 78, says in one message what is wrong and
what to do, and shows no traceback; what is stored stays as it is.
"""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import wiring
from holdfast.engine.past import read_verdict
from holdfast.spec.manifest import FORMAT, seal, unseal

from .kills import Sight
from .torture import TRAIN, whole
from .zygote import Process, Zygote, keepers_of

pytestmark = pytest.mark.slow

DISK = Path(__file__).with_name("disk.py")
DO_NOT_RETRY = 78


def refused(process: Process) -> str:
    """Check that a trainer has refused to go on as promised, and return what it said."""
    said = process.said()
    assert process.exit_code == DO_NOT_RETRY, said
    assert "Traceback" not in said
    assert process.lines() == [], "it trained"
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def on_own_disk(zygote: Zygote, place: Path, *words: str) -> tuple[Process, dict[str, Any]]:
    """Run a training on a small disk of its own; return it, and what it found there."""
    process = zygote.run(DISK, place, *words)
    facts = process.lines()[-1] if process.lines() else {}
    if "skip" in facts:
        pytest.skip(facts["skip"])
    return process, facts


def happened(facts: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [event for event in facts["events"] if event["event"] == kind]


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_saves_that_fail_are_told_and_change_nothing_and_go_through_once_the_disk_is_mended(
    zygote: Zygote, tmp_path: Path, trouble: str
) -> None:
    """Training goes on, older checkpoints verify in the midst of it, the failure is loud, the next saves commit."""
    process, facts = on_own_disk(zygote, tmp_path / "disk", trouble)
    assert process.exit_code == 0, process.said()
    assert len(facts["before"]) >= 2
    assert facts["during"] == facts["before"]
    assert facts["after"][-1] > facts["during"][-1]
    reason = "No space left on device" if trouble == "full" else "Read-only file system"
    assert "SAVE FAILED" in process.said()
    assert reason in process.said()
    assert {event["why"].count(reason) for event in happened(facts, "WriteFailed")} == {1}
    assert happened(facts, "Committed")[-1]["checkpoint"] == facts["after"][-1]


def test_a_keeper_killed_on_a_full_disk_is_replaced_and_saves_once_there_is_room(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The new keeper cannot even be announced in the store; training goes on all the same."""
    process, facts = on_own_disk(zygote, tmp_path / "disk", "full", "--kill-keeper")
    assert process.exit_code == 0, process.said()
    assert "started another" in process.said()
    assert len(happened(facts, "KeeperLost")) == 1
    assert facts["during"] == facts["before"]
    assert facts["after"][-1] > facts["during"][-1]


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_final_state_that_cannot_be_saved_is_no_finished_training(
    zygote: Zygote, tmp_path: Path, trouble: str
) -> None:
    """Exit code 0 means finished and saved, so this is another one, and the message says what is not saved."""
    process, facts = on_own_disk(zygote, tmp_path / "disk", trouble, "--to-the-end")
    assert process.exit_code == DO_NOT_RETRY
    assert f"the final state (step {facts['step']}) is not saved" in process.said()
    assert facts["after"] == facts["before"]


@pytest.mark.parametrize(("trouble", "reason"), [("full", "No space left"), ("read-only", "Read-only file system")])
def test_a_store_that_cannot_be_written_to_is_named_at_the_start(
    zygote: Zygote, tmp_path: Path, trouble: str, reason: str
) -> None:
    """Nobody trains for hours on a store that has never worked."""
    process, _ = on_own_disk(zygote, tmp_path / "disk", trouble, "--from-the-start")
    assert process.exit_code == DO_NOT_RETRY
    assert "Traceback" not in process.said()
    assert f"{tmp_path / 'disk' / 'run'} cannot be used" in process.said()
    assert reason in process.said()


def test_a_path_below_a_file_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """The message names the path."""
    (tmp_path / "file").write_text("not a folder")
    said = refused(zygote.run(TRAIN, tmp_path / "file" / "run"))
    assert str(tmp_path / "file" / "run") in said


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(zygote: Zygote, tmp_path: Path) -> None:
    """Not a byte is written where somebody keeps other things."""
    place = tmp_path / "thesis"
    (place / "chapters").mkdir(parents=True)
    (place / "chapters" / "1.tex").write_text("In the beginning")
    before = contents(place)
    said = refused(zygote.run(TRAIN, place))
    assert "is not a Holdfast run" in said
    assert "chapters" in said
    assert contents(place) == before


def test_a_second_process_is_refused_and_told_who_trains_the_run(zygote: Zygote, tmp_path: Path) -> None:
    """The first one is not disturbed: every line and the end are those of a training that was alone."""
    alone = zygote.run(TRAIN, tmp_path / "alone")
    first = zygote.start(TRAIN, tmp_path / "run", "--pace", "0.02")
    assert first.until(first.lines)
    said = refused(zygote.run(TRAIN, tmp_path / "run"))
    holder = json.loads((tmp_path / "run" / "attempts" / "000001.json").read_text())["holder"]
    assert f"process {first.pid} on {holder['host']}" in said
    assert zygote.finish(first) == 0
    assert first.lines() == alone.lines()


def test_of_many_processes_that_start_at_once_one_trains(zygote: Zygote, tmp_path: Path) -> None:
    """Nobody is told a wrong name, nobody crashes, and the one that trains is not disturbed."""
    crowd = [zygote.start(TRAIN, tmp_path / "run", "--epochs", "1", "--pace", "0.1") for _ in range(5)]
    codes = [zygote.finish(process) for process in crowd]
    assert sorted(codes) == [0] + [DO_NOT_RETRY] * 4
    winner = crowd[codes.index(0)]
    for process in crowd:
        assert process is winner or f"is being trained already, by process {winner.pid} on " in refused(process)
    assert len(winner.lines()) == 14


def test_ctrl_c_ends_a_training_whose_last_save_is_kept(zygote: Zygote, tmp_path: Path) -> None:
    """The keeper, in a session of its own, does not hear the interrupt, finishes the save and ends."""
    store = Sight(tmp_path / "run")
    alone = zygote.run(TRAIN, tmp_path / "alone")
    process = zygote.start(TRAIN, store.path, "--pace", "0.05")
    assert process.until(store.unfinished)
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group, loader workers too
    assert zygote.finish(process) not in (0, DO_NOT_RETRY)
    assert "KeyboardInterrupt" in process.said()
    verdict = read_verdict(wiring.open_store(store.path), 1)
    assert verdict is not None
    assert (verdict.ending, verdict.checkpoint) == ("exited", str(store.committed()[-1]))
    again = zygote.run(TRAIN, store.path)
    assert f"resumed from {verdict.checkpoint} " in again.said()
    assert again.lines() == alone.lines()[-len(again.lines()) :]


def test_a_run_whose_checkpoints_are_all_damaged_is_never_begun_afresh(zygote: Zygote, tmp_path: Path) -> None:
    """Each checkpoint is listed with what is wrong with it, and none is touched."""
    run = tmp_path / "run"
    assert zygote.run(TRAIN, run, "--epochs", "1").exit_code == 0
    damaged = Sight(run).committed()
    for checkpoint in damaged:
        part = run / checkpoint.folder / "model.r00000.safetensors"
        flipped = bytearray(part.read_bytes())
        flipped[-1] ^= 1
        part.write_bytes(flipped)
    before = contents(run / "checkpoints")
    said = refused(zygote.run(TRAIN, run))
    assert len(damaged) >= 2
    for checkpoint in damaged:
        assert f"{checkpoint}: " in said
    assert contents(run / "checkpoints") == before
    assert "Traceback" not in refused(zygote.run(TRAIN, run)), "the second time is as the first"


def test_a_newer_format_stops_and_an_older_checkpoint_is_used_only_if_that_is_allowed(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Going back behind the work of a newer Holdfast is the user's decision."""
    run = tmp_path / "run"
    alone = zygote.run(TRAIN, tmp_path / "alone")
    assert zygote.run(TRAIN, run, "--epochs", "2").exit_code == 0
    older, newest = Sight(run).committed()[-2:]
    manifest = run / newest.manifest
    body = unseal(manifest.read_bytes(), newest.manifest, wiring.xxh3)
    manifest.write_bytes(seal({**body, "format": FORMAT + 1}, wiring.xxh3))
    said = refused(zygote.run(TRAIN, run))
    assert f"{newest.manifest} has format {FORMAT + 1}" in said
    assert 'Settings(allow=["format"])' in said
    allowed = zygote.run(TRAIN, run, "--allow", "format")
    assert allowed.exit_code == 0, allowed.said()
    assert f"resumed from {older}" in allowed.said()
    assert f"Refused: {newest}" in allowed.said()
    assert allowed.lines()[-1] == alone.lines()[-1]


def test_a_changed_config_is_shown_and_goes_only_by_name_and_at_a_lower_level(zygote: Zygote, tmp_path: Path) -> None:
    """What differs is named with both values; allowed, it lowers what the resume claims."""
    run = tmp_path / "run"
    assert zygote.run(TRAIN, run, "--epochs", "1").exit_code == 0
    before = contents(run / "checkpoints")
    said = refused(zygote.run(TRAIN, run, "--lr", "0.02"))
    assert "lr: 0.01 -> 0.02" in said
    assert "Settings(allow=['lr'])" in said
    assert contents(run / "checkpoints") == before
    assert refused(zygote.run(TRAIN, run, "--lr", "0.02", "--allow", "accumulate"))
    allowed = zygote.run(TRAIN, run, "--lr", "0.02", "--allow", "lr")
    assert allowed.exit_code == 0, allowed.said()
    assert "exact samples, because config lr was changed" in allowed.said()


def test_a_keeper_that_dies_again_and_again_stops_the_training(zygote: Zygote, tmp_path: Path) -> None:
    """Nobody trains on for hours without any save; what is committed stays whole."""
    process = zygote.start(TRAIN, tmp_path / "run", "--pace", "0.01", "--epochs", "40", "--every-steps", "100000")
    killed: set[int] = set()

    def kill_the_next() -> bool:
        for pid in keepers_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return len(killed) >= 5

    assert process.until(kill_the_next)
    assert zygote.finish(process) == DO_NOT_RETRY
    assert "the keeper died 5 times in a row" in process.said()
    assert "Traceback" not in process.said()
    assert whole(Sight(tmp_path / "run")) == []
