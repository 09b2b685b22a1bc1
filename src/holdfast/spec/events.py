"""What happens, one frozen dataclass per kind of event. The ledger keeps them as JSON lines.

Instants are seconds since 1970, UTC, in `at`; durations end in `_s`, sizes in `_bytes`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at an instant."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """A process claimed the next attempt."""

    attempt: int
    holder: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFresh(Event):
    """Nothing had been committed; training begins at step 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """Training goes on from a checkpoint. `refused` holds the newer ones as (name, why)."""

    checkpoint: str
    step: int
    level: str
    lowered_by: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    restore_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperStarted(Event):
    """A keeper is ready. `number` counts the keepers of this attempt from 1."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLost(Event):
    """The trainer found its keeper dead and started another one."""

    pid: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Event):
    """A snapshot was copied into a staging buffer; training stood still for `stall_s`."""

    step: int
    reason: str
    state_bytes: int
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDeferred(Event):
    """A save was due and every staging buffer was still being written; it is made as soon as one is free."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Event):
    """All files of a checkpoint are durable; only the manifest is missing."""

    checkpoint: str
    written_bytes: int
    write_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """The manifest is durable: the checkpoint exists. `lag_s` counts from the snapshot."""

    checkpoint: str
    step: int
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed(Event):
    """A save did not become a checkpoint. Older ones are untouched, and the next save tries again."""

    checkpoint: str
    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Event):
    """Retention let checkpoints go."""

    checkpoints: tuple[str, ...]
    freed_objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneFailed(Event):
    """Deleting old checkpoints did not work; nothing newer is affected, and the next prune tries again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Event):
    """The attempt is over."""

    attempt: int
    ending: str
    step: int


KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AttemptStarted, StartedFresh, Resumed, KeeperStarted, KeeperLost, Staged, SaveDeferred, Written, Committed,
        WriteFailed, Pruned, PruneFailed, AttemptEnded,
    )
}  # fmt: skip


def to_json(event: Event) -> dict[str, Any]:
    """Write an event as plain data, its kind under `event`."""
    return {"event": type(event).__name__, **asdict(event)}


def from_json(value: Mapping[str, Any]) -> Event:
    """Read an event back. Raises: KeyError or TypeError when it is not one."""
    kind = KINDS[value["event"]]
    return kind(**{f.name: _freeze(value[f.name]) for f in fields(kind)})


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value
