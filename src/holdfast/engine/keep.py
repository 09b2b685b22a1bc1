"""The keeper's loop: hold snapshots, write and commit them, prune, record, outlive the trainer.

Rule 7: losing the ledger never loses a checkpoint; losing the dashboard loses nothing.
    (tests/unit/test_keep.py)

One thread listens to the trainer, one writes. The trainer's death is an ordinary message: what was staged is written
and committed, the verdict is recorded, and the keeper ends.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..decide.retention import Keep
from ..errors import CheckpointError, NewerFormat, StoreError, Superseded
from ..spec import names
from ..spec.attempts import Ending, Verdict
from ..spec.events import (
    AttemptEnded,
    Committed,
    Event,
    KeeperStarted,
    Pruned,
    PruneFailed,
    WriteFailed,
    Written,
    from_json,
)
from ..spec.manifest import RankManifest
from ..spec.names import CheckpointId
from ..spec.ports import Clock, Digest, Ledger, Ranks, Store
from ..spec.snapshot import Snapshot
from . import commit, write
from .attempts import record_verdict
from .buffers import StagingBuffer
from .channel import Channel, ChannelClosed
from .checkpoint import committed, open_checkpoint
from .history import metric_at
from .prune import Rules, discard, prune

_LOOK_EVERY_S = 0.1
_FLUSH_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world, as the keeper is handed it."""

    store: Store
    digest: Digest
    ranks: Ranks
    ledger: Ledger
    clock: Clock
    trainer_alive: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What the trainer asked this keeper to do."""

    attempt: int
    number: int
    """Which keeper of the attempt this is, from 1."""
    pid: int
    keep: Keep


class Keeper:
    """Runs until the trainer has finished or died and everything staged is dealt with."""

    def __init__(self, ports: Ports, duty: Duty, channel: Channel) -> None:
        self._ports = ports
        self._duty = duty
        self._channel = channel
        self._buffers: dict[int, StagingBuffer] = {}
        self._snapshots: queue.Queue[Snapshot | None] = queue.Queue()
        self._newest: CheckpointId | None = None
        self._previous: RankManifest | None = None
        self._refused: frozenset[CheckpointId] = frozenset()
        self._superseded = False
        self._flushed_at = float("-inf")  # what a predecessor and a start-up had to say is written at once

    def run(self) -> None:
        """Listen until the end of the attempt. Raises nothing the trainer could not be told."""
        now = self._ports.clock.time()
        self._record(KeeperStarted(at=now, number=self._duty.number, pid=self._duty.pid))
        self._tell({"kind": "ready"})
        # a daemon: if the listener fails, the process ends instead of waiting for ever, and another one takes over
        writer = threading.Thread(target=self._write_loop, name="holdfast-writer", daemon=True)
        writer.start()
        last_word = self._listen(writer)
        self._snapshots.put(None)
        writer.join()
        self._end(last_word)

    def _listen(self, writer: threading.Thread) -> Mapping[str, Any]:
        """Take messages until the trainer says how it ended, or is gone; return its last word."""
        while writer.is_alive():
            try:
                messages = self._channel.receive(_LOOK_EVERY_S)
            except ChannelClosed:
                return {"ending": "killed", "step": None, "detail": "the process closed its connection without a word"}
            for message, fds in messages:
                if message["kind"] == "finish":
                    return message
                self._take(message, fds)
            self._flush_ledger()
            if not messages and not self._ports.trainer_alive():
                return {"ending": "killed", "step": None, "detail": "the process vanished without a word"}
        raise SystemExit("the writer thread died")  # its traceback is on stderr; the trainer starts another keeper

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["kind"] == "buffer":
            old = self._buffers.pop(message["slot"], None)
            if old is not None:
                old.close()
            self._buffers[message["slot"]] = StagingBuffer(fds[0], message["nbytes"])
        elif message["kind"] == "stage":
            self._snapshots.put(Snapshot.from_json(message["snapshot"]))
        elif message["kind"] == "refused":
            parsed = map(CheckpointId.parse, message["checkpoints"])
            self._refused = frozenset(checkpoint for checkpoint in parsed if checkpoint is not None)
        elif message["kind"] == "event":
            self._record(from_json(message["event"]))

    def _write_loop(self) -> None:
        while (snapshot := self._snapshots.get()) is not None:
            self._save(snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        """Turn one snapshot into a checkpoint, or say why not. The slot is free afterwards either way."""
        memory = self._buffers[snapshot.slot].memory
        name = str(snapshot.checkpoint)
        why = ""
        try:
            if self._superseded:
                raise Superseded(self._duty.attempt, self._duty.attempt + 1)
            self._write_and_commit(snapshot, memory)
        except Superseded as error:
            self._superseded = True
            why = str(error)
        except (StoreError, CheckpointError) as error:
            why = str(error)
        now = self._ports.clock.time()
        if why:
            self._record(WriteFailed(at=now, checkpoint=name, step=snapshot.checkpoint.step, why=why))
            if not self._superseded:  # the newer attempt may be finishing this very commit
                self._clear_away(snapshot.checkpoint)
        metrics = _blob(snapshot, memory, names.METRICS)  # once told, the trainer may fill the slot again
        self._tell(
            {
                "kind": "done",
                "slot": snapshot.slot,
                "checkpoint": name,
                "why": why,
                "superseded": self._superseded,
                "durable_s": now - snapshot.taken_at,
            }
        )
        if not why:
            self._prune(metrics)

    def _write_and_commit(self, snapshot: Snapshot, memory: memoryview) -> None:
        ports, checkpoint = self._ports, snapshot.checkpoint
        began = ports.clock.monotonic()
        if checkpoint.manifest not in ports.store.list(checkpoint.folder):
            discard(ports.store, checkpoint)  # an earlier keeper of this attempt may have died in the middle of it
            previous = self._previous or self._find_previous()
            manifest = write.write_files(ports.store, ports.digest, ports.ranks, snapshot, memory, previous)
            write.write_rank_manifest(ports.store, ports.digest, manifest)
            self._record(
                Written(
                    at=ports.clock.time(),
                    checkpoint=str(checkpoint),
                    written_bytes=manifest.own_bytes,
                    write_s=ports.clock.monotonic() - began,
                )
            )
            commit.commit(ports.store, ports.digest, ports.clock, checkpoint, ports.ranks.size)
            self._previous = manifest
        self._newest = checkpoint
        now = ports.clock.time()
        self._record(Committed(at=now, checkpoint=str(checkpoint), step=checkpoint.step, lag_s=now - snapshot.taken_at))

    def _find_previous(self) -> RankManifest | None:
        """What this rank wrote for the newest committed checkpoint, if that is sound: it may be referred to."""
        sound = [c for c in committed(self._ports.store) if c not in self._refused]
        try:
            ranks = open_checkpoint(self._ports.store, self._ports.digest, sound[-1]).ranks if sound else ()
        except (CheckpointError, NewerFormat):
            return None
        return next((manifest for manifest in ranks if manifest.rank == self._ports.ranks.rank), None)

    def _clear_away(self, checkpoint: CheckpointId) -> None:
        try:
            discard(self._ports.store, checkpoint)
        except StoreError as error:
            self._record(PruneFailed(at=self._ports.clock.time(), why=str(error)))

    def _prune(self, metrics: bytes) -> None:
        rules = Rules(
            keep=self._duty.keep,
            metric_at=metric_at(metrics, self._duty.keep.metric),
            refused=self._refused,
            writing_from=self._duty.attempt + 1,
        )
        now = self._ports.clock.time()
        try:
            report = prune(self._ports.store, self._ports.digest, rules)
        except (StoreError, NewerFormat) as error:
            self._record(PruneFailed(at=now, why=str(error)))
            self._tell({"kind": "warning", "text": f"old checkpoints could not be pruned: {error}"})
            return
        if report.held_back:
            self._record(PruneFailed(at=now, why=report.held_back))
            self._tell({"kind": "warning", "text": f"old checkpoints were not pruned: {report.held_back}"})
        elif report.deleted:
            gone = tuple(str(checkpoint) for checkpoint in report.retention.let_go)
            self._record(Pruned(at=now, checkpoints=gone, freed_objects=report.deleted))

    def _end(self, last_word: Mapping[str, Any]) -> None:
        ports = self._ports
        now = ports.clock.time()
        ending: Ending = "superseded" if self._superseded else last_word["ending"]
        newest = self._newest or self._committed_by_predecessors()
        step = last_word["step"] if last_word["step"] is not None else (newest.step if newest else 0)
        self._record(AttemptEnded(at=now, attempt=self._duty.attempt, ending=ending, step=step))
        ports.ledger.flush()
        if ports.ranks.rank == 0:
            verdict = Verdict(
                attempt=self._duty.attempt,
                ending=ending,
                step=step,
                checkpoint=str(newest) if newest else None,
                detail=str(last_word["detail"]),
                ended_at=now,
            )
            try:
                record_verdict(ports.store, verdict)
            except StoreError as error:
                self._tell({"kind": "warning", "text": f"the verdict of this attempt could not be written: {error}"})
        self._tell({"kind": "finished"})

    def _committed_by_predecessors(self) -> CheckpointId | None:
        """The newest checkpoint of this attempt, which an earlier keeper may have committed before it died."""
        try:
            mine = [c for c in committed(self._ports.store) if c.attempt == self._duty.attempt]
        except StoreError:
            return None
        return mine[-1] if mine else None

    def _flush_ledger(self) -> None:
        now = self._ports.clock.monotonic()
        if now - self._flushed_at >= _FLUSH_EVERY_S:
            self._flushed_at = now
            self._ports.ledger.flush()

    def _record(self, event: Event) -> None:
        self._ports.ledger.record(event)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed:
            return  # the trainer is gone; the listener finds out by itself, and the work goes on


def _blob(snapshot: Snapshot, memory: memoryview, name: str) -> bytes:
    for span in snapshot.blobs:
        if span.name == name:
            return bytes(memory[span.offset : span.offset + span.nbytes])
    return b""
