"""The trainer's side of its keeper: start it, talk to it, notice its death, start another one.

Rule 9: every wait has a deadline and says who is missing.
    (tests/unit/test_link.py, tests/scenario/test_keeper_killed.py)
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import KeeperFailed, Superseded
from ..spec.events import Event, KeeperLost, to_json
from ..spec.ports import Child, Clock
from ..spec.snapshot import Snapshot
from .buffers import StagingBuffer
from .channel import Channel, ChannelClosed

_DEATHS_IN_A_ROW = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one snapshot."""

    checkpoint: str
    why: str
    """Why it did not become a checkpoint; empty when it did."""
    durable_s: float
    """Seconds from the snapshot to its commit."""


class KeeperLink:
    """One keeper at a time; whatever it had not confirmed is handed to its successor."""

    def __init__(
        self,
        launch: Callable[[int, socket.socket], Child],
        duty: dict[str, Any],
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        """Start the first keeper; it gets ready while the trainer goes on.

        Args:
            launch: starts keeper number n on one end of a socket, and announces it in the store.
            duty: what every keeper of this attempt is told first.
            tell: says something to the user.
        """
        self._launch = launch
        self._duty = duty
        self._clock = clock
        self._tell = tell
        self._number = 0
        self._deaths = 0
        self._buffers: dict[int, StagingBuffer] = {}
        self._unconfirmed: dict[int, Snapshot] = {}
        self._outcomes: list[Outcome] = []
        self._finish: dict[str, Any] | None = None
        self._finished = False
        self._superseded = False
        self._given_up = False
        self._refused: list[str] = []
        self._attempt = int(duty["attempt"])
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the keeper that serves now."""
        return self._child.pid

    @property
    def busy_slots(self) -> set[int]:
        """Slots whose snapshots are not committed yet."""
        return set(self._unconfirmed)

    def register(self, slot: int, buffer: StagingBuffer) -> None:
        """Give the keeper a slot's memory; an earlier one of that slot is let go by both sides."""
        old = self._buffers.get(slot)
        self._buffers[slot] = buffer
        self._send({"kind": "buffer", "slot": slot, "nbytes": buffer.nbytes}, (buffer.fd,))
        if old is not None:
            old.close()

    def submit(self, snapshot: Snapshot) -> None:
        """Hand over a complete snapshot. Its slot is busy until an outcome arrives."""
        self._unconfirmed[snapshot.slot] = snapshot
        self._send({"kind": "stage", "snapshot": snapshot.to_json()})

    def refuse(self, checkpoints: list[str]) -> None:
        """Tell the keeper which checkpoints a resume found damaged."""
        self._refused = checkpoints
        self._send({"kind": "refused", "checkpoints": checkpoints})

    def record(self, event: Event) -> None:
        """Have the keeper record an event."""
        self._send({"kind": "event", "event": to_json(event)})

    def poll(self, timeout_s: float = 0.0) -> list[Outcome]:
        """Take what the keeper has said, and replace it if it is dead. Returns the outcomes since the last call.

        Raises: Superseded, KeeperFailed.
        """
        self._listen(timeout_s)
        if self._superseded and self._finish is None:
            raise Superseded(self._attempt, self._attempt + 1)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def finish(self, ending: str, step: int, detail: str, deadline_s: float) -> list[Outcome]:
        """Tell the keeper how the attempt ended and wait until everything staged is dealt with.

        Raises: KeeperFailed naming what is still unwritten when the deadline passes; Superseded.
        """
        if self._given_up:
            return self.close()  # there is no keeper to tell, as the user knows
        already_told = self._superseded
        self._finish = {"kind": "finish", "ending": ending, "step": step, "detail": detail}
        self._send(self._finish)
        began = self._clock.monotonic()
        told = began
        outcomes: list[Outcome] = []
        while not self._finished:
            outcomes += self.poll(0.2)
            now = self._clock.monotonic()
            waiting = ", ".join(f"{s.checkpoint} ({s.nbytes >> 20} MiB)" for s in self._unconfirmed.values())
            if now - began > deadline_s:
                raise KeeperFailed(f"the keeper (process {self.pid}) did not finish {waiting} in {deadline_s:g} s")
            if now - told > 5.0 and waiting:
                self._tell(f"waiting for the keeper (process {self.pid}) to write {waiting}")
                told = now
        outcomes += self.close()
        if self._superseded and not already_told:
            raise Superseded(self._attempt, self._attempt + 1)
        return outcomes

    def close(self) -> list[Outcome]:
        """Let go of the connection and the memory. Returns outcomes nobody has taken yet."""
        self._channel.close()
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()
        if self._finished:
            self._child.wait(10.0)
        self._child.close()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _listen(self, timeout_s: float) -> None:
        status = self._child.poll()  # before listening: whatever the dead had said has arrived then
        try:
            for message, _ in self._channel.receive(timeout_s if status is None else 0.0):
                self._take(message)
            if status is not None and not self._finished:
                self._replace(status)
        except ChannelClosed:
            if not self._finished:
                self._replace(self._ended())

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._number += 1
            self._child = self._launch(self._number, theirs)
        self._channel = Channel(ours)
        self._send({"kind": "open", **self._duty, "number": self._number})
        self._send({"kind": "refused", "checkpoints": self._refused})

    def _ended(self) -> int | None:
        """Tell how a keeper ended that hears no more; one that goes on is killed: two must not write one checkpoint."""
        status = self._child.wait(10.0)
        if status is None:
            self._child.kill()
            self._child.wait(10.0)
        return status

    def _replace(self, status: int | None) -> None:
        """Start another keeper and hand it everything that its predecessor had not confirmed."""
        pid, how = self._child.pid, _how(status)
        why = f"{how}{self._child.last_words()}"
        self._channel.close()
        self._child.close()
        self._deaths += 1
        if self._deaths >= _DEATHS_IN_A_ROW:
            self._given_up = True
            raise KeeperFailed(f"the keeper died {self._deaths} times in a row; the last one (process {pid}) {why}")
        self._start()
        for slot, buffer in self._buffers.items():
            self._send({"kind": "buffer", "slot": slot, "nbytes": buffer.nbytes}, (buffer.fd,))
        for snapshot in sorted(self._unconfirmed.values(), key=lambda s: s.checkpoint):
            self._send({"kind": "stage", "snapshot": snapshot.to_json()})
        handed = ", ".join(str(s.checkpoint) for s in self._unconfirmed.values()) or "nothing unwritten"
        self._tell(f"the keeper (process {pid}) {why}; started another (process {self.pid}) and gave it {handed}")
        self.record(KeeperLost(at=self._clock.time(), pid=pid, why=why))
        if self._finish is not None:
            self._send(self._finish)

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "done":
            self._unconfirmed.pop(message["slot"], None)
            self._superseded = self._superseded or message["superseded"]
            self._outcomes.append(Outcome(message["checkpoint"], message["why"], message["durable_s"]))
            self._deaths = 0
        elif message["kind"] == "warning":
            self._tell(message["text"])
        elif message["kind"] == "finished":
            self._finished = True

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        try:
            self._channel.send(message, fds)
        except ChannelClosed:
            return  # found and mended by the next poll, which hands over whatever was not confirmed


def _how(status: int | None) -> str:
    if status is None:
        return "heard no more, did not end, and was killed"
    return f"was killed by signal {-status}" if status < 0 else f"ended with code {status}"
