"""Come back: find, verify, restore, fall back.

Rule 3: every byte is covered by a digest in the manifest; nothing unverified is restored.
    (tests/damage/test_damage.py)
Rule 4: restore refuses rather than guesses, says why, tries the next.
    (tests/damage/test_damage.py)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..decide.fallback import Answer, answer, in_order
from ..errors import CheckpointError, HoldfastError, NoneUsable, StateMismatch, StoreError
from ..spec import names
from ..spec.manifest import RankManifest, StoredLeaf
from ..spec.names import CheckpointId
from ..spec.ports import Digest, RestorePlan, State, Store
from .checkpoint import Checkpoint, committed, open_checkpoint, read_blob, read_documents, read_leaf, verify
from .commit import finish

_READERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A checkpoint that stands in the run's state now."""

    checkpoint: Checkpoint
    documents: Mapping[str, Any]
    metrics: bytes
    """The metric history up to this step, as CSV."""
    refused: tuple[tuple[str, str], ...]
    """Newer checkpoints that were refused, as (name, why), newest first."""
    damaged: tuple[str, ...]
    """Those of them that are damaged for good, not merely out of reach today."""


def finish_interrupted(store: Store, digest: Digest) -> CheckpointId | None:
    """Finish the newest commit that an earlier attempt did not live to make; None when there is none.

    Call it only as the holder of the newest claim. Raises: StoreError.
    """
    done = committed(store)
    newest = done[-1] if done else None
    found = {names.checkpoint_of(name) for name in store.list(names.CHECKPOINTS)}
    for checkpoint in sorted((c for c in found if c is not None), reverse=True):
        if newest is not None and checkpoint <= newest:
            return None
        if finish(store, digest, checkpoint) is not None:
            return checkpoint
    return None


def resume(
    store: Store,
    digest: Digest,
    state: State,
    check: Callable[[Checkpoint, Mapping[str, Any]], None],
    allow: Iterable[str] = (),
) -> Restored | None:
    """Restore the newest checkpoint that verifies; None when nothing was ever committed.

    `check(checkpoint, documents)` may refuse by raising a `Stop` (the config changed, say) before anything is touched.

    Raises: NoneUsable when checkpoints exist and none verifies; whatever `check` raises; StateMismatch; NewerFormat.
    """
    allowed = tuple(allow)
    candidates = in_order(committed(store))
    refused: list[tuple[str, str]] = []
    damaged: list[str] = []
    for candidate in candidates:
        try:
            checkpoint = open_checkpoint(store, digest, candidate)
            documents, metrics = _restore(store, digest, state, checkpoint, check)
        except HoldfastError as error:
            if answer(error, allowed) is Answer.STOP:
                raise
            refused.append((str(candidate), str(error)))
            if isinstance(error, CheckpointError):
                damaged.append(str(candidate))
            continue
        return Restored(
            checkpoint=checkpoint,
            documents=documents,
            metrics=metrics,
            refused=tuple(refused),
            damaged=tuple(damaged),
        )
    if refused:
        raise NoneUsable(store.url, refused)
    return None


def _restore(
    store: Store,
    digest: Digest,
    state: State,
    checkpoint: Checkpoint,
    check: Callable[[Checkpoint, Mapping[str, Any]], None],
) -> tuple[Mapping[str, Any], bytes]:
    for _ in verify(store, digest, checkpoint, deep=False):
        pass
    rank = checkpoint.ranks[0]
    documents = read_documents(store, digest, rank)
    metrics = _read_for_people(store, digest, rank).get(names.METRICS, b"")
    check(checkpoint, documents)
    by_part: dict[str, list[StoredLeaf]] = {part: [] for part in documents["parts"]}
    for stored in rank.leaves:
        by_part.setdefault(stored.part, []).append(stored)
    try:
        plan = state.plan(documents, {part: [s.leaf for s in leaves] for part, leaves in by_part.items()})
        _fill(store, digest, plan, rank.leaves)
        plan.load()
    except StateMismatch as error:
        raise StateMismatch(str(checkpoint.id), error.problems) from error
    return documents, metrics


def _fill(store: Store, digest: Digest, plan: RestorePlan, leaves: Sequence[StoredLeaf]) -> None:
    def one(stored: StoredLeaf) -> None:
        target = plan.target(stored.part, stored.leaf)
        read_leaf(store, digest, stored, target.buffer())
        target.filled()

    with ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-restore") as readers:
        pending = [readers.submit(one, stored) for stored in leaves]
        try:
            for done in pending:
                done.result()
        except (CheckpointError, StoreError):
            readers.shutdown(cancel_futures=True)
            raise


def _read_for_people(store: Store, digest: Digest, rank: RankManifest) -> dict[str, bytes]:
    """Read what stands beside the documents; one wrong byte there, too, is a reason to go on from elsewhere."""
    files = [file for file in rank.blobs if file != names.documents_file(rank.rank)]
    return {file: read_blob(store, digest, rank.checkpoint.folder + file, rank.blobs[file]) for file in files}
