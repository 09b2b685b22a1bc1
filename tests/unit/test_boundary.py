"""A step boundary: what is staged under which name, what waits, what failed."""

import pytest

from holdfast.decide.interval import Cadence
from holdfast.engine.boundary import Boundary, Position
from holdfast.engine.buffers import StagingBuffer
from holdfast.engine.checkpoint import committed, open_checkpoint
from holdfast.engine.history import History
from holdfast.errors import KeeperFailed, NoSpace, Unavailable
from holdfast.spec.events import Committed, SaveDeferred, Staged, WriteFailed
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Gate, Hindered, Operation, some_state
from tests.threaded_keeper import DEADLINE_S, World


def at(step: int, micro: int = 0, samples: int = 0) -> Position:
    """Stand at a step."""
    return Position(step=step, micro=micro, epoch=0, samples=samples)


class Training:
    """One attempt, as far as its boundaries are concerned."""

    def __init__(self, world: World, parent: str | None = None) -> None:
        self.world = world
        self.history = History()
        self.boundary = Boundary(some_state(), self.history, world.link, world.stager, world.clock)
        self.boundary.begin(world.attempt, at(0), parent)
        self.told: list[str] = []

    def save(self, position: Position) -> bool:
        """Save at a boundary."""
        return self.boundary.save(position, {"reason": "test"}, {"step": position.step}, b"")

    def settle(self) -> None:
        """Wait until everything staged is committed or has failed."""
        self.boundary.wait_for_slots(DEADLINE_S, self.told.append, every=True)

    def finish(self) -> None:
        """End the attempt well."""
        self.boundary.finish("finished", 1, "", DEADLINE_S, self.told.append)


def hold_back(gate: Gate, part: str = "/model.") -> Hindered:
    """Make a store whose keeper waits at the gate."""

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and part in name:
            gate.wait_here()

    return Hindered(MemoryStore(), wait)


def test_a_save_that_finds_no_buffer_is_deferred_and_told_once() -> None:
    """Training is not held up: the save is due again at each boundary until a buffer is free; a delay is an event."""
    gates = [Gate(), Gate()]

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name:
            gates[int(name > "checkpoints/0000000005")].wait_here()

    world = World(Hindered(MemoryStore(), wait))
    training = Training(world)
    for first, gate in ((1, gates[0]), (5, gates[1])):
        assert [training.save(at(first + n)) for n in range(4)] == [True, True, False, False]
        gate.open()
        training.settle()
    training.finish()
    assert [e.step for e in world.events.events if isinstance(e, SaveDeferred)] == [3, 7]
    assert [e.step for e in world.events.events if isinstance(e, Staged)] == [1, 2, 5, 6]


def test_several_saves_at_one_step_have_names_of_their_own() -> None:
    """Inside an accumulation, or after more was reported: nothing is overwritten, and the order is kept."""
    world = World(MemoryStore())
    training = Training(world)
    for position in (at(4), at(4, micro=1), at(4, micro=2), at(5)):
        assert training.save(position)
        training.settle()
    training.finish()
    names = [e.checkpoint for e in world.events.events if isinstance(e, Committed)]
    assert names == [
        "0000000004-a000001", "0000000004.01-a000001", "0000000004.02-a000001", "0000000005-a000001",
    ]  # fmt: skip


def test_each_checkpoint_names_its_parent_and_metrics() -> None:
    """The one this attempt resumed from, then the last one it committed; metrics are the newest finite ones."""
    store = MemoryStore()
    training = Training(World(store, attempt=2), parent="0000000004-a000001")
    for step in (5, 6):
        training.history.report(step, {"loss": 1.0 / step, "bad": float("nan")})
        training.save(at(step))
        training.settle()
    training.finish()
    about = [open_checkpoint(store, xxh3, checkpoint).manifest.step for checkpoint in committed(store)]
    assert [a["parent"] for a in about] == ["0000000004-a000001", "0000000005-a000002"]
    assert [a["metrics"] for a in about] == [{"loss": 0.2}, {"loss": 1.0 / 6}]


def test_what_counts_as_saved() -> None:
    """Exactly this position with all that was reported; a new report, another position, or a failure undoes it."""
    full = False

    def no_space(operation: Operation, name: str) -> None:
        if full and operation == "create" and "checkpoints/" in name:
            raise NoSpace(name, "the disk is full")

    training = Training(World(Hindered(MemoryStore(), no_space)))
    assert not training.boundary.is_saved(at(1))
    training.save(at(1))
    assert training.boundary.is_saved(at(1))
    assert not training.boundary.is_saved(at(1, samples=8))
    training.history.report(1, {"loss": 1.0})
    assert not training.boundary.is_saved(at(1))
    training.settle()
    full = True
    training.save(at(2))
    training.settle()
    assert not training.boundary.is_saved(at(2))
    assert training.boundary.failure.endswith("the disk is full")
    assert "SAVE FAILED: 0000000002-a000001 was not committed" in training.told[0]
    training.finish()


def test_a_machine_short_of_memory_is_told_like_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The save fails with the reason, the event is recorded, and the next save works."""
    world = World(MemoryStore())
    training = Training(world)

    def no_memory(nbytes: int) -> StagingBuffer:
        raise Unavailable("a staging buffer", "Cannot allocate memory")

    with monkeypatch.context() as short:
        short.setattr(StagingBuffer, "allocate", no_memory)
        with pytest.raises(Unavailable):
            training.save(at(1))
    assert training.save(at(2))
    training.finish()
    assert [e.step for e in world.events.events if isinstance(e, WriteFailed)] == [1]
    assert [e.step for e in world.events.events if isinstance(e, Staged)] == [2]


def test_the_time_to_durable_shortens_the_interval() -> None:
    """A save that took twenty seconds to commit leaves so much less until the next one is due."""
    gate, clock = Gate(), ToldClock()
    training = Training(World(hold_back(gate), clock=clock))
    training.save(at(1))
    gate.wait_for_arrival()
    clock.advance(20.0)
    gate.open()
    training.settle()
    clock.advance(59.0)
    cadence = Cadence(may_lose_s=100.0)
    assert not training.boundary.decide(cadence, at(2), None).save
    clock.advance(1.0)
    assert training.boundary.decide(cadence, at(2), None).save
    training.finish()


def test_waiting_for_a_buffer_has_a_deadline() -> None:
    """Rule 9: the wait says which keeper did not free one."""
    gate, clock = Gate(), ToldClock()
    world = World(hold_back(gate), clock=clock, slots=1)
    training = Training(world)
    training.save(at(1))
    gate.wait_for_arrival()
    look = world.keepers[-1].poll

    def look_after_a_while() -> int | None:
        clock.advance(4.0)
        return look()

    world.keepers[-1].poll = look_after_a_while  # type: ignore[method-assign]
    with pytest.raises(KeeperFailed, match=r"the keeper \(process 1001\) freed no buffer in 6 s"):
        training.boundary.wait_for_slots(6.0, training.told.append)
    gate.open()
    training.finish()
