"""The keeper: what it does with what was staged, whatever fails around it.

Rule 7: losing the ledger never loses a checkpoint.
"""

import json
from typing import Any

import pytest

from holdfast.decide.retention import Keep
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.restore import finish_interrupted, resume
from holdfast.errors import AccessDenied, NoSpace, StoreError, Unavailable
from holdfast.ledger.store import StoreLedger, read
from holdfast.spec import names
from holdfast.spec.events import AttemptEnded, PruneFailed, WriteFailed
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from tests.stand_ins import Gate, Hindered, Operation, PlainState, save, some_state, write_only
from tests.threaded_keeper import World

STEP = "0000000010-a000001"


def steps_of(store: MemoryStore) -> list[int]:
    """List the committed steps, having verified every byte of each."""
    found = committed(store)
    for checkpoint in found:
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass
    return [checkpoint.step for checkpoint in found]


def verdict(store: MemoryStore, attempt: int = 1) -> dict[str, Any]:
    """Read how an attempt ended."""
    found: dict[str, Any] = json.loads(store.read(names.verdict(attempt)))
    return found


def hinder(store: MemoryStore, operation: Operation, part: str, error: StoreError) -> Hindered:
    """Let one kind of operation on some names fail, always."""

    def before(what: Operation, name: str) -> None:
        if what == operation and part in name:
            raise error

    return Hindered(store, before)


def test_the_story_of_a_good_attempt() -> None:
    """Ready, written, committed, pruned, ended: in that order, and the verdict names the newest checkpoint."""
    store = MemoryStore()
    world = World(store)
    for step in (10, 20, 30):
        world.stage(step, some_state(step))
        world.outcomes(1)
    world.link.finish("finished", 30, "", 20.0)
    assert steps_of(store) == [20, 30]
    assert world.events.kinds() == [
        "KeeperStarted", "Written", "Committed", "Written", "Committed", "Written", "Committed", "Pruned",
        "AttemptEnded",
    ]  # fmt: skip
    assert verdict(store) == {
        "format": 1, "attempt": 1, "ending": "finished", "step": 30, "checkpoint": "0000000030-a000001", "detail": "",
        "ended_at": 1_700_000_000.0,
    }  # fmt: skip


@pytest.mark.parametrize("fails", ["ledger/", "attempts/", "pins/"])
@pytest.mark.parametrize("error", [NoSpace("x", "full"), AccessDenied("x", "no")])
def test_losing_the_rest_loses_no_checkpoint(fails: str, error: StoreError) -> None:
    """Rule 7: a ledger, a verdict or pins that cannot be written or read cost what they are, and no checkpoint."""
    store = MemoryStore()

    def before(operation: Operation, name: str) -> None:
        if name.startswith(fails) and operation != "size":
            raise error

    hindered = Hindered(store, before)
    world = World(hindered, ledger=StoreLedger(hindered, 1))
    for step in (10, 20, 30):
        world.stage(step, some_state(step))
        assert world.outcomes(1)[0].why == ""
    world.finish()
    assert steps_of(store)[-2:] == [20, 30]
    assert (verdict(store) if fails != "attempts/" else {"ending": "finished"})["ending"] == "finished"
    if fails == "attempts/":
        assert any("the verdict of this attempt could not be written" in text for text in world.told)
    if fails == "pins/":
        assert any("old checkpoints could not be pruned" in text for text in world.told)


def test_a_ledger_that_works_again_has_everything() -> None:
    """Events of the time when it could not be written are not lost as long as the keeper lives."""
    store = MemoryStore()
    full = True

    def before(operation: Operation, name: str) -> None:
        if full and name.startswith("ledger/"):
            raise NoSpace(name, "full")

    hindered = Hindered(store, before)
    world = World(hindered, ledger=StoreLedger(hindered, 1))
    world.stage(10, some_state())
    world.outcomes(1)
    full = False
    world.finish()
    assert [type(e).__name__ for e in read(store)] == ["KeeperStarted", "Written", "Committed", "AttemptEnded"]


FILES = ["model.r00000.safetensors", "documents.r00000.json", "metrics.csv", "rank.r00000.json", "manifest.json"]


@pytest.mark.parametrize("file", FILES)
def test_whatever_file_fails_the_save_is_undone(file: str) -> None:
    """Nothing of a failed save stays, the older checkpoint is untouched, the next save works."""
    store = MemoryStore()
    save(store, CheckpointId(attempt=1, step=5), some_state())
    before = store.list(names.CHECKPOINTS)
    world = World(hinder(store, "create", f"{STEP}/{file}", Unavailable(file, "the disk is away")))
    world.stage(10, some_state(1))
    (outcome,) = world.outcomes(1)
    assert outcome.why == f"{file}: the disk is away"
    assert store.list(names.CHECKPOINTS) == before
    assert [e.why for e in world.events.events if isinstance(e, WriteFailed)] == [outcome.why]
    world.stage(20, some_state(2))
    world.finish()
    assert steps_of(store) == [5, 20]


def test_what_cannot_be_cleared_away_is_cleared_later() -> None:
    """The remains of a failed save that could not be deleted go with the next prune."""
    store = MemoryStore()
    away = True

    def before(operation: Operation, name: str) -> None:
        if away and ((operation == "create" and "metrics.csv" in name) or operation == "delete"):
            raise Unavailable(name, "the disk is away")

    world = World(Hindered(store, before))
    world.stage(10, some_state(1))
    assert world.outcomes(1)[0].why
    assert [e for e in world.events.events if isinstance(e, PruneFailed)]
    assert len(store.list(names.CHECKPOINTS)) == 3
    away = False
    world.stage(20, some_state(2))
    world.finish()
    assert steps_of(store) == [20]
    assert {names.checkpoint_of(name) for name in store.list(names.CHECKPOINTS)} == {CheckpointId(attempt=1, step=20)}


def test_a_prune_that_fails_is_told_and_harms_nothing() -> None:
    """The save counts as committed; old checkpoints wait for the next prune."""
    store = MemoryStore()
    world = World(hinder(store, "delete", "", Unavailable("x", "no deleting today")))
    for step in (10, 20, 30):
        world.stage(step, some_state(step))
        assert world.outcomes(1)[0].why == ""
    world.finish()
    assert steps_of(store) == [10, 20, 30]
    assert world.told == ["old checkpoints could not be pruned: x: no deleting today"]


def test_a_survivor_that_is_damaged_holds_the_prune_back() -> None:
    """Told as a warning, with the name; nothing is deleted."""
    store = MemoryStore()
    world = World(store)
    for step in (10, 20):
        world.stage(step, some_state(step))
        world.outcomes(1)
    store.delete(CheckpointId(attempt=1, step=20).folder + "metrics.csv")
    world.stage(30, some_state(30))
    world.finish()
    assert [c.step for c in committed(store)] == [10, 20, 30]
    assert "old checkpoints were not pruned: 0000000020-a000001 does not verify" in world.told[0]


def test_a_trainer_that_vanishes_loses_nothing_that_was_staged() -> None:
    """Killed between two steps: both snapshots are committed, and the verdict says "killed"."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name:
            gate.wait_here()

    world = World(Hindered(store, wait))
    world.stage(10, some_state(1))
    gate.wait_for_arrival()
    world.stage(20, some_state(2))
    gate.open()
    world.vanish()
    assert steps_of(store) == [10, 20]
    assert verdict(store)["ending"] == "killed"
    assert verdict(store)["step"] == 20
    assert verdict(store)["checkpoint"] == "0000000020-a000001"
    assert [e.ending for e in world.events.events if isinstance(e, AttemptEnded)] == ["killed"]
    state = some_state()
    assert resume(store, xxh3, state, lambda checkpoint, documents: None) is not None
    assert state.values == some_state(2).values


def test_a_trainer_whose_child_holds_the_connection_open() -> None:
    """A loader's worker may have inherited the socket: the keeper still finds that its parent is gone."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, some_state(1))
    world.outcomes(1)
    world.trainer_lives = False
    world.wait_for_keeper()
    assert verdict(store)["ending"] == "killed"
    assert "vanished without a word" in verdict(store)["detail"]
    world.link.close()


def test_a_trainer_that_vanishes_before_its_first_save() -> None:
    """There is a verdict, and nothing else."""
    store = MemoryStore()
    world = World(store)
    world.vanish()
    assert (verdict(store)["ending"], verdict(store)["step"], verdict(store)["checkpoint"]) == ("killed", 0, None)
    assert store.list(names.CHECKPOINTS) == []


def test_the_first_verdict_stands() -> None:
    """A keeper that comes second, after its predecessor wrote the verdict, does not fail over it."""
    store = MemoryStore()
    store.create(names.verdict(1), [b'{"ending": "finished"}'])
    world = World(store)
    world.finish()
    assert verdict(store) == {"ending": "finished"}
    assert world.told == []


@pytest.mark.filterwarnings("ignore:Exception in thread holdfast-writer")
def test_the_verdict_knows_what_a_dead_predecessor_committed() -> None:
    """A keeper that took over and had nothing to write still names the attempt's newest checkpoint."""
    store = MemoryStore()
    save(store, CheckpointId(attempt=1, step=99), some_state())

    def dies_after_its_commit(operation: Operation, name: str) -> None:
        if name == "pins/" and len(world.keepers) == 1:
            raise SystemExit

    world = World(Hindered(store, dies_after_its_commit), attempt=2)
    world.stage(10, some_state(1))
    world.outcomes(1)
    assert world.keepers[0].wait(20.0) == 1
    world.link.poll()
    world.vanish()
    assert len(world.keepers) == 2
    assert (verdict(store, 2)["checkpoint"], verdict(store, 2)["step"]) == ("0000000010-a000002", 10)


def test_a_zombie_touches_nothing() -> None:
    """Superseded in the middle of a save: neither its remains nor anything else is deleted; the new attempt decides."""
    store = MemoryStore()

    def another_attempt_begins(operation: Operation, name: str) -> None:
        if operation == "read" and name.endswith("rank.r00000.json") and names.claim(2) not in store.list(""):
            store.create(names.claim(2), [b"{}"])

    def never_deletes(operation: Operation, name: str) -> None:
        another_attempt_begins(operation, name)
        assert operation != "delete", name

    for step in (1, 2, 3):
        save(store, CheckpointId(attempt=1, step=step), some_state(step))
    world = World(Hindered(store, never_deletes))
    world.stage(10, some_state(4))
    world.stage(20, some_state(5))
    world.vanish()
    assert [c.step for c in committed(store)] == [1, 2, 3]
    assert verdict(store)["ending"] == "superseded"
    assert not [name for name in store.list(names.CHECKPOINTS) if "0000000020" in name]
    assert finish_interrupted(store, xxh3) == CheckpointId(attempt=1, step=10)
    assert steps_of(store) == [1, 2, 3, 10]


def test_a_save_that_was_committed_by_a_dead_predecessor_is_not_written_again() -> None:
    """A successor that is handed a committed snapshot confirms it, and changes no byte."""
    store = MemoryStore()
    done = save(store, CheckpointId(attempt=1, step=10), some_state(1))
    before = {name: store.read(name) for name in store.list(done.folder)}
    world = World(store)
    world.stage(10, some_state(9))
    assert world.outcomes(1)[0].why == ""
    world.finish()
    assert {name: store.read(name) for name in store.list(done.folder)} == before


def test_the_remains_of_a_dead_predecessor_are_replaced() -> None:
    """A save that a predecessor left half written, or written and not committed, is written anew."""
    store = MemoryStore()
    write_only(store, CheckpointId(attempt=1, step=10), some_state(1))
    world = World(store)
    world.stage(10, some_state(9))
    world.finish()
    assert steps_of(store) == [10]
    state = some_state()
    assert resume(store, xxh3, state, lambda checkpoint, documents: None) is not None
    assert state.values == some_state(9).values


def test_best_by_the_metrics_of_the_snapshot() -> None:
    """The keeper reads the metric history out of the buffer, before it says that the slot is free."""
    store = MemoryStore()
    world = World(store, keep=Keep(last=2, best=1, metric="loss"))
    metrics = b"step,loss\n"
    for step, loss in ((10, 0.9), (20, 0.1), (30, 0.5), (40, 0.4), (50, 0.3)):
        metrics += f"{step},{loss}\n".encode()
        world.stage(step, some_state(step), metrics)
        world.outcomes(1)
    world.finish()
    assert steps_of(store) == [20, 40, 50]


def frozen_base(seed: int) -> PlainState:
    """Make a state whose largest tensor never changes."""
    return PlainState({"model": {"base": bytes(range(256)) * 40, "head": bytes([seed] * 64)}})


def test_what_did_not_change_is_not_written_again() -> None:
    """Save after save, across attempts, keepers and prunes, the frozen base lies in one file; every byte verifies."""
    store = MemoryStore()
    for attempt in (1, 2):
        world = World(store, attempt=attempt)
        for step in (10, 20, 30):
            world.stage(step + 100 * attempt, frozen_base(step + attempt))
            assert world.outcomes(1)[0].why == ""
        world.finish()
    base = "checkpoints/0000000110-a000001/model.r00000.safetensors"
    assert steps_of(store) == [220, 230]
    assert store.list("checkpoints/0000000110-a000001/") == [base]
    assert sum(len(store.read(name)) > 10_000 for name in store.list(names.CHECKPOINTS)) == 1
    state = frozen_base(0)
    assert resume(store, xxh3, state, lambda checkpoint, documents: None) is not None
    assert state.values == frozen_base(32).values


def test_a_refused_checkpoint_is_not_referred_to() -> None:
    """What a resume found damaged is no base: the next save writes the bytes again."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, frozen_base(1))
    world.finish()
    refused = committed(store)[-1]
    world = World(store, attempt=2)
    world.link.refuse([str(refused)])
    world.stage(20, frozen_base(2))
    world.finish()
    assert {stored.file for stored in open_checkpoint(store, xxh3, committed(store)[-1]).ranks[0].leaves} == {
        "checkpoints/0000000020-a000002/model.r00000.safetensors"
    }
