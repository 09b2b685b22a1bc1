"""A trainer and its keeper in one process: the real Keeper in a thread, over a real socket pair.

The death of a keeper is played by the store: when it raises SystemExit in the writer's thread, that thread is gone
without a word, as after a kill, and the keeper ends with code 1.
"""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from holdfast.decide.retention import Keep
from holdfast.engine.channel import Channel, ChannelClosed
from holdfast.engine.keep import Duty, Keeper, Ports
from holdfast.engine.link import KeeperLink, Outcome
from holdfast.engine.stage import Stager
from holdfast.spec import names
from holdfast.spec.names import CheckpointId
from holdfast.spec.ports import Child, Clock, Ledger, Store
from holdfast.spec.snapshot import Snapshot
from holdfast.storage.digest import xxh3
from holdfast.testing.clock import ToldClock
from tests.stand_ins import EventList, PlainState, Rank

DEADLINE_S = 20.0


class KeeperInThread:
    """The `Child` port: does what `holdfast.keeper` does, in a thread."""

    def __init__(self, number: int, sock: socket.socket, world: "World") -> None:
        self._number = number
        self._world = world
        self._channel = Channel(sock.dup())
        self._code: int | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"keeper-{number}")
        self._thread.start()

    @property
    def pid(self) -> int:
        """A number that tells the keepers apart."""
        return 1000 + self._number

    def poll(self) -> int | None:
        """Tell the exit code; None while the thread lives."""
        return self._code

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)
        return self._code

    def kill(self) -> None:
        """A thread cannot be killed; no test lets one become deaf."""
        raise AssertionError("a keeper in a thread was to be killed")

    def close(self) -> None:
        """Nothing is held."""

    def last_words(self) -> str:
        """What a dying process would have said."""
        return "; it said: nothing" if self._code else ""

    def _serve(self) -> None:
        code = 1
        try:
            self._keep()
            code = 0
        except (ChannelClosed, SystemExit, KeyError):
            pass
        finally:
            self._code = code
            self._channel.close()

    def _keep(self) -> None:
        opened: list[tuple[dict[str, Any], list[int]]] = []
        while not opened:
            opened = self._channel.receive(DEADLINE_S, most=1)
        message, world = opened[0][0], self._world
        ports = Ports(
            store=world.store,
            digest=xxh3,
            ranks=Rank(),
            ledger=world.ledger,
            clock=world.clock,
            trainer_alive=lambda: world.trainer_lives,
        )
        duty = Duty(attempt=message["attempt"], number=message["number"], pid=self.pid, keep=Keep(**message["keep"]))
        Keeper(ports, duty, self._channel).run()


class World:
    """What is around one attempt: its store, its ledger, the trainer's side of everything."""

    def __init__(
        self,
        store: Store,
        *,
        ledger: Ledger | None = None,
        launch: Callable[[int, socket.socket], Child] | None = None,
        clock: Clock | None = None,
        slots: int = 2,
        attempt: int = 1,
        keep: Keep | None = None,
    ) -> None:
        self.store = store
        self.events = EventList()
        self.ledger: Ledger = ledger or self.events
        self.clock = clock or ToldClock()
        self.trainer_lives = True
        self.attempt = attempt
        self.told: list[str] = []
        self.keepers: list[Child] = []
        self._launch = launch or (lambda number, sock: KeeperInThread(number, sock, self))
        duty = {"url": store.url, "attempt": attempt, "keep": asdict(keep or Keep(last=2))}
        self.link = KeeperLink(self._launch_one, duty, self.clock, self.told.append)
        self.stager = Stager(self.link, Rank(), self.clock, slots)

    def stage(self, step: int, state: PlainState, metrics: bytes = b"step,loss\n1,0.5\n") -> Snapshot:
        """Stage a snapshot in a free slot."""
        slot = self.stager.free_slot()
        assert slot is not None, "no slot is free"
        capture = state.capture()
        blobs = {names.documents_file(0): capture.documents({"step": step}), names.METRICS: metrics}
        checkpoint = CheckpointId(attempt=self.attempt, step=step)
        return self.stager.stage(slot, checkpoint, capture, blobs, {"reason": "test"})

    def outcomes(self, count: int) -> list[Outcome]:
        """Wait for so many outcomes."""
        found: list[Outcome] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            found += self.link.poll(0.05)
            assert time.monotonic() < deadline, f"only {found} came in {DEADLINE_S} s; told: {self.told}"
        return found

    def finish(self) -> list[Outcome]:
        """End the attempt well."""
        return self.link.finish("finished", 999, "", DEADLINE_S)

    def vanish(self) -> None:
        """Be gone without a word, and wait until the keeper has ended."""
        self.trainer_lives = False
        self.link.close()
        self.wait_for_keeper()

    def wait_for_keeper(self) -> None:
        """Wait for the end of the newest keeper."""
        assert self.keepers[-1].wait(DEADLINE_S) is not None, "the keeper does not end"

    def _launch_one(self, number: int, sock: socket.socket) -> Child:
        self.keepers.append(self._launch(number, sock))
        return self.keepers[-1]
