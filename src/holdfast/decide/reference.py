"""Which unchanged leaves to leave where they are, in an older checkpoint's file, instead of writing them again."""

from collections.abc import Iterable
from dataclasses import dataclass

WORTH = 1 / 3
"""Share of a part's bytes that one older file must hold. An older file that is referred to stays on disk whole: with
three checkpoints kept, less than a third would use more space than it saves."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A leaf whose bytes equal those that an older file holds."""

    name: str
    nbytes: int
    file: str


def refer_to(unchanged: Iterable[Unchanged], part_bytes: int) -> set[str]:
    """Choose the leaves, by name, that need not be written again.

    Args:
        unchanged: the leaves of one part that did not change.
        part_bytes: bytes of all leaves of that part.
    """
    candidates = list(unchanged)
    held: dict[str, int] = {}
    for leaf in candidates:
        held[leaf.file] = held.get(leaf.file, 0) + leaf.nbytes
    return {leaf.name for leaf in candidates if leaf.nbytes and held[leaf.file] >= WORTH * part_bytes}
