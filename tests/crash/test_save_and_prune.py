"""The power fails at every single operation of a training's saves and prunes, under every idea of what a disk keeps.

Rule 1: objects are written once, under their final unique name, and never changed.
Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
Rule 5: only prune deletes, and never below two verified checkpoints; a newer one is committed before an older one goes.

Four saves with retention of two go through the real keeper, onto a disk that forgets what was not synced. One part of
the state never changes, so that later checkpoints lie partly in the first one's file.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.decide.retention import Keep
from holdfast.engine import attempts
from holdfast.engine.channel import Channel
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.keep import Duty, Keeper, Ports
from holdfast.engine.restore import finish_interrupted, resume
from holdfast.engine.stage import Stager
from holdfast.ledger.store import StoreLedger
from holdfast.spec import names
from holdfast.spec.names import CheckpointId
from holdfast.spec.snapshot import Snapshot
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore
from holdfast.testing.clock import ToldClock
from holdfast.testing.disk import Crash, LossyDisk, Survival
from tests.stand_ins import AtOnce, PlainState, Rank

pytestmark = pytest.mark.slow

ROOT = Path("/data/runs/digits")
STEPS = (10, 20, 30, 40)
NEXT = 50
BASE = bytes(range(256)) * 4


def state_at(step: int) -> PlainState:
    """Make the state of a step: a frozen base, an empty leaf, and a head that changes."""
    return PlainState({"model": {"base": BASE, "empty": b"", "head": bytes([step] * 40)}})


class Nobody:
    """The `Processes` port after a power loss: nobody lives."""

    def alive(self, holder: Mapping[str, Any]) -> bool | None:
        """It does not."""
        return False


class Saving(AtOnce):
    """The real keeper of one attempt, in this thread: what a Stager submits is saved and pruned when it returns."""

    def __init__(self, store: LocalStore, attempt: int) -> None:
        super().__init__(store, Rank())
        self.acknowledged: list[CheckpointId] = []
        """What the keeper said is committed, though it may have been pruned since."""
        self._ours, theirs = (Channel(sock) for sock in socket.socketpair())
        self._theirs = theirs
        clock = ToldClock()
        ledger = StoreLedger(store, attempt)
        ports = Ports(
            store=store, digest=xxh3, ranks=Rank(), ledger=ledger, clock=clock, trainer_alive=lambda: True
        )  # fmt: skip
        self._keeper = Keeper(ports, Duty(attempt=attempt, number=1, pid=1, keep=Keep(last=2)), theirs)
        self._ledger = ledger
        self._stager = Stager(self, Rank(), clock, slots=1)  # type: ignore[arg-type]
        self._attempt = attempt

    def submit(self, snapshot: Snapshot) -> None:
        """Have the keeper save it; take note of what it acknowledges, even if the power fails while it prunes."""
        self._keeper._buffers = self._buffers
        try:
            self._keeper._save(snapshot)
            self._ledger.flush()
        finally:
            for message, _ in self._ours.receive(0):
                if message["kind"] == "done":
                    assert message["why"] == ""
                    checkpoint = CheckpointId.parse(message["checkpoint"])
                    assert checkpoint is not None
                    self.acknowledged.append(checkpoint)

    def save(self, step: int) -> None:
        """Stage and save the state of a step."""
        capture = state_at(step).capture()
        blobs = {
            names.documents_file(0): capture.documents({"step": step}),
            names.METRICS: f"step,loss\n{step},0.5\n".encode(),
        }
        self._stager.stage(0, CheckpointId(attempt=self._attempt, step=step), capture, blobs, {"reason": "test"})

    def close(self) -> None:
        """Let go of memory and sockets."""
        super().close()
        self._ours.close()
        self._theirs.close()


def begin(store: LocalStore) -> int:
    """Open the store and claim the next attempt, as a training does."""
    attempts.open_store(store, ToldClock(), lambda: "id")
    return attempts.claim(store, Nobody(), ToldClock(), {"pid": 1}, lambda text: None).attempt


def train(disk: LossyDisk) -> list[CheckpointId]:
    """Save four times; return what was acknowledged by the time of the end, or of the crash."""
    store = LocalStore(ROOT, disk)
    saving = None
    try:
        saving = Saving(store, begin(store))
        for step in STEPS:
            saving.save(step)
    except Crash:
        pass
    finally:
        if saving is not None:
            saving.close()
    return saving.acknowledged if saving is not None else []


def contents(store: LocalStore) -> dict[str, bytes]:
    """Read everything that is there."""
    return {name: store.read(name) for name in store.list("")}


@dataclass
class Examiner:
    """Looks at a disk after the power is back. Equal disks are looked at once."""

    examined: int = 0
    _seen: set[Any] = field(default_factory=set)

    def examine(self, disk: LossyDisk, acknowledged: list[CheckpointId], where: str) -> None:
        """Check every promise about the found disk, then train on."""
        store = LocalStore(ROOT, disk)
        found = (frozenset(contents(store).items()), tuple(acknowledged))
        if found in self._seen:
            return
        self._seen.add(found)
        self.examined += 1
        have = committed(store)
        assert set(acknowledged[-2:]) <= set(have), f"{where}: an acknowledged checkpoint is gone"
        assert set(have) - set(acknowledged) <= {_after(acknowledged)}, f"{where}: {have} came from nowhere"
        all_verify(store, where)
        resumes_and_goes_on(store, acknowledged, where)


def _after(acknowledged: list[CheckpointId]) -> CheckpointId:
    """The one that was being saved."""
    return CheckpointId(attempt=1, step=(acknowledged[-1].step if acknowledged else 0) + 10)


def all_verify(store: LocalStore, where: str) -> None:
    """Every byte of every committed checkpoint is what was committed."""
    for checkpoint in committed(store):
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass
        assert checkpoint.manifest in store.list(checkpoint.folder), where


def resumes_and_goes_on(store: LocalStore, acknowledged: list[CheckpointId], where: str) -> None:
    """The next attempt restores the newest acknowledged one or the one after it, saves, and tidies up everything."""
    attempt = begin(store)
    finished = finish_interrupted(store, xxh3)
    state = state_at(0)
    restored = resume(store, xxh3, state, lambda checkpoint, documents: None)
    newest = acknowledged[-1] if acknowledged else None
    if restored is None:
        assert newest is None, f"{where}: nothing restored"
    else:
        step = restored.checkpoint.id.step
        assert restored.refused == (), where
        assert restored.checkpoint.id in (newest, _after(acknowledged)), where
        assert finished in (None, restored.checkpoint.id), where
        assert state.values == state_at(step).values, where
        assert state.progress == {"step": step}, where
        assert restored.metrics == f"step,loss\n{step},0.5\n".encode(), where
    saving = Saving(store, attempt)
    saving.save(NEXT)
    saving.close()
    have = committed(store)
    assert have[-1] == CheckpointId(attempt=attempt, step=NEXT), where
    assert len(have) == (1 if restored is None else 2), f"{where}: {have}"
    all_verify(store, where)
    needed = {c.manifest for c in have}
    for opened in (open_checkpoint(store, xxh3, checkpoint) for checkpoint in have):
        needed |= {opened.id.folder + name for name in opened.manifest.ranks}
        needed |= {name for rank in opened.ranks for name in rank.objects()}
    assert set(store.list(names.CHECKPOINTS)) == needed, f"{where}: leftovers stay"


def test_power_loss_at_any_operation() -> None:
    """After any crash the newest or the next one restores exactly, two stay once there were two, no half shows."""
    disk = LossyDisk()
    assert [c.step for c in train(disk)] == list(STEPS)
    operations = disk.operations
    examiner = Examiner()
    acknowledged_counts = set()
    for operation in range(1, operations + 1):
        disk = LossyDisk()
        disk.crash_at(operation)
        acknowledged = train(disk)
        acknowledged_counts.add(len(acknowledged))
        assert disk.operations == operation, "the operations of a training are not the same every time"
        for survival in Survival:
            where = f"operation {operation} ({disk.history[-1]}), {survival.name}"
            examiner.examine(disk.after_crash(survival), acknowledged, where)
    assert acknowledged_counts == {0, 1, 2, 3, 4}
    assert examiner.examined > operations / 3


def test_the_end_is_durable() -> None:
    """What was acknowledged at the end is there under every survival, and so is what prune removed: gone."""
    disk = LossyDisk()
    acknowledged = train(disk)
    for survival in Survival:
        store = LocalStore(ROOT, disk.after_crash(survival))
        assert committed(store) == acknowledged[-2:]
        all_verify(store, survival.name)


def come_back(disk: LossyDisk) -> list[CheckpointId]:
    """Do what the next attempt does: claim, finish, restore, save, prune; return what was acknowledged meanwhile."""
    store = LocalStore(ROOT, disk)
    saving = None
    try:
        saving = Saving(store, begin(store))
        finish_interrupted(store, xxh3)
        resume(store, xxh3, state_at(0), lambda checkpoint, documents: None)
        saving.save(NEXT)
    except Crash:
        pass
    finally:
        if saving is not None:
            saving.close()
    return saving.acknowledged if saving is not None else []


def crashed_before(operation: str) -> LossyDisk:
    """Train until the power fails at that operation; what was not synced is lost."""
    disk = LossyDisk()
    train(disk)
    disk_again = LossyDisk()
    disk_again.crash_at(disk.history.index(operation) + 1)
    train(disk_again)
    return disk_again


MANIFEST_OF_40 = f"publish {ROOT}/checkpoints/0000000040-a000001/manifest.json"
DELETE_OF_20 = f"unlink {ROOT}/checkpoints/0000000020-a000001/rank.r00000.json"


@pytest.mark.parametrize("first_crash", [MANIFEST_OF_40, DELETE_OF_20])
def test_power_loss_while_coming_back_from_one(first_crash: str) -> None:
    """A second crash, anywhere in claim, finish, restore, save and prune, takes nothing that the first one left."""
    first = crashed_before(first_crash)
    complete = first.after_crash(Survival.SYNCED_ONLY)
    assert [c.step for c in come_back(complete)] == [NEXT]
    for operation in range(1, complete.operations + 1):
        second = first.after_crash(Survival.SYNCED_ONLY)
        second.crash_at(operation)
        acknowledged = come_back(second)
        for survival in (Survival.SYNCED_ONLY, Survival.EVERYTHING):
            where = f"operation {operation} ({second.history[-1]}), {survival.name}"
            store = LocalStore(ROOT, second.after_crash(survival))
            begin(store)
            finish_interrupted(store, xxh3)
            assert len(committed(store)) >= 2, where
            all_verify(store, where)
            state = state_at(0)
            restored = resume(store, xxh3, state, lambda checkpoint, documents: None)
            assert restored is not None
            step = restored.checkpoint.id.step
            assert step in ([NEXT] if acknowledged else [40, NEXT]), where
            assert state.values == state_at(step).values, where
