"""The trainer's side of its keeper: deaths, successors, deadlines.

Rule 9: every wait has a deadline and says who is missing.
"""

import itertools
import socket
from collections.abc import Callable

import pytest

from holdfast.engine.channel import Channel
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.link import KeeperLink
from holdfast.engine.restore import resume
from holdfast.errors import KeeperFailed, NoSpace, Superseded
from holdfast.spec import names
from holdfast.spec.events import Event, KeeperLost, StartedFresh
from holdfast.spec.names import CheckpointId
from holdfast.spec.ports import Child
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Gate, Hindered, Operation, save, some_state
from tests.threaded_keeper import DEADLINE_S, World

keepers_die = pytest.mark.filterwarnings("ignore:Exception in thread holdfast-writer")
"""A writer that ends without a word is what these tests are about; elsewhere it fails the test."""


def dies_once(operation: Operation, part: str) -> Callable[[Operation, str], None]:
    """Make a store's hindrance: the first such operation on such a name ends the keeper without a word."""
    left = [1]

    def before(what: Operation, name: str) -> None:
        if what == operation and part in name and left:
            left.pop()
            raise SystemExit

    return before


def sound(store: MemoryStore) -> list[int]:
    """List the committed steps, having verified every byte of each."""
    found = committed(store)
    for checkpoint in found:
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass
    return [checkpoint.step for checkpoint in found]


def test_staged_becomes_committed() -> None:
    """The outcome names the checkpoint, and how long it took to become durable."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, some_state())
    (outcome,) = world.outcomes(1)
    assert (outcome.checkpoint, outcome.why) == ("0000000010-a000001", "")
    assert world.finish() == []
    assert sound(store) == [10]
    assert world.told == []


MOMENTS: list[tuple[Operation, str]] = [
    ("list", "checkpoints/0000000020-a000001/"),
    ("create", "0000000020-a000001/model.r00000.safetensors"),
    ("create", "0000000020-a000001/optimizer.r00000.safetensors"),
    ("create", "0000000020-a000001/documents.r00000.json"),
    ("create", "0000000020-a000001/metrics.csv"),
    ("create", "0000000020-a000001/rank.r00000.json"),
    ("read", "0000000020-a000001/rank.r00000.json"),
    ("size", "attempts/000002.json"),
    ("create", "0000000020-a000001/manifest.json"),
]


@keepers_die
@pytest.mark.parametrize(("operation", "name"), MOMENTS, ids=[f"{o} {n.rpartition('/')[2]}" for o, n in MOMENTS])
def test_a_keeper_that_dies_is_replaced_and_nothing_is_lost(operation: Operation, name: str) -> None:
    """Wherever in a save it dies: another one is started, is given what was not confirmed, and commits it."""
    store = MemoryStore()
    save(store, CheckpointId(attempt=1, step=10), some_state())
    world = World(Hindered(store, dies_once(operation, name)))
    world.stage(20, some_state(2))
    (outcome,) = world.outcomes(1)
    assert (outcome.checkpoint, outcome.why) == ("0000000020-a000001", "")
    world.finish()
    assert sound(store) == [10, 20]
    assert len(world.keepers) == 2
    assert [type(e).__name__ for e in world.events.events].count("KeeperLost") == 1
    assert world.told == [
        "the keeper (process 1001) ended with code 1; it said: nothing; "
        "started another (process 1002) and gave it 0000000020-a000001"
    ]
    state = some_state()
    assert resume(store, xxh3, state, lambda checkpoint, documents: None) is not None
    assert state.values == some_state(2).values


@keepers_die
def test_both_snapshots_are_handed_over_in_order() -> None:
    """Two unconfirmed ones: the successor commits both, the older one first."""
    store, gate = MemoryStore(), Gate()

    def dies_at_the_gate(operation: Operation, name: str) -> None:
        if operation == "create" and "a000001/" in name and len(world.keepers) == 1:
            gate.wait_here()
            raise SystemExit

    world = World(Hindered(store, dies_at_the_gate))
    world.stage(10, some_state(1))
    gate.wait_for_arrival()
    world.stage(20, some_state(2))
    gate.open()
    assert [o.checkpoint for o in world.outcomes(2)] == ["0000000010-a000001", "0000000020-a000001"]
    world.finish()
    assert sound(store) == [10, 20]


@keepers_die
def test_a_keeper_that_dies_after_the_commit_is_not_told_twice() -> None:
    """It dies while pruning: what it confirmed stays confirmed, and the successor goes on."""
    store = MemoryStore()
    world = World(Hindered(store, dies_once("list", "pins/")))
    world.stage(10, some_state(1))
    assert len(world.outcomes(1)) == 1
    world.stage(20, some_state(2))
    assert [o.checkpoint for o in world.outcomes(1)] == ["0000000020-a000001"]
    world.finish()
    assert sound(store) == [10, 20]


def test_a_keeper_that_dies_at_the_end_is_replaced_too() -> None:
    """`finish` is said again to the successor, which writes what is left and the verdict."""
    store = MemoryStore()
    world = World(Hindered(store, dies_once("create", "attempts/000001.verdict.json")))
    world.stage(10, some_state(1))
    world.finish()
    assert sound(store) == [10]
    assert names.verdict(1) in store.list("")
    assert len(world.keepers) == 2


@keepers_die
def test_a_successor_knows_what_was_refused() -> None:
    """The list of damaged checkpoints outlives the keeper that was told it: prune does not count them."""
    store = MemoryStore()
    made = [save(store, CheckpointId(attempt=1, step=step), some_state(step)) for step in (10, 20)]
    raw = store.read(made[1].folder + names.documents_file(0))
    store.delete(made[1].folder + names.documents_file(0))
    store.create(made[1].folder + names.documents_file(0), [raw[:-1]])
    world = World(Hindered(store, dies_once("create", "a000002/rank.")), attempt=2)
    world.link.refuse([str(made[1])])
    world.stage(15, some_state(3))
    world.outcomes(1)
    world.stage(25, some_state(4))
    world.finish()
    assert [c.step for c in committed(store)] == [15, 25]


def refuses_to_live(number: int, sock: socket.socket) -> Child:
    """Launch a keeper that is killed before it hears a word."""
    return DeadOnArrival(number)


class DeadOnArrival:
    """The `Child` port: ended by SIGKILL already."""

    def __init__(self, number: int) -> None:
        self.pid = number

    def poll(self) -> int | None:
        """Killed."""
        return -9

    def wait(self, timeout_s: float) -> int | None:
        """Killed."""
        return -9

    def kill(self) -> None:
        """It is dead."""

    def close(self) -> None:
        """Nothing is held."""

    def last_words(self) -> str:
        """None."""
        return ""


def test_five_deaths_in_a_row_are_too_many() -> None:
    """Training stops then, and says how the last one died: saving does not work, and must not be pretended."""
    world = World(MemoryStore(), launch=refuses_to_live)
    for _ in range(4):
        world.link.poll()
    with pytest.raises(KeeperFailed, match=r"died 5 times in a row; the last one \(process 5\) was killed by signal 9"):
        world.link.poll()
    assert len(world.told) == 4
    assert "gave it nothing unwritten" in world.told[0]
    world.link.close()


@keepers_die
def test_a_commit_in_between_starts_the_count_again() -> None:
    """A keeper that is killed now and then, however often, does not stop training."""
    store = MemoryStore()
    deaths = itertools.count()

    def every_first_try(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name and next(deaths) % 2 == 0:
            raise SystemExit

    world = World(Hindered(store, every_first_try))
    for step in range(10, 70, 10):
        world.stage(step, some_state(step))
        world.outcomes(1)
    world.finish()
    assert sound(store) == [50, 60]
    assert len(world.keepers) == 7


class Deaf(DeadOnArrival):
    """A keeper that lives, hears nothing, and holds its connection open."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        super().__init__(number)
        self._sock = sock.dup()
        self.killed = False

    def poll(self) -> int | None:
        """It lives until it is killed."""
        return -9 if self.killed else None

    def wait(self, timeout_s: float) -> int | None:
        """Nobody waits: time is told."""
        return self.poll()

    def kill(self) -> None:
        """Be killed."""
        self.killed = True

    def close(self) -> None:
        """Let go of the connection."""
        self._sock.close()


def test_a_keeper_that_hears_no_more_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keepers must never write one checkpoint: the deaf one is ended before another gets the snapshot."""
    deaf: list[Deaf] = []

    def launch(number: int, sock: socket.socket) -> Child:
        if number > 1:
            assert deaf[0].killed
            return DeadOnArrival(number)
        deaf.append(Deaf(number, sock))
        return deaf[0]

    monkeypatch.setattr(Channel.__init__, "__defaults__", (0.02,))
    world = World(MemoryStore(), launch=launch)
    assert world.link.poll() == []
    for _ in range(100):
        world.link.record(StartedFresh(at=0.0))
        world.link.refuse(["x" * 10_000])
    world.link.poll()
    assert "(process 1) heard no more, did not end, and was killed" in world.told[0]
    world.link.close()


class Unheard(Event):
    """An event that no keeper knows."""


def test_a_keeper_that_stumbles_over_a_message_is_replaced() -> None:
    """A mistake in the listener ends the keeper, and does not leave a deaf one behind."""
    store = MemoryStore()
    world = World(store)
    world.link.record(Unheard(at=0.0))
    world.stage(10, some_state())
    assert [o.why for o in world.outcomes(1)] == [""]
    world.finish()
    assert sound(store) == [10]


def test_superseded_stops_the_trainer() -> None:
    """After a newer claim nothing is written, the trainer is told, and the verdict says so."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, some_state())
    world.outcomes(1)
    store.create(names.claim(2), [b"{}"])
    world.stage(20, some_state())
    with pytest.raises(Superseded, match="attempt 2 has taken over this run"):
        world.outcomes(1)
    world.link.finish("superseded", 20, "", DEADLINE_S)
    assert sound(store) == [10]
    assert b'"ending": "superseded"' in store.read(names.verdict(1))


def test_superseded_is_told_at_the_end_at_the_latest() -> None:
    """A trainer that only learns of it in `finish` is told there: exit 0 would be a lie."""
    store = MemoryStore()
    store.create(names.claim(2), [b"{}"])
    world = World(store)
    world.stage(10, some_state())
    with pytest.raises(Superseded):
        world.finish()


def test_the_deadline_of_finish_names_what_is_unwritten() -> None:
    """Rule 9: a keeper that cannot write in time is not waited for; it goes on by itself."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name:
            gate.wait_here()

    clock = ToldClock()
    world = World(Hindered(store, wait), clock=clock)
    world.stage(10, some_state())
    gate.wait_for_arrival()
    world.keepers[-1].poll = after(lambda: clock.advance(4.0), world.keepers[-1].poll)  # type: ignore[method-assign]
    with pytest.raises(KeeperFailed, match=r"\(process 1001\) did not finish 0000000010-a000001 \(0 MiB\) in 6 s"):
        world.link.finish("finished", 10, "", 6.0)
    gate.open()
    world.wait_for_keeper()
    world.link.close()
    assert sound(store) == [10]


def after(action: Callable[[], None], poll: Callable[[], int | None]) -> Callable[[], int | None]:
    """Let something happen each time that somebody looks whether a keeper lives."""

    def look() -> int | None:
        action()
        return poll()

    return look


def test_who_is_waited_for_is_told() -> None:
    """A wait of more than a few seconds says what it is for."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name:
            gate.wait_here()

    clock = ToldClock()
    world = World(Hindered(store, wait), clock=clock)
    world.stage(10, some_state())
    gate.wait_for_arrival()
    looks = itertools.count()

    def open_at_the_third_look() -> None:
        clock.advance(4.0)
        if next(looks) == 2:
            gate.open()

    world.keepers[-1].poll = after(open_at_the_third_look, world.keepers[-1].poll)  # type: ignore[method-assign]
    world.link.finish("finished", 10, "", 600.0)
    assert world.told == ["waiting for the keeper (process 1001) to write 0000000010-a000001 (0 MiB)"]


def test_a_failed_save_frees_its_slot_and_the_next_one_works() -> None:
    """A full disk costs that save and no other."""
    store = MemoryStore()
    full = True

    def no_space(operation: Operation, name: str) -> None:
        if full and operation == "create" and "optimizer" in name:
            raise NoSpace(name, "the disk is full")

    world = World(Hindered(store, no_space))
    world.stage(10, some_state(1))
    (outcome,) = world.outcomes(1)
    assert outcome.why.endswith("optimizer.r00000.safetensors: the disk is full")
    assert store.list(names.CHECKPOINTS) == []
    assert world.link.busy_slots == set()
    full = False
    world.stage(20, some_state(2))
    world.finish()
    assert sound(store) == [20]
    assert "WriteFailed" in world.events.kinds()


@keepers_die
def test_events_reach_the_ledger() -> None:
    """What the trainer records, the keeper keeps; a lost keeper is among it."""
    world = World(Hindered(MemoryStore(), dies_once("create", "/model.")))
    world.link.record(StartedFresh(at=7.0))
    world.stage(10, some_state())
    world.outcomes(1)
    world.finish()
    assert StartedFresh(at=7.0) in world.events.events
    assert [e.pid for e in world.events.events if isinstance(e, KeeperLost)] == [1001]


def test_a_link_is_handed_its_world() -> None:
    """The first message says what to do, the second what was refused, so that every keeper begins alike."""
    heard: list[socket.socket] = []

    def launch(number: int, sock: socket.socket) -> Child:
        heard.append(sock.dup())
        return DeadOnArrival(number)

    KeeperLink(launch, {"attempt": 3, "url": "x", "keep": {}}, ToldClock(), lambda text: None).close()
    raw = heard[0].recv(1 << 16)
    heard[0].close()
    assert raw.index(b'"kind": "open", "attempt": 3') < raw.index(b'"number": 1') < raw.index(b'"kind": "refused"')
