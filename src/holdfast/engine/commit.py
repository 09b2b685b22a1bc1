"""Commit: the meeting place of the ranks is the store, so nothing can hang and anybody can finish.

Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
    (tests/crash/test_save_and_prune.py)
Rule 9: every wait has a deadline and says who is missing.
    (tests/unit/test_commit.py)
"""

from ..decide.commit import Action, judge
from ..errors import AlreadyExists, Corrupt, NewerFormat, NotFound, Superseded, Unavailable
from ..spec import names
from ..spec.manifest import Manifest, RankManifest
from ..spec.names import CheckpointId
from ..spec.ports import Clock, Digest, Store

_LOOK_EVERY_S = 0.05


def commit(store: Store, digest: Digest, clock: Clock, checkpoint: CheckpointId, world_size: int) -> Manifest:
    """Publish a checkpoint whose ranks have all written; wait up to ten minutes for those that have not.

    Committing what is committed already is no error.

    Raises: Superseded when a newer attempt owns the run; Unavailable naming the missing ranks; StoreError.
    """
    deadline = clock.monotonic() + 600.0
    while True:
        present = _present(store, digest, checkpoint, world_size)
        newer = checkpoint.attempt + 1 if _exists(store, names.claim(checkpoint.attempt + 1)) else None
        decision = judge({rank: manifest for rank, (manifest, _) in present.items()}, world_size, newer)
        if decision.action is Action.PUBLISH:
            return _publish(store, digest, present)
        if newer is not None:
            raise Superseded(checkpoint.attempt, newer)
        if decision.action is Action.ABANDON or clock.monotonic() > deadline:
            raise Unavailable(str(checkpoint), f"not committed: {decision.reason}")
        clock.sleep(_LOOK_EVERY_S)


def finish(store: Store, digest: Digest, checkpoint: CheckpointId) -> Manifest | None:
    """Finish a commit that its attempt did not live to make; None when a rank's manifest is missing or unreadable.

    The caller has claimed a newer attempt, so nobody else is writing this checkpoint.
    """
    try:
        first = _read(store, digest, checkpoint, 0)
        if first is None:
            return None
        present = _present(store, digest, checkpoint, first[0].world_size)
    except (Corrupt, NewerFormat):  # not committed, so nobody has to be able to read it
        return None
    decision = judge({rank: manifest for rank, (manifest, _) in present.items()}, first[0].world_size, None)
    return _publish(store, digest, present) if decision.action is Action.PUBLISH else None


def _publish(store: Store, digest: Digest, present: dict[int, tuple[RankManifest, str]]) -> Manifest:
    first = present[0][0]
    manifest = Manifest(
        checkpoint=first.checkpoint,
        world_size=first.world_size,
        step=first.step,
        ranks={names.rank_manifest_file(rank): seal for rank, (_, seal) in sorted(present.items())},
    )
    try:
        store.create(first.checkpoint.manifest, [manifest.to_bytes(digest)])
    except AlreadyExists:
        return Manifest.from_bytes(store.read(first.checkpoint.manifest), first.checkpoint.manifest, digest)
    return manifest


def _present(
    store: Store, digest: Digest, checkpoint: CheckpointId, world_size: int
) -> dict[int, tuple[RankManifest, str]]:
    found = {rank: _read(store, digest, checkpoint, rank) for rank in range(world_size)}
    return {rank: entry for rank, entry in found.items() if entry is not None}


def _read(store: Store, digest: Digest, checkpoint: CheckpointId, rank: int) -> tuple[RankManifest, str] | None:
    name = checkpoint.folder + names.rank_manifest_file(rank)
    try:
        raw = store.read(name)
    except NotFound:
        return None
    return RankManifest.from_bytes(raw, name, digest), digest(raw)


def _exists(store: Store, name: str) -> bool:
    try:
        store.size(name)
    except NotFound:
        return False
    return True
