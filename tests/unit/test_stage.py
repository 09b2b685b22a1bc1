"""Staging: the image in the buffer, two slots, buffers that grow with the state."""

import os
from collections.abc import Mapping, Sequence

import pytest

from holdfast.engine.buffers import StagingBuffer
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.restore import resume
from holdfast.engine.stage import Stager
from holdfast.errors import Unavailable
from holdfast.spec import names
from holdfast.spec.leaves import PAGE_BYTES, Leaf, lay_out
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import AtOnce, Gate, Hindered, Operation, PlainState, Rank, some_state
from tests.threaded_keeper import World


def restored(store: MemoryStore, state: PlainState) -> tuple[int, PlainState]:
    """Resume into a state of that structure; return the step, and the state."""
    found = resume(store, xxh3, state, lambda checkpoint, documents: None)
    assert found is not None
    return found.checkpoint.id.step, state


def test_what_was_staged_is_what_restores() -> None:
    """From a state through buffer, keeper, store and back: the same bytes."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, some_state(1))
    world.finish()
    step, state = restored(store, some_state(0))
    assert step == 10
    assert state.values == some_state(1).values
    assert state.progress == {"step": 10}


def test_a_snapshot_is_by_value() -> None:
    """Training goes on with the same memory at once: what was staged does not change any more."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "/model." in name:
            gate.wait_here()

    world = World(Hindered(store, wait))
    state = some_state(1)
    world.stage(10, state)
    gate.wait_for_arrival()
    for of_part in state.values.values():
        for value in of_part.values():
            value[:] = bytes(len(value))
    gate.open()
    world.finish()
    assert restored(store, some_state(0))[1].values == some_state(1).values


def test_the_buffer_holds_the_files_as_they_are_written() -> None:
    """Each part begins on a page, header first; documents and metrics follow."""
    link = Remembering()
    stager = Stager(link, Rank(), ToldClock(), slots=2)  # type: ignore[arg-type]
    state = some_state(5)
    capture = state.capture()
    snapshot = stager.stage(1, CheckpointId(attempt=1, step=1), capture, {"documents.r00000.json": b"{}", "e": b""}, {})
    memory = link.buffers[1].memory
    assert [span.offset % PAGE_BYTES for span in snapshot.parts.values()] == [0, 0]
    for part, span in snapshot.parts.items():
        image = lay_out(capture.parts[part])
        assert memory[span.offset : span.offset + len(image.header)] == image.header
        for leaf, start in snapshot.leaves[part]:
            at = span.offset + start
            assert memory[at : at + leaf.nbytes] == state.values[part][leaf.name]
    assert [bytes(memory[s.offset : s.offset + s.nbytes]) for s in snapshot.blobs] == [b"{}", b""]
    assert snapshot.slot == 1
    link.close()


class Remembering(AtOnce):
    """Keeps the buffers, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), Rank())
        self.buffers: dict[int, StagingBuffer] = {}
        self.registered: list[int] = []

    def register(self, slot: int, buffer: StagingBuffer) -> None:
        """Remember the buffer."""
        super().register(slot, buffer)
        self.buffers[slot] = buffer
        self.registered.append(slot)

    def submit(self, snapshot: object) -> None:
        """Nothing."""


def stage_bytes(stager: Stager, slot: int, parts: Mapping[str, Sequence[Leaf]], blob: int = 2) -> None:
    """Stage a state of these leaves, all zero."""
    state = PlainState({part: {leaf.name: bytes(leaf.nbytes) for leaf in of} for part, of in parts.items()})
    stager.stage(slot, CheckpointId(attempt=1, step=1), state.capture(), {"documents.r00000.json": bytes(blob)}, {})


def of_size(nbytes: int) -> dict[str, list[Leaf]]:
    """Make the leaves of a state of that size."""
    return {"model": [Leaf("w", "uint8", (nbytes,))]}


def test_buffers_are_reused_and_grow_when_needed() -> None:
    """The same memory serves every save, growing metrics included, until the state outgrows it."""
    link = Remembering()
    stager = Stager(link, Rank(), ToldClock(), slots=2)  # type: ignore[arg-type]
    for blob in (2, 100, 500_000):
        stage_bytes(stager, 0, of_size(1000), blob)
    assert link.registered == [0]
    stage_bytes(stager, 1, of_size(1000))
    stage_bytes(stager, 0, of_size(3 << 20))
    stage_bytes(stager, 0, of_size(1000))
    stage_bytes(stager, 0, of_size(3 << 20), blob=1 << 20)
    assert link.registered == [0, 1, 0]
    link.close()


def test_warming_allocates_every_slot_once() -> None:
    """After `warm` the first saves find their buffers ready."""
    link = Remembering()
    stager = Stager(link, Rank(), ToldClock(), slots=2)  # type: ignore[arg-type]
    stager.warm(of_size(1000))
    stage_bytes(stager, 0, of_size(1000))
    assert link.registered == [0, 1]
    stage_bytes(stager, 1, of_size(1000))
    assert link.registered == [0, 1]
    link.close()


def test_warming_never_replaces_memory_that_waits_to_be_written() -> None:
    """A save before the warm-up is still being written: its slot keeps its memory, the right bytes are committed."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "0000000010" in name:
            gate.wait_here()

    world = World(Hindered(store, wait))
    world.stage(10, some_state(1))
    gate.wait_for_arrival()
    world.stager.warm(some_state(1).capture().parts)
    world.stage(20, some_state(2))
    gate.open()
    world.finish()
    assert [c.step for c in committed(store)] == [10, 20]
    store.delete(committed(store)[1].manifest)
    assert restored(store, some_state(0))[1].values == some_state(1).values


def test_a_warm_up_without_memory_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is short of memory at that moment fails one save, not every later one."""

    def no_memory(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, os.strerror(28))

    link = Remembering()
    stager = Stager(link, Rank(), ToldClock(), slots=2)  # type: ignore[arg-type]
    with monkeypatch.context() as short:
        short.setattr(os, "posix_fallocate", no_memory)
        stager.warm(of_size(1000))
        with pytest.raises(Unavailable, match=r"a staging buffer of 1 MiB: No space left"):
            stage_bytes(stager, 0, of_size(1000))
    stage_bytes(stager, 0, of_size(1000))
    assert link.registered == [0]
    link.close()


def test_another_layout_while_one_is_being_written() -> None:
    """The state gets another structure between two saves: both checkpoints are right, each with its own layout."""
    store, gate = MemoryStore(), Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "0000000010" in name:
            gate.wait_here()

    world = World(Hindered(store, wait))
    small = some_state(1)
    large = PlainState({"model": {"weight": b"\x05" * (3 << 20)}, "ema": {"weight": b"\x06" * 10}})
    world.stage(10, small)
    gate.wait_for_arrival()
    world.stage(20, large)
    gate.open()
    world.outcomes(2)
    world.stage(30, large)
    world.outcomes(1)
    world.stage(40, small)
    world.finish()
    for checkpoint in committed(store):
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass
    assert restored(store, some_state(0))[1].values == small.values
    store.delete(committed(store)[-1].manifest)
    blank = PlainState({part: {k: bytes(len(v)) for k, v in of.items()} for part, of in large.values.items()})
    assert restored(store, blank)[1].values == large.values


def test_parts_without_leaves_have_no_file() -> None:
    """A scheduler is all documents: no empty safetensors file is written for it."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, PlainState({"model": {"w": b"abc"}, "scheduler": {}}))
    world.finish()
    assert not [name for name in store.list(names.CHECKPOINTS) if "scheduler" in name]


def test_a_state_without_any_leaf() -> None:
    """Documents alone make a checkpoint as well."""
    store = MemoryStore()
    world = World(store)
    world.stage(10, PlainState({"scheduler": {}}))
    world.finish()
    assert [c.step for c in committed(store)] == [10]
    assert restored(store, PlainState({"scheduler": {}}))[0] == 10


def test_both_slots_busy() -> None:
    """While two snapshots are being written there is no free slot; a committed one frees its slot."""
    gate = Gate()

    def wait(operation: Operation, name: str) -> None:
        if operation == "create" and "checkpoints/" in name:
            gate.wait_here()

    store = MemoryStore()
    world = World(Hindered(store, wait))
    first = world.stage(10, some_state(1))
    gate.wait_for_arrival()
    second = world.stage(20, some_state(2))
    assert (first.slot, second.slot) == (0, 1)
    assert world.stager.free_slot() is None
    assert world.link.poll() == []
    assert world.stager.free_slot() is None
    gate.open()
    assert [o.checkpoint for o in world.outcomes(2)] == ["0000000010-a000001", "0000000020-a000001"]
    assert world.stager.free_slot() == 0
    world.finish()


def test_one_slot_is_enough() -> None:
    """Where memory is short saves simply wait for each other."""
    store = MemoryStore()
    world = World(store, slots=1)
    for step in (10, 20, 30):
        world.stage(step, some_state(step))
        assert world.stager.free_slot() is None
        world.outcomes(1)
    world.finish()
    assert [c.step for c in committed(store)] == [20, 30]
