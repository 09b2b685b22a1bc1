"""Open and verify a committed checkpoint.

Rule 3: every byte is covered by a digest in the manifest; nothing unverified is restored.
    (tests/damage/test_damage.py)
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import Corrupt, Incomplete, NotFound
from ..spec import names
from ..spec.leaves import CHUNK_BYTES, chunks_of
from ..spec.manifest import Blob, Manifest, RankManifest, StoredLeaf
from ..spec.names import CheckpointId
from ..spec.ports import Digest, Store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint whose manifests have been read and found whole."""

    manifest: Manifest
    ranks: tuple[RankManifest, ...]

    @property
    def id(self) -> CheckpointId:
        """Its name."""
        return self.manifest.checkpoint

    @property
    def nbytes(self) -> int:
        """Bytes of the files this checkpoint wrote itself, manifests excluded."""
        return sum(rank.own_bytes for rank in self.ranks)


def committed(store: Store) -> list[CheckpointId]:
    """List the checkpoints whose manifest exists, oldest first. Raises: StoreError."""
    found = (names.checkpoint_of(name) for name in store.list(names.CHECKPOINTS) if name.endswith("/" + names.MANIFEST))
    return sorted(checkpoint for checkpoint in found if checkpoint is not None)


def open_checkpoint(store: Store, digest: Digest, checkpoint: CheckpointId) -> Checkpoint:
    """Read and check the manifests of one checkpoint. Raises: Corrupt, Incomplete, NewerFormat, StoreError."""
    manifest = Manifest.from_bytes(_need(store, checkpoint.manifest), checkpoint.manifest, digest)
    if manifest.checkpoint != checkpoint:
        raise Corrupt(checkpoint.manifest, f"is the manifest of {manifest.checkpoint}")
    ranks = []
    for number, (file, expected) in enumerate(sorted(manifest.ranks.items())):
        name = checkpoint.folder + file
        raw = _need(store, name)
        if digest(raw) != expected:
            raise Corrupt(name, "is not the rank manifest that was committed")
        rank = RankManifest.from_bytes(raw, name, digest)
        if rank.checkpoint != checkpoint or rank.rank != number:
            raise Corrupt(name, f"belongs to rank {rank.rank} of {rank.checkpoint}")
        ranks.append(rank)
    return Checkpoint(manifest, tuple(ranks))


def read_blob(store: Store, digest: Digest, name: str, blob: Blob) -> bytes:
    """Read a file that is no safetensors file, verified. Raises: Corrupt, Incomplete, StoreError."""
    raw = _need(store, name)
    if len(raw) != blob.nbytes:
        raise Corrupt(name, f"has {len(raw)} bytes, {blob.nbytes} were written")
    for (start, end), expected in zip(chunks_of(len(raw)), blob.digests, strict=True):
        if digest(memoryview(raw)[start:end]) != expected:
            raise Corrupt(name, _differs(start, end))
    return raw


def read_documents(store: Store, digest: Digest, rank: RankManifest) -> dict[str, Any]:
    """Read one rank's documents, verified. Raises: Corrupt, Incomplete, StoreError."""
    file = names.documents_file(rank.rank)
    name = rank.checkpoint.folder + file
    if file not in rank.blobs:
        raise Corrupt(name, "is not named by its rank manifest")
    documents = json.loads(read_blob(store, digest, name, rank.blobs[file]))
    assert isinstance(documents, dict)
    return documents


def read_leaf(store: Store, digest: Digest, stored: StoredLeaf, into: memoryview) -> None:
    """Read one leaf's bytes straight into memory and verify them there, chunk by chunk.

    Raises: Corrupt, Incomplete, StoreError; `into` then holds rubbish.
    """
    for (start, end), expected in zip(chunks_of(stored.leaf.nbytes), stored.digests, strict=True):
        chunk = into[start:end]
        try:
            got = store.read_into(stored.file, stored.start + start, chunk) if end > start else 0
        except NotFound as error:
            raise Incomplete(stored.file) from error
        if got != end - start:
            raise _ends_early(stored)
        if digest(chunk) != expected:
            raise Corrupt(stored.file, f"{stored.part}/{stored.leaf.name}: {_differs(start, end)}")


def verify(store: Store, digest: Digest, checkpoint: Checkpoint, *, deep: bool) -> Iterator[int]:
    """Check every object: names and lengths, and with `deep` every byte. Yields the bytes checked, as it goes.

    Raises: Corrupt, Incomplete, StoreError at the first thing that is wrong.
    """
    for rank in checkpoint.ranks:
        folder = rank.checkpoint.folder
        for file, part in rank.parts.items():
            yield _check_length(store, folder + file, part.nbytes)
            check_header(store, digest, rank, file)
        for file, blob in rank.blobs.items():
            _check_length(store, folder + file, blob.nbytes)
            if deep:
                read_blob(store, digest, folder + file, blob)
            yield blob.nbytes
        for stored in rank.leaves:
            if deep:
                read_leaf(store, digest, stored, memoryview(bytearray(stored.leaf.nbytes)))
                yield stored.leaf.nbytes
            elif not stored.file.startswith(folder):
                _check_reaches(store, stored)


def check_header(store: Store, digest: Digest, rank: RankManifest, file: str) -> None:
    """Check a safetensors file's header against its digest. Raises: Corrupt, Incomplete, StoreError."""
    part = rank.parts[file]
    name = rank.checkpoint.folder + file
    header = memoryview(bytearray(part.header_bytes))
    try:
        got = store.read_into(name, 0, header)
    except NotFound as error:
        raise Incomplete(name) from error
    if got != part.header_bytes or digest(header) != part.header_digest:
        raise Corrupt(name, "its header is not what was committed")


def on_each(steps: Iterator[int], progress: Callable[[int], None]) -> None:
    """Run a verification to its end, telling `progress` the bytes of each step."""
    for nbytes in steps:
        progress(nbytes)


def _check_length(store: Store, name: str, expected: int) -> int:
    size = _need_size(store, name)
    if size != expected:
        raise Corrupt(name, f"has {size} bytes, {expected} were written")
    return 0


def _check_reaches(store: Store, stored: StoredLeaf) -> None:
    if _need_size(store, stored.file) < stored.start + stored.leaf.nbytes:
        raise _ends_early(stored)


def _ends_early(stored: StoredLeaf) -> Corrupt:
    return Corrupt(stored.file, f"ends in the middle of {stored.part}/{stored.leaf.name}")


def _need_size(store: Store, name: str) -> int:
    try:
        return store.size(name)
    except NotFound as error:
        raise Incomplete(name) from error


def _need(store: Store, name: str) -> bytes:
    try:
        return store.read(name)
    except NotFound as error:
        raise Incomplete(name) from error


def _differs(start: int, end: int) -> str:
    where = "" if start == 0 and end < CHUNK_BYTES else f" {start}-{end}"
    return f"the bytes{where} are not what was committed"
