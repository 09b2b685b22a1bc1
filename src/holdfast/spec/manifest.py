"""The manifests of a checkpoint: JSON both ways, with a seal.

Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
    (tests/crash/test_save_and_prune.py)
Rule 3: every byte is covered by a digest in the manifest; nothing unverified is restored.
    (tests/damage/test_damage.py)

`rank.rNNNNN.json` says what one rank wrote: files, leaves, digests. `manifest.json` names the rank manifests with
their digests, and repeats what describes the step. It can be derived from the rank manifests alone, so whoever finds
them all can finish an interrupted commit.

Every document ends with a seal: the text from the last `,"digest":` on is exactly `,"digest":"<xxh3-128>"}` and a
newline, and the digest is that of all bytes before it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Corrupt, NewerFormat
from .leaves import CHUNK_BYTES, Leaf, chunks_of, leaf_from_json
from .names import CheckpointId
from .ports import Digest

FORMAT = 1
"""The format this Holdfast writes, and the newest it reads."""

_SEAL = b',"digest":"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file that is no safetensors file: documents, config, metrics. Digested in chunks from its start."""

    nbytes: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A safetensors file: its length and the digest of its header; its tensors are covered by the leaves."""

    nbytes: int
    header_bytes: int
    header_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeaf:
    """Where one leaf's bytes are.

    `offset` and `lengths` are the box of the global tensor that this entry holds; with one rank it is the whole.
    `file` is a name in the store; it may belong to an older checkpoint, when the bytes had not changed since.
    """

    part: str
    leaf: Leaf
    offset: tuple[int, ...]
    lengths: tuple[int, ...]
    file: str
    start: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankManifest:
    """What one rank wrote."""

    checkpoint: CheckpointId
    rank: int
    world_size: int
    step: Mapping[str, Any]
    """What describes the step; copied into the manifest from rank 0."""
    parts: Mapping[str, PartFile]
    blobs: Mapping[str, Blob]
    leaves: tuple[StoredLeaf, ...]

    def to_bytes(self, digest: Digest) -> bytes:
        """Write as sealed JSON."""
        files = sorted({stored.file for stored in self.leaves})
        body = {
            "format": FORMAT,
            "checkpoint": str(self.checkpoint),
            "rank": self.rank,
            "world_size": self.world_size,
            "step": dict(self.step),
            "chunk_bytes": CHUNK_BYTES,
            "parts": {
                name: {"bytes": f.nbytes, "header_bytes": f.header_bytes, "header_digest": f.header_digest}
                for name, f in self.parts.items()
            },
            "blobs": {name: {"bytes": b.nbytes, "digests": list(b.digests)} for name, b in self.blobs.items()},
            "files": files,
            "leaves": [_leaf_to_json(stored, files) for stored in self.leaves],
        }
        return seal(body, digest)

    @classmethod
    def from_bytes(cls, raw: bytes, name: str, digest: Digest) -> "RankManifest":
        """Read and check. Raises: Corrupt, NewerFormat."""
        body = unseal(raw, name, digest)
        try:
            checkpoint = CheckpointId.parse(body["checkpoint"])
            if checkpoint is None or body["chunk_bytes"] != CHUNK_BYTES:
                raise ValueError("checkpoint name or chunk size")
            files = body["files"]
            return cls(
                checkpoint=checkpoint,
                rank=body["rank"],
                world_size=body["world_size"],
                step=body["step"],
                parts={
                    k: PartFile(nbytes=f["bytes"], header_bytes=f["header_bytes"], header_digest=f["header_digest"])
                    for k, f in body["parts"].items()
                },
                blobs={k: Blob(nbytes=b["bytes"], digests=tuple(b["digests"])) for k, b in body["blobs"].items()},
                leaves=tuple(_leaf_from_json(entry, files) for entry in body["leaves"]),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(name, f"is not a rank manifest of format {FORMAT} ({error!r})") from error

    @property
    def own_bytes(self) -> int:
        """Bytes of the files written for this checkpoint; what is referred to in older ones does not count."""
        parts = sum(part.nbytes for part in self.parts.values())
        return parts + sum(blob.nbytes for blob in self.blobs.values())

    def objects(self) -> set[str]:
        """Every object this manifest needs, older checkpoints' files included; rank manifests excluded."""
        return {self.checkpoint.folder + name for name in (*self.parts, *self.blobs)} | {s.file for s in self.leaves}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The commit: its existence makes the objects of one step a checkpoint."""

    checkpoint: CheckpointId
    world_size: int
    step: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[str, str] = field(default_factory=dict)
    """File name of each rank manifest, and its digest."""

    def to_bytes(self, digest: Digest) -> bytes:
        """Write as sealed JSON."""
        body = {
            "format": FORMAT,
            "checkpoint": str(self.checkpoint),
            "world_size": self.world_size,
            "step": dict(self.step),
            "ranks": dict(self.ranks),
        }
        return seal(body, digest)

    @classmethod
    def from_bytes(cls, raw: bytes, name: str, digest: Digest) -> "Manifest":
        """Read and check. Raises: Corrupt, NewerFormat."""
        body = unseal(raw, name, digest)
        try:
            checkpoint = CheckpointId.parse(body["checkpoint"])
            if checkpoint is None or not body["ranks"]:
                raise ValueError("checkpoint name or ranks")
            return cls(
                checkpoint=checkpoint, world_size=body["world_size"], step=body["step"], ranks=dict(body["ranks"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(name, f"is not a manifest of format {FORMAT} ({error!r})") from error


def seal(body: Mapping[str, Any], digest: Digest) -> bytes:
    """Write JSON whose last member is the digest of everything before it."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + _SEAL + digest(text).encode() + b'"}\n'


def unseal(raw: bytes, name: str, digest: Digest) -> dict[str, Any]:
    """Check a sealed document and read it. Raises: Corrupt, NewerFormat."""
    text, mark, tail = raw.rpartition(_SEAL)
    if not mark or tail != digest(text).encode() + b'"}\n':
        raise Corrupt(name, "its digest does not match its text")
    try:
        body = json.loads(text + b"}")
    except ValueError as error:
        raise Corrupt(name, "is not JSON") from error
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise Corrupt(name, "has no format number")
    if body["format"] > FORMAT:
        raise NewerFormat(name, body["format"], FORMAT)
    return body


def _leaf_to_json(stored: StoredLeaf, files: list[str]) -> dict[str, Any]:
    return {
        "part": stored.part,
        "name": stored.leaf.name,
        "dtype": stored.leaf.dtype,
        "shape": list(stored.leaf.shape),
        "offset": list(stored.offset),
        "lengths": list(stored.lengths),
        "file": files.index(stored.file),
        "start": stored.start,
        "digests": list(stored.digests),
    }


def _leaf_from_json(entry: Mapping[str, Any], files: list[str]) -> StoredLeaf:
    leaf = leaf_from_json(entry)
    stored = StoredLeaf(
        part=str(entry["part"]),
        leaf=leaf,
        offset=tuple(entry["offset"]),
        lengths=tuple(entry["lengths"]),
        file=str(files[entry["file"]]),
        start=int(entry["start"]),
        digests=tuple(entry["digests"]),
    )
    if len(stored.digests) != len(chunks_of(leaf.nbytes)):
        raise ValueError(f"{stored.part}/{leaf.name} has {len(stored.digests)} digests")
    return stored
