"""One process on its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SingleRank:
    """The `Ranks` port of a training that is one process."""

    rank: int = 0
    size: int = 1
