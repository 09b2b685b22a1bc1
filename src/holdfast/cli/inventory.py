"""What a run's store holds: checkpoints that can be read and those that cannot, unfinished saves, attempts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from .. import wiring
from ..decide.retention import Keep
from ..engine.attempts import last_attempt
from ..engine.checkpoint import Checkpoint, committed, open_checkpoint, read_blob, verify
from ..engine.past import PastAttempt, past_attempts
from ..errors import CheckpointError, HoldfastError, NewerFormat
from ..spec import names
from ..spec.names import CheckpointId
from ..spec.ports import Processes, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A run at one moment, looked through quickly: manifests, names, lengths, headers; not every byte."""

    existing: tuple[CheckpointId, ...]
    """Everything committed, oldest first."""
    opened: Mapping[CheckpointId, Checkpoint]
    """Those whose manifests are whole."""
    problems: Mapping[CheckpointId, HoldfastError]
    """What is wrong with those that are damaged or cannot be read."""
    unfinished: Mapping[CheckpointId, tuple[str, ...]]
    """Objects of saves that were never committed."""
    attempts: tuple[PastAttempt, ...]
    living: bool | None
    """Whether a process of the newest attempt still works on the run; None when nobody here can tell."""

    @property
    def damaged(self) -> frozenset[CheckpointId]:
        """Those that no longer are what was committed; one of a newer format is whole."""
        return frozenset(c for c, error in self.problems.items() if isinstance(error, CheckpointError))

    @property
    def newest_sound(self) -> Checkpoint | None:
        """The newest without a known problem."""
        sound = [opened for checkpoint, opened in self.opened.items() if checkpoint not in self.problems]
        return sound[-1] if sound else None

    @property
    def keep(self) -> Keep:
        """The run's own retention rules, as its newest sound checkpoint tells them; the usual ones if none does."""
        told = self.newest_sound.manifest.step.get("keep", {}) if self.newest_sound else {}
        return Keep(**{field.name: told[field.name] for field in fields(Keep) if field.name in told})

    @property
    def writing_from(self) -> int:
        """Attempts from this number on may still write or finish a save, so that it must be left alone.

        That is the newest attempt while it may live, and also a dead one whose last save is written and only lacks its
        commit, which the next resume makes.
        """
        newest = self.attempts[-1].attempt if self.attempts else 0
        done = self.existing[-1] if self.existing else None
        complete = (
            checkpoint.attempt
            for checkpoint, objects in self.unfinished.items()
            if checkpoint.folder + names.rank_manifest_file(0) in objects and (done is None or checkpoint > done)
        )
        return min((newest if self.living is not False else newest + 1, *complete))


def take_inventory(store: Store) -> Inventory:
    """Look through a run. Nothing in it is changed. Raises: StoreError."""
    listed = committed(store)
    opened: dict[CheckpointId, Checkpoint] = {}
    problems: dict[CheckpointId, HoldfastError] = {}
    for checkpoint in listed:
        try:
            opened[checkpoint] = open_checkpoint(store, wiring.xxh3, checkpoint)
            for _ in verify(store, wiring.xxh3, opened[checkpoint], deep=False):
                pass
        except (CheckpointError, NewerFormat) as error:
            problems[checkpoint] = error
    # What a running attempt pruned in the meantime is not damaged, but gone.
    existing = [c for c in committed(store) if c in listed] if problems else listed
    attempts = tuple(past_attempts(store))
    return Inventory(
        existing=tuple(existing),
        opened={c: opened[c] for c in existing if c in opened},
        problems={c: problems[c] for c in existing if c in problems},
        unfinished=_unfinished(store, existing, opened),
        attempts=attempts,
        living=_living(store, wiring.LocalProcesses()),
    )


def read_history(store: Store, inventory: Inventory) -> bytes:
    """Read `metrics.csv` of the newest sound checkpoint; empty without one. Raises: CheckpointError, StoreError."""
    newest = inventory.newest_sound
    blob = newest.ranks[0].blobs.get(names.METRICS) if newest else None
    return read_blob(store, wiring.xxh3, newest.id.folder + names.METRICS, blob) if newest and blob else b""


def _unfinished(
    store: Store, existing: Collection[CheckpointId], opened: Mapping[CheckpointId, Checkpoint]
) -> dict[CheckpointId, tuple[str, ...]]:
    referenced = {name for c in opened.values() for rank in c.ranks for name in rank.objects()}
    found: dict[CheckpointId, list[str]] = {}
    for name in store.list(names.CHECKPOINTS):
        checkpoint = names.checkpoint_of(name)
        if checkpoint is not None and checkpoint not in existing and name not in referenced:
            found.setdefault(checkpoint, []).append(name)
    return {checkpoint: tuple(objects) for checkpoint, objects in sorted(found.items())}


def _living(store: Store, processes: Processes) -> bool | None:
    _, last = last_attempt(store, processes)
    if last is None or last.ended:
        return False
    if last.trainer_alive or last.keepers_alive:
        return True
    return None if last.trainer is None else last.trainer_alive
