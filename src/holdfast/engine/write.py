"""Write a snapshot: large straight passes over memory, digested by a thread of its own meanwhile.

Rule 1: objects are written once, under their final unique name, and never changed.
    (tests/crash/test_save_and_prune.py)
Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
    (tests/crash/test_save_and_prune.py)

Here it is the rank's manifest that comes last; it alone makes no checkpoint, see engine/commit. Leaves that did not
change since the previous checkpoint are referred to where they are; see decide/reference for which.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..decide.reference import Unchanged, refer_to
from ..spec import names
from ..spec.leaves import CHUNK_BYTES, PAGE_BYTES, Leaf, chunks_of, lay_out
from ..spec.manifest import Blob, PartFile, RankManifest, StoredLeaf
from ..spec.ports import Buffer, Digest, Ranks, Store
from ..spec.snapshot import Snapshot, Span


@dataclass(frozen=True, slots=True)
class _Part:
    """One part's place in the staging buffer, and its digests as they are computed."""

    name: str
    file: str
    memory: memoryview
    leaves: Sequence[tuple[Leaf, int]]
    """In file order, with their offsets."""
    header: Future[str]
    digests: Sequence[list[Future[str]]]

    @property
    def header_bytes(self) -> int:
        return self.leaves[0][1]


def write_files(
    store: Store,
    digest: Digest,
    ranks: Ranks,
    snapshot: Snapshot,
    memory: memoryview,
    previous: RankManifest | None = None,
) -> RankManifest:
    """Write every file of a snapshot; all are durable when this returns.

    Args:
        memory: the staging buffer; not changed meanwhile.
        previous: what this rank wrote for the newest committed checkpoint, which may be referred to.

    Raises: StoreError.
    """
    folder = snapshot.checkpoint.folder
    known = {(s.part, s.leaf.name): s for s in previous.leaves} if previous is not None else {}
    files: dict[str, PartFile] = {}
    leaves: list[StoredLeaf] = []
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-digest") as digester:
        parts = [_begin(digester, digest, snapshot, memory, name) for name in snapshot.parts]
        blobs = {span.name: _digests(digester, digest, _slice(memory, span)) for span in snapshot.blobs}
        for part in parts:
            referred = _unchanged(part, known) if known else {}
            written, stored = _write_part(store, digest, folder, part, referred)
            files.update(written)
            leaves += stored
        for span in snapshot.blobs:
            store.create(folder + span.name, _pieces(_slice(memory, span)))
        sizes = {span.name: span.nbytes for span in snapshot.blobs}
        return RankManifest(
            checkpoint=snapshot.checkpoint,
            rank=ranks.rank,
            world_size=ranks.size,
            step=snapshot.step,
            parts=files,
            blobs={name: Blob(nbytes=sizes[name], digests=_wait(futures)) for name, futures in blobs.items()},
            leaves=tuple(leaves),
        )


def write_rank_manifest(store: Store, digest: Digest, manifest: RankManifest) -> None:
    """Say what this rank wrote; durable when this returns. Raises: StoreError."""
    name = manifest.checkpoint.folder + names.rank_manifest_file(manifest.rank)
    store.create(name, [manifest.to_bytes(digest)])


def _begin(digester: ThreadPoolExecutor, digest: Digest, snapshot: Snapshot, memory: memoryview, name: str) -> _Part:
    span = snapshot.parts[name]
    mine = _slice(memory, span)
    # An empty leaf begins where the next one does.
    in_file_order = sorted(snapshot.leaves[name], key=lambda entry: (entry[1], entry[0].nbytes))
    return _Part(
        name=name,
        file=span.name,
        memory=mine,
        leaves=in_file_order,
        header=digester.submit(digest, mine[: in_file_order[0][1]]),
        digests=[_digests(digester, digest, mine[start : start + leaf.nbytes]) for leaf, start in in_file_order],
    )


def _unchanged(part: _Part, known: dict[tuple[str, str], StoredLeaf]) -> dict[str, StoredLeaf]:
    """Leaves to refer to, by name. Waits for this part's digests, while those of later parts are computed."""
    same: dict[str, StoredLeaf] = {}
    for (leaf, _), futures in zip(part.leaves, part.digests, strict=True):
        old = known.get((part.name, leaf.name))
        if old is not None and old.leaf == leaf and old.lengths == leaf.shape and old.digests == _wait(futures):
            same[leaf.name] = old
    chosen = refer_to(
        (Unchanged(name, old.leaf.nbytes, old.file) for name, old in same.items()),
        sum(leaf.nbytes for leaf, _ in part.leaves),
    )
    return {name: old for name, old in same.items() if name in chosen}


def _write_part(
    store: Store, digest: Digest, folder: str, part: _Part, referred: dict[str, StoredLeaf]
) -> tuple[dict[str, PartFile], list[StoredLeaf]]:
    """Write the part's file, without what is referred to; no file at all when nothing is left."""
    name = folder + part.file
    if not referred:
        store.create(name, _pieces(part.memory))
        described = PartFile(
            nbytes=len(part.memory), header_bytes=part.header_bytes, header_digest=part.header.result()
        )
        starts = {leaf.name: start for leaf, start in part.leaves}
    else:
        fresh = [(leaf, start) for leaf, start in part.leaves if leaf.name not in referred]
        image = lay_out([leaf for leaf, _ in fresh])
        starts = {leaf.name: start for (leaf, _), start in zip(fresh, image.starts, strict=True)}
        described = PartFile(nbytes=image.nbytes, header_bytes=len(image.header), header_digest=digest(image.header))
        if fresh:
            store.create(name, _gathered(part.memory, image.header, fresh))
    stored = [
        referred.get(leaf.name)
        or StoredLeaf(
            part=part.name,
            leaf=leaf,
            offset=(0,) * len(leaf.shape),
            lengths=leaf.shape,
            file=name,
            start=starts[leaf.name],
            digests=_wait(futures),
        )
        for (leaf, _), futures in zip(part.leaves, part.digests, strict=True)
    ]
    return ({part.file: described} if starts else {}), stored


def _gathered(memory: memoryview, header: bytes, fresh: Sequence[tuple[Leaf, int]]) -> Iterator[Buffer]:
    """The file of the leaves that changed: they keep their order, so only the gaps between them are left out."""
    yield header
    for leaf, start in fresh:
        yield memory[start : start + leaf.nbytes]


def _pieces(memory: memoryview) -> Iterator[memoryview]:
    """Cut into large pieces that begin on a page, so that a store may write them past the page cache."""
    step = CHUNK_BYTES - CHUNK_BYTES % PAGE_BYTES
    return (memory[start : start + step] for start in range(0, len(memory), step))


def _digests(digester: ThreadPoolExecutor, digest: Digest, memory: memoryview) -> list[Future[str]]:
    return [digester.submit(digest, memory[start:end]) for start, end in chunks_of(len(memory))]


def _wait(futures: list[Future[str]]) -> tuple[str, ...]:
    return tuple(future.result() for future in futures)


def _slice(memory: memoryview, span: Span) -> memoryview:
    return memory[span.offset : span.offset + span.nbytes]
