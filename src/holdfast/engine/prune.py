"""Delete what retention lets go, and what interrupted saves left behind.

Rule 5: only prune deletes, and never below two verified checkpoints; a newer one is committed before an older one goes.
    (tests/crash/test_save_and_prune.py, tests/unit/test_prune.py)

Order: the manifest first, so that what goes is no checkpoint any more; then its other objects, unless another
checkpoint's manifest points into them.
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ..decide.retention import Candidate, Keep, Retention, judge
from ..errors import AlreadyExists, CheckpointError, NewerFormat, NoSuchCheckpoint, NotFound, StoreError
from ..spec import names
from ..spec.manifest import Manifest
from ..spec.names import CheckpointId
from ..spec.ports import Digest, Store
from .checkpoint import committed, open_checkpoint, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What a prune did, or, as a dry run, would do."""

    retention: Retention
    leftovers: tuple[str, ...]
    """Objects of saves that were never committed."""
    deleted: int
    """Objects that went."""
    held_back: str
    """Why nothing was deleted although something should go; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a prune is told."""

    keep: Keep
    metric_at: Callable[[int], float | None]
    """The value of `keep.metric` that belongs to a step."""
    refused: Collection[CheckpointId] = ()
    writing_from: int = 0
    """Attempts from this number on may be writing at this moment; their unfinished saves are left alone. 0: none."""
    dry_run: bool = False
    deep: bool = False
    """Read every byte of the two newest survivors before anything goes, not only manifests, lengths and headers."""


def prune(store: Store, digest: Digest, rules: Rules) -> PruneReport:
    """Apply retention and tidy up. Raises: StoreError; a later prune takes up where this one stopped."""
    listed = store.list(names.CHECKPOINTS)
    existing = committed(store)
    retention = weigh(store, digest, existing, rules)
    kept = [checkpoint for checkpoint, _ in retention.kept]
    referenced, unreadable = _referenced(store, digest, kept)
    leftovers = tuple(name for name in listed if _is_leftover(name, existing, referenced, rules.writing_from))
    held_back = _doubt(store, digest, rules, retention) or unreadable
    deleted = 0
    if not rules.dry_run and not held_back:
        for name in _doomed(listed, retention.let_go, referenced):
            store.delete(name)
            deleted += 1
        for name in _in_order_of_going(leftovers):
            store.delete(name)
            deleted += 1
    return PruneReport(retention=retention, leftovers=leftovers, deleted=deleted, held_back=held_back)


def weigh(store: Store, digest: Digest, existing: Iterable[CheckpointId], rules: Rules) -> Retention:
    """Tell what stays by the rules and why, and what goes; nothing is changed. Raises: StoreError."""
    return judge(rules.keep, _candidates(store, digest, existing, rules))


def discard(store: Store, checkpoint: CheckpointId) -> None:
    """Remove what a failed save of this very process left behind. Never touches a committed one. Raises: StoreError."""
    listed = store.list(checkpoint.folder)
    if checkpoint.manifest not in listed:
        for name in _in_order_of_going(listed):
            store.delete(name)


def pin(store: Store, checkpoint: CheckpointId) -> None:
    """Keep a checkpoint whatever the rules say. Raises: NoSuchCheckpoint, StoreError."""
    existing = committed(store)
    if checkpoint not in existing:
        raise NoSuchCheckpoint(str(checkpoint), [str(c) for c in existing])
    try:
        store.create(checkpoint.pin, [json.dumps({"format": 1, "checkpoint": str(checkpoint)}).encode() + b"\n"])
    except AlreadyExists:
        return


def unpin(store: Store, checkpoint: CheckpointId) -> None:
    """Leave a checkpoint to the rules again. Raises: StoreError."""
    store.delete(checkpoint.pin)


def pinned(store: Store) -> set[CheckpointId]:
    """Tell which checkpoints are pinned. Raises: StoreError."""
    found = (CheckpointId.parse(n.removeprefix(names.PINS).removesuffix(".json")) for n in store.list(names.PINS))
    return {checkpoint for checkpoint in found if checkpoint is not None}


def _candidates(store: Store, digest: Digest, existing: Iterable[CheckpointId], rules: Rules) -> list[Candidate]:
    pins = pinned(store)
    return [
        Candidate(checkpoint=c, metric=_metric(store, digest, c, rules), pinned=c in pins, refused=c in rules.refused)
        for c in existing
    ]


def _metric(store: Store, digest: Digest, checkpoint: CheckpointId, rules: Rules) -> float | None:
    """Prefer what the checkpoint says itself: the newest history may be that of a branch that left it behind."""
    if rules.keep.metric is None:
        return None
    try:
        manifest = Manifest.from_bytes(store.read(checkpoint.manifest), checkpoint.manifest, digest)
    except (CheckpointError, NewerFormat, NotFound):
        return None
    own: float | None = manifest.step.get("metrics", {}).get(rules.keep.metric)
    return own if own is not None else rules.metric_at(checkpoint.step)


def _referenced(store: Store, digest: Digest, kept: Iterable[CheckpointId]) -> tuple[set[str], str]:
    """Objects that surviving manifests point to, and why that is not known for sure (empty when it is)."""
    objects: set[str] = set()
    for checkpoint in kept:
        try:
            for rank in open_checkpoint(store, digest, checkpoint).ranks:
                objects |= rank.objects()
        except (CheckpointError, NewerFormat) as error:
            return objects, f"{error}; nothing is deleted while what it refers to is unknown"
    return objects, ""


def _doubt(store: Store, digest: Digest, rules: Rules, retention: Retention) -> str:
    """Why the floor of two is in doubt; empty when the two newest survivors stand, or nothing would go."""
    if not retention.let_go:
        return ""
    for checkpoint in [c for c, _ in retention.kept if c not in rules.refused][-2:]:
        try:
            for _ in verify(store, digest, open_checkpoint(store, digest, checkpoint), deep=rules.deep):
                pass
        except (CheckpointError, NewerFormat, StoreError) as error:
            return f"{checkpoint} does not verify ({error})"
    return ""


def _doomed(listed: list[str], let_go: Iterable[CheckpointId], referenced: set[str]) -> list[str]:
    doomed: list[str] = []
    for checkpoint in let_go:
        mine = [name for name in listed if names.checkpoint_of(name) == checkpoint and name not in referenced]
        doomed.extend(_in_order_of_going(mine))
    return doomed


def _in_order_of_going(doomed: Iterable[str]) -> list[str]:
    """Manifest, rank manifests, the rest: nobody can then find all rank manifests and commit what is half deleted."""
    return sorted(doomed, key=lambda name: (not name.endswith(f"/{names.MANIFEST}"), "/rank." not in name))


def _is_leftover(name: str, existing: list[CheckpointId], referenced: set[str], writing_from: int) -> bool:
    checkpoint = names.checkpoint_of(name)
    if checkpoint is None or name in referenced:
        return False
    if writing_from and checkpoint.attempt >= writing_from:
        return False
    if checkpoint in existing:
        return name.endswith(".partial")
    return True
