"""Export: the parts of a checkpoint as files that need no Holdfast to be read, verified while reading.

=====================  ===========================================  ==================================================
a part                 becomes                                      read it with
=====================  ===========================================  ==================================================
without tensors        `<part>.json`                                any JSON reader; see spec/encoding for the tags
a module               `<part>.safetensors`, every name of its      safetensors.torch.load_file, load_state_dict
                       state_dict, tied weights under each
any other              `<part>.pt`                                  torch.load(weights_only=True), load_state_dict
any other, no torch    `<part>.safetensors` and `<part>.json`,      safetensors; the JSON says where each tensor goes
                       which names the tensors
=====================  ===========================================  ==================================================

Nothing unverified leaves the store: every byte is compared with its digest before it is passed on.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import UsageError
from ..spec import names
from ..spec.leaves import SAFETENSORS_DTYPE, Leaf, lay_out
from ..spec.manifest import StoredLeaf
from ..spec.ports import Digest, Store
from .checkpoint import Checkpoint, read_blob, read_documents, read_leaf

TRAIN_STATE = "train_state.json"

_SAFE_FOR_TORCH = {
    "$tensor", "$dict", "$tuple", "$set", "$ordered", "$counter", "$bytes", "$bytearray", "$float", "$complex",
    "$size", "$dtype", "$device",
}  # fmt: skip
"""Tags of what `torch.load(weights_only=True)` accepts; numpy's and some of Python's containers it refuses."""

Reader: TypeAlias = Callable[[Leaf, memoryview], None]
"""Fills memory with the verified bytes of a leaf."""

TorchWriter: TypeAlias = Callable[[str, Any, Sequence[Leaf], Reader], None]
"""Called with (file, packed tree, leaves, reader); writes the file with torch."""


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint that is exported; `progress` is told the bytes read of each tensor."""

    store: Store
    digest: Digest
    checkpoint: Checkpoint
    progress: Callable[[int], None]

    def read(self, stored: StoredLeaf) -> bytearray:
        """Read one tensor, verified. Raises: Corrupt, Incomplete, StoreError."""
        content = bytearray(stored.leaf.nbytes)
        self.read_into(stored, memoryview(content))
        return content

    def read_into(self, stored: StoredLeaf, into: memoryview) -> None:
        """Read one tensor into memory, verified. Raises: Corrupt, Incomplete, StoreError."""
        read_leaf(self.store, self.digest, stored, into)
        self.progress(stored.leaf.nbytes)


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written, and what it holds."""

    file: str
    holds: str


def export(source: Source, target: Store, write_torch: TorchWriter | None) -> list[Exported]:
    """Write one checkpoint as plain files; without `write_torch` no file needs torch to be read.

    Raises: Corrupt, Incomplete, UsageError for a checkpoint whose tensors are cut over ranks; StoreError.
    """
    rank = source.checkpoint.ranks[0]
    documents = read_documents(source.store, source.digest, rank)
    by_part = _by_part(source.checkpoint)
    files: list[Exported] = []
    for part, document in documents["parts"].items():
        files += _part(source, target, (part, document), by_part.get(part, {}), write_torch)
    target.create(TRAIN_STATE, [_readable(_train_state(source.checkpoint, documents))])
    files.append(Exported(TRAIN_STATE, "step, metrics, versions, flags, config, random number generators"))
    for name, holds in ((names.CONFIG, "config, for people"), (names.METRICS, "one row per step")):
        if name in rank.blobs and rank.blobs[name].nbytes:
            blob = read_blob(source.store, source.digest, rank.checkpoint.folder + name, rank.blobs[name])
            target.create(name, [blob])
            files.append(Exported(name, holds))
    return files


def _by_part(checkpoint: Checkpoint) -> dict[str, dict[str, StoredLeaf]]:
    parts: dict[str, dict[str, StoredLeaf]] = {}
    for rank in checkpoint.ranks:
        for stored in rank.leaves:
            if stored.lengths != stored.leaf.shape:
                what = f"{checkpoint.id}: {stored.part}/{stored.leaf.name} is cut over several ranks"
                raise UsageError(f"{what}; resume the run with one rank, save, and export that checkpoint")
            parts.setdefault(stored.part, {})[stored.leaf.name] = stored
    return parts


def _part(
    source: Source,
    target: Store,
    part: tuple[str, Mapping[str, Any]],
    leaves: Mapping[str, StoredLeaf],
    write_torch: TorchWriter | None,
) -> list[Exported]:
    name, document = part
    kind, tree = document["kind"], document["tree"]
    tensors = f"{len(leaves)} tensors of {kind}"
    if not leaves:
        return [_write_json(target, name, tree, f"the state of {kind}")]
    entries = _flat_entries(tree, leaves) if kind == "module" else None
    if entries is not None:
        file = f"{name}.safetensors"
        _write_safetensors(source, target, file, entries)
        return [Exported(file, f"{len(entries)} tensors of {kind}")]
    if write_torch is not None and _tags(tree) <= _SAFE_FOR_TORCH:
        file = f"{name}.pt"
        stored = [one.leaf for one in leaves.values()]
        write_torch(file, tree, stored, lambda leaf, into: source.read_into(leaves[leaf.name], into))
        return [Exported(file, tensors)]
    file = f"{name}.safetensors"
    _write_safetensors(source, target, file, list(leaves.items()))
    return [
        Exported(file, tensors),
        _write_json(target, name, tree, f"how {file} and all that is no tensor fit together"),
    ]


def _flat_entries(tree: Any, leaves: Mapping[str, StoredLeaf]) -> list[tuple[str, StoredLeaf]] | None:
    """The names of a state_dict, each with its tensor; None when something in it is none, or of an unusual dtype."""
    if not isinstance(tree, dict) or any(s.leaf.dtype not in SAFETENSORS_DTYPE for s in leaves.values()):
        return None
    if not all(isinstance(value, dict) and value.keys() == {"$tensor"} for value in tree.values()):
        return None
    return [(name, leaves[value["$tensor"]]) for name, value in tree.items()]


def _write_safetensors(source: Source, target: Store, file: str, entries: Sequence[tuple[str, StoredLeaf]]) -> None:
    image = lay_out([Leaf(name, stored.leaf.dtype, stored.leaf.shape) for name, stored in entries])

    def chunks() -> Iterator[bytes | bytearray]:
        yield image.header
        for i in sorted(range(len(entries)), key=lambda i: image.starts[i]):
            yield source.read(entries[i][1])

    target.create(file, chunks())


def _write_json(target: Store, part: str, tree: Any, holds: str) -> Exported:
    file = f"{part}.json"
    if file == TRAIN_STATE:
        file = f"part.{file}"
    target.create(file, [_readable(tree)])
    return Exported(file, holds)


def _readable(packed: Any) -> bytes:
    return json.dumps(packed, indent=2, allow_nan=False).encode() + b"\n"


def _train_state(checkpoint: Checkpoint, documents: Mapping[str, Any]) -> dict[str, Any]:
    about = dict(checkpoint.manifest.step)
    return {
        "format": 1,
        "checkpoint": str(checkpoint.id),
        "attempt": checkpoint.id.attempt,
        "world_size": checkpoint.manifest.world_size,
        **about,
        "config": documents["progress"]["config"],
        "rng": documents["rng"],
    }


def _tags(packed: Any) -> set[str]:
    """Every tag of typed JSON that occurs."""
    if isinstance(packed, list):
        return {tag for item in packed for tag in _tags(item)}
    if not isinstance(packed, dict):
        return set()
    own = {key for key in packed if key.startswith("$")} if len(packed) == 1 else set()
    return own | {tag for item in packed.values() for tag in _tags(item)}
