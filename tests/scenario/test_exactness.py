"""What a resume restores exactly, case by case; real kills of the training script, at the moments that matter."""

import os
import signal
from pathlib import Path

import pytest

from holdfast import wiring
from holdfast.engine.checkpoint import open_checkpoint

from .kills import Sight
from .torture import TRAIN, differences
from .zygote import Process, Zygote, keepers_of

pytestmark = pytest.mark.slow

STEPS_PER_EPOCH = 12


def kill_all(zygote: Zygote, process: Process) -> None:
    """Kill a trainer and its keeper at once, as the loss of a machine does."""
    keepers = keepers_of(process.pid)
    process.kill()
    for keeper in keepers:
        os.kill(keeper, signal.SIGKILL)
    assert zygote.finish(process) == -signal.SIGKILL


def test_a_finished_run_started_again_trains_nothing_saves_nothing_and_succeeds(zygote: Zygote, tmp_path: Path) -> None:
    """A supervisor that starts the command once more does no harm: exit code 0 at once, the same end."""
    store = Sight(tmp_path / "run")
    first = zygote.run(TRAIN, store.path)
    before = store.committed()
    for _ in range(2):
        again = zygote.run(TRAIN, store.path)
        assert again.exit_code == 0, again.said()
        assert again.lines() == first.lines()[-1:]
        assert store.committed() == before


def test_more_epochs_go_on_where_a_finished_run_ended_even_after_an_idle_restart(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The position in the data survives an attempt that never asked for data."""
    store = Sight(tmp_path / "run")
    wanted = zygote.run(TRAIN, tmp_path / "alone").lines()
    first = zygote.run(TRAIN, store.path, "--epochs", "2").lines()
    assert zygote.run(TRAIN, store.path, "--epochs", "2").exit_code == 0
    more = zygote.run(TRAIN, store.path).lines()
    assert first[:-1] + more == wanted
    assert differences(Sight(tmp_path / "alone"), store) == []


def test_the_number_of_workers_may_change_at_every_restart(zygote: Zygote, tmp_path: Path) -> None:
    """Augmentation is keyed by sample, so it does not matter which worker does it, or how many there are."""
    store = Sight(tmp_path / "run")
    wanted = zygote.run(TRAIN, tmp_path / "alone", "--workers", "2").lines()
    done: list[dict[str, object]] = []
    for workers in (2, 0, 3):
        process = zygote.start(TRAIN, store.path, "--workers", workers, "--pace", "0.005")
        already = set(store.committed())
        assert process.until(lambda already=already: set(store.committed()) - already)
        kill_all(zygote, process)
        done += process.lines()
    last = zygote.run(TRAIN, store.path, "--workers", "1")
    assert "bit-exact" in last.said()
    assert all(line in wanted for line in done)
    assert last.lines() == wanted[-len(last.lines()) :]
    assert differences(Sight(tmp_path / "alone"), store) == []


def test_what_a_script_does_at_the_end_of_an_epoch_happens_once_when_killed_just_before(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Killed right after the checkpoint on an epoch's last batch: no epoch is lost, none is closed twice or never."""
    store = Sight(tmp_path / "run")
    words = ("--every-steps", STEPS_PER_EPOCH, "--pace", "0.02")
    wanted = zygote.run(TRAIN, tmp_path / "alone").lines()
    attempts = []
    for epoch in (1, 2, 3):
        process = zygote.start(TRAIN, store.path, *words)
        assert process.until(lambda epoch=epoch: [c for c in store.committed() if c.step == epoch * STEPS_PER_EPOCH])
        kill_all(zygote, process)
        attempts.append(process)
    attempts.append(zygote.run(TRAIN, store.path, *words))
    for epoch, process in enumerate(attempts[1:]):
        assert f"(step {(epoch + 1) * STEPS_PER_EPOCH}): bit-exact" in process.said()
        first = process.lines()[0]
        assert first == next(line for line in wanted if line.get("epoch_end") == epoch), (
            "it begins by closing the epoch"
        )
    assert attempts[-1].lines() == wanted[-len(attempts[-1].lines()) :]
    assert differences(Sight(tmp_path / "alone"), store) == []


def test_an_accumulation_cut_short_is_done_again_from_its_first_batch(zygote: Zygote, tmp_path: Path) -> None:
    """Without gradients in the checkpoint, a resume begins at an optimizer step."""
    store = Sight(tmp_path / "run")
    words = ("--accumulate", "5", "--every-steps", "1", "--pace", "0.005")
    wanted = zygote.run(TRAIN, tmp_path / "alone", *words).lines()
    process = zygote.start(TRAIN, store.path, *words)
    in_the_midst = (16, 24, 56, 64)  # samples seen in the epoch: two or three batches into an accumulation
    last_batch = lambda: process.lines()[-1].get("batch", 0) % 96  # noqa: E731
    assert process.until(lambda: len(store.committed()) >= 2 and last_batch() in in_the_midst)
    kill_all(zygote, process)
    again = zygote.run(TRAIN, store.path, *words)
    first = next(line for line in again.lines() if "batch" in line)
    of_that_step = [line for line in wanted if "batch" in line and line["step"] == first["step"]]
    assert len(of_that_step) in (5, 2)
    assert first == of_that_step[0]
    assert again.lines() == wanted[-len(again.lines()) :]
    assert differences(Sight(tmp_path / "alone"), store) == []


def test_a_save_inside_an_accumulation_brings_the_gradients_back(zygote: Zygote, tmp_path: Path) -> None:
    """With save_mid_accumulation a resume goes on with the next batch, even between two optimizer steps."""
    store = Sight(tmp_path / "run")
    words = ("--accumulate", "5", "--mid", "--every-batches", "2", "--pace", "0.005", "--keep", "5")
    wanted = zygote.run(TRAIN, tmp_path / "alone", *words).lines()
    resumed_inside = 0
    for _ in range(3):
        process = zygote.start(TRAIN, store.path, *words)
        already = set(store.committed())
        assert process.until(lambda already=already: inside(store) and set(store.committed()) - already)
        kill_all(zygote, process)
        resumed_inside += inside(store)
    assert resumed_inside, "every kill came too late"
    last = zygote.run(TRAIN, store.path, *words)
    assert last.lines() == wanted[-len(last.lines()) :]
    assert differences(Sight(tmp_path / "alone"), store) == []


def inside(store: Sight) -> bool:
    """Tell whether the newest checkpoint was taken between two optimizer steps."""
    committed = store.committed()
    if not committed:
        return False
    newest = open_checkpoint(wiring.open_store(store.path), wiring.xxh3, committed[-1])
    return int(newest.manifest.step["micro"]) > 0
