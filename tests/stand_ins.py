"""Stand-ins for tests of the engine, each behind a port: a state without torch, ranks, a ledger, a store that fails.

What they save goes through the engine's own code: the real Stager, the real write and commit.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from holdfast.engine import commit, write
from holdfast.engine.buffers import StagingBuffer
from holdfast.engine.stage import Stager
from holdfast.errors import StateMismatch
from holdfast.spec import encoding, names
from holdfast.spec.events import Event
from holdfast.spec.leaves import Leaf
from holdfast.spec.names import CheckpointId
from holdfast.spec.ports import Buffer, Clock, Ranks, Store
from holdfast.spec.snapshot import Snapshot
from holdfast.storage.digest import xxh3
from holdfast.testing.clock import ToldClock

Values: TypeAlias = dict[str, dict[str, bytearray]]
Operation: TypeAlias = Literal["create", "read", "read_into", "size", "list", "delete"]


class PlainState:
    """The `State` port without torch: parts of named bytes, each a leaf of dtype uint8."""

    def __init__(self, parts: Mapping[str, Mapping[str, bytes]]) -> None:
        self.values: Values = {part: {k: bytearray(v) for k, v in of.items()} for part, of in parts.items()}
        self.progress: Any = None
        """What was stored beside the tensors, once a checkpoint was loaded."""

    def capture(self, *, overlap: bool = False) -> "PlainCapture":
        """Take hold of everything; the bytes are copied by `copy_into`."""
        return PlainCapture(self.values)

    def before_step(self, wait: Callable[[], None]) -> None:
        """Nothing steps here."""

    def plan(self, documents: Mapping[str, Any], leaves: Mapping[str, Sequence[Leaf]]) -> "PlainPlan":
        """Compare names and lengths."""
        stored = {part: {leaf.name: leaf.nbytes for leaf in of_part} for part, of_part in leaves.items()}
        mine = {part: {name: len(value) for name, value in of.items()} for part, of in self.values.items()}
        if stored != mine:
            raise StateMismatch("", [f"the checkpoint holds {stored}, the run {mine}"])
        return PlainPlan(self, documents)


class PlainCapture:
    """The `Capture` port over a PlainState."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.parts = {part: [Leaf(k, "uint8", (len(v),)) for k, v in of.items()] for part, of in values.items()}

    def documents(self, progress: Mapping[str, Any]) -> bytes:
        """Write the names of the parts and the progress."""
        parts: dict[str, Any] = {part: {} for part in self._values}
        return encoding.dumps({"format": 1, "parts": parts, "progress": encoding.pack(dict(progress))})

    def copy_into(self, targets: Mapping[str, Sequence[memoryview]]) -> bool:
        """Copy the bytes."""
        for part, memories in targets.items():
            for memory, value in zip(memories, self._values[part].values(), strict=True):
                memory[:] = value
        return True

    def copy_rest(self) -> None:
        """Nothing was left."""

    def spoiled(self) -> str:
        """Nothing was."""
        return ""


class PlainPlan:
    """The `RestorePlan` port: the bytes go straight into the state's own memory."""

    def __init__(self, state: PlainState, documents: Mapping[str, Any]) -> None:
        self._state = state
        self._documents = documents

    def target(self, part: str, leaf: Leaf) -> "PlainTarget":
        """The leaf's own memory."""
        return PlainTarget(self._state.values[part][leaf.name])

    def load(self) -> None:
        """Take over what is no tensor."""
        self._state.progress = encoding.unpack(self._documents["progress"])


@dataclass(frozen=True, slots=True)
class PlainTarget:
    """The `Target` port over a bytearray."""

    memory: bytearray

    def buffer(self) -> memoryview:
        """The memory itself."""
        return memoryview(self.memory)

    def filled(self) -> None:
        """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The `Ranks` port: one of so many."""

    rank: int = 0
    size: int = 1


@dataclass(slots=True)
class EventList:
    """The `Ledger` port: a list."""

    events: list[Event] = field(default_factory=list)

    def record(self, event: Event) -> None:
        """Remember it."""
        self.events.append(event)

    def flush(self) -> None:
        """Nothing is pending, ever."""

    def kinds(self) -> list[str]:
        """Name the kinds of the events, in order."""
        return [type(event).__name__ for event in self.events]


@dataclass(slots=True)
class Hindered:
    """A store before whose operations something may happen: `before(operation, name)` may raise, or wait."""

    store: Store
    before: Callable[[Operation, str], None]

    @property
    def url(self) -> str:
        """That of the store behind."""
        return self.store.url

    def create(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Pass on."""
        self.before("create", name)
        self.store.create(name, chunks)

    def read(self, name: str) -> bytes:
        """Pass on."""
        self.before("read", name)
        return self.store.read(name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Pass on."""
        self.before("read_into", name)
        return self.store.read_into(name, start, into)

    def size(self, name: str) -> int:
        """Pass on."""
        self.before("size", name)
        return self.store.size(name)

    def list(self, prefix: str, *, shallow: bool = False) -> list[str]:
        """Pass on."""
        self.before("list", prefix)
        return self.store.list(prefix, shallow=shallow)

    def delete(self, name: str) -> None:
        """Pass on."""
        self.before("delete", name)
        self.store.delete(name)


class Gate:
    """Something that a store waits at until it is opened, and that tells when somebody waits."""

    DEADLINE_S = 20.0

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def wait_here(self) -> None:
        """Wait until the gate opens."""
        self._reached.set()
        assert self._open.wait(self.DEADLINE_S), "nobody opened the gate"

    def wait_for_arrival(self) -> None:
        """Wait until somebody stands at the gate."""
        assert self._reached.wait(self.DEADLINE_S), "nobody came to the gate"

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._open.set()


class AtOnce:
    """A keeper's work in the trainer's own thread: what a Stager submits is written when `submit` returns."""

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self.busy_slots: set[int] = set()
        self._store = store
        self._ranks = ranks
        self._buffers: dict[int, StagingBuffer] = {}

    def register(self, slot: int, buffer: StagingBuffer) -> None:
        """Remember where a slot's memory is."""
        self._buffers[slot] = buffer

    def submit(self, snapshot: Snapshot) -> None:
        """Write the files and the rank's manifest."""
        memory = self._buffers[snapshot.slot].memory
        manifest = write.write_files(self._store, xxh3, self._ranks, snapshot, memory)
        write.write_rank_manifest(self._store, xxh3, manifest)

    def close(self) -> None:
        """Let go of the memory."""
        for buffer in self._buffers.values():
            buffer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What `save` puts into a checkpoint beside the state."""

    metrics: bytes = b"step,loss\n1,0.5\n"
    config: bytes = b"lr: 0.1\n"
    progress: Mapping[str, Any] = field(default_factory=lambda: {"note": "tuple", "seen": (1, 2)})
    about: Mapping[str, Any] = field(default_factory=lambda: {"reason": "test"})
    ranks: Rank = field(default_factory=Rank)


def write_only(store: Store, checkpoint: CheckpointId, state: PlainState, extra: Written | None = None) -> None:
    """Write everything of a checkpoint up to this rank's manifest, and do not commit it."""
    extra = extra or Written()
    link = AtOnce(store, extra.ranks)
    stager = Stager(link, extra.ranks, ToldClock(), slots=1)  # type: ignore[arg-type]
    capture = state.capture()
    blobs = {names.documents_file(extra.ranks.rank): capture.documents(extra.progress)}
    if extra.ranks.rank == 0:
        blobs |= {names.METRICS: extra.metrics, names.CONFIG: extra.config}
    stager.stage(0, checkpoint, capture, blobs, extra.about)
    link.close()


def save(store: Store, checkpoint: CheckpointId, state: PlainState, extra: Written | None = None) -> CheckpointId:
    """Write and commit one checkpoint; return its name."""
    write_only(store, checkpoint, state, extra)
    clock: Clock = ToldClock()
    commit.commit(store, xxh3, clock, checkpoint, (extra or Written()).ranks.size)
    return checkpoint


def some_state(seed: int = 0) -> PlainState:
    """Make a state of two parts whose bytes depend on the seed."""
    return PlainState(
        {
            "model": {"weight": bytes((seed + 7 * i) % 256 for i in range(300)), "bias": bytes([seed % 256] * 12)},
            "optimizer": {"0.exp_avg": bytes((seed * 3 + i) % 256 for i in range(100))},
        }
    )
