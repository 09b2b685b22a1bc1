"""Write a snapshot: one pass over memory, digesting while writing.

Rule 1: objects are written once, under their final unique name, and never changed.
Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last. (Here the rank's manifest, which
    alone does not make a checkpoint; see engine/commit.)
    (tests/crash/test_save_and_prune.py)
"""

from collections.abc import Iterator

from ..spec import names
from ..spec.leaves import CHUNK_BYTES, Leaf, chunks_of
from ..spec.manifest import Blob, PartFile, RankManifest, StoredLeaf
from ..spec.ports import Digest, Ranks, Store
from ..spec.snapshot import Snapshot, Span


class _Straight:
    """Passes the bytes of one file on in large pieces; whoever asks for the next piece has them digested first."""

    def __init__(self, memory: memoryview, digest: Digest) -> None:
        self._memory = memory
        self._digest = digest
        self.digests: list[list[str]] = []

    def chunks(self, cuts: list[tuple[int, int]]) -> Iterator[memoryview]:
        """Digest each cut (start, end) chunk by chunk; yield the memory in pieces of about CHUNK_BYTES."""
        self.digests.clear()
        passed = cuts[0][0] if cuts else 0
        reached = passed
        for start, end in cuts:
            digests: list[str] = []
            self.digests.append(digests)
            for low, high in chunks_of(end - start):
                digests.append(self._digest(self._memory[start + low : start + high]))
                reached = start + high
                if reached - passed >= CHUNK_BYTES:
                    yield self._memory[passed:reached]
                    passed = reached
        if reached > passed:
            yield self._memory[passed:reached]


def write_files(store: Store, digest: Digest, ranks: Ranks, snapshot: Snapshot, memory: memoryview) -> RankManifest:
    """Write every file of a snapshot; all are durable when this returns. Raises: StoreError."""
    folder = snapshot.checkpoint.folder
    parts: dict[str, PartFile] = {}
    leaves: list[StoredLeaf] = []
    for part, span in snapshot.parts.items():
        described, stored = _write_part(store, digest, folder, (part, span), snapshot, memory)
        parts[span.name] = described
        leaves.extend(stored)
    blobs = {}
    for span in snapshot.blobs:
        straight = _Straight(memory[span.offset : span.offset + span.nbytes], digest)
        store.create(folder + span.name, straight.chunks([(0, span.nbytes)]))
        blobs[span.name] = Blob(nbytes=span.nbytes, digests=tuple(straight.digests[0]))
    return RankManifest(
        checkpoint=snapshot.checkpoint,
        rank=ranks.rank,
        world_size=ranks.size,
        step=snapshot.step,
        parts=parts,
        blobs=blobs,
        leaves=tuple(leaves),
    )


def write_rank_manifest(store: Store, digest: Digest, manifest: RankManifest) -> None:
    """Say what this rank wrote; durable when this returns. Raises: StoreError."""
    name = manifest.checkpoint.folder + names.rank_manifest_file(manifest.rank)
    store.create(name, [manifest.to_bytes(digest)])


def _write_part(
    store: Store, digest: Digest, folder: str, part: tuple[str, Span], snapshot: Snapshot, memory: memoryview
) -> tuple[PartFile, list[StoredLeaf]]:
    name, span = part
    in_file_order: list[tuple[Leaf, int]] = sorted(snapshot.leaves[name], key=lambda entry: entry[1])
    header_bytes = in_file_order[0][1]
    cuts = [(0, header_bytes)] + [(start, start + leaf.nbytes) for leaf, start in in_file_order]
    straight = _Straight(memory[span.offset : span.offset + span.nbytes], digest)
    store.create(folder + span.name, straight.chunks(cuts))
    header, *digests = straight.digests
    stored = [
        StoredLeaf(
            part=name,
            leaf=leaf,
            offset=(0,) * len(leaf.shape),
            lengths=leaf.shape,
            file=folder + span.name,
            start=start,
            digests=tuple(of_leaf),
        )
        for (leaf, start), of_leaf in zip(in_file_order, digests, strict=True)
    ]
    return PartFile(nbytes=span.nbytes, header_bytes=header_bytes, header_digest=header[0]), stored
