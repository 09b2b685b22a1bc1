"""What differs between two checkpoints, told from their manifests alone: no tensor is read."""

from dataclasses import dataclass

from ..spec.leaves import Leaf, chunks_of
from ..spec.manifest import StoredLeaf
from .checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tensors by `part/name`, each in exactly one group; bytes are counted by digested chunk."""

    added: tuple[tuple[str, Leaf], ...]
    """Only in the second."""
    removed: tuple[tuple[str, Leaf], ...]
    """Only in the first."""
    reshaped: tuple[tuple[str, Leaf, Leaf], ...]
    """Of another shape or dtype."""
    changed: tuple[tuple[str, int], ...]
    """Of the same shape, with other bytes; the number counts the chunks' bytes that differ."""
    equal: tuple[str, ...]
    equal_bytes: int
    changed_bytes: int


def differences(first: Checkpoint, second: Checkpoint) -> Difference:
    """Compare every tensor of two checkpoints by shape and digests."""
    old, new = _by_name(first), _by_name(second)
    both = [name for name in old if name in new]
    alike = [name for name in both if old[name].leaf == new[name].leaf]
    unequal = {name: _unequal_bytes(old[name], new[name]) for name in alike}
    same_digests = {name for name in alike if old[name].digests == new[name].digests}
    changed_bytes = sum(unequal.values())
    return Difference(
        added=tuple((name, new[name].leaf) for name in new if name not in old),
        removed=tuple((name, old[name].leaf) for name in old if name not in new),
        reshaped=tuple((name, old[name].leaf, new[name].leaf) for name in both if old[name].leaf != new[name].leaf),
        changed=tuple((name, unequal[name]) for name in alike if name not in same_digests),
        equal=tuple(name for name in alike if name in same_digests),
        equal_bytes=sum(old[name].leaf.nbytes for name in alike) - changed_bytes,
        changed_bytes=changed_bytes,
    )


def _by_name(checkpoint: Checkpoint) -> dict[str, StoredLeaf]:
    """Every box of every tensor; the name says which box it is where it is not the whole tensor."""
    named = {}
    for rank in checkpoint.ranks:
        for stored in rank.leaves:
            whole = stored.lengths == stored.leaf.shape
            box = "" if whole else f"@{','.join(map(str, stored.offset))}"
            named[f"{stored.part}/{stored.leaf.name}{box}"] = stored
    return named


def _unequal_bytes(old: StoredLeaf, new: StoredLeaf) -> int:
    chunks = zip(chunks_of(old.leaf.nbytes), old.digests, new.digests, strict=True)
    return sum(end - start for (start, end), before, after in chunks if before != after)
