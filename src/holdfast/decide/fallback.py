"""In which order to try checkpoints, and what a failed try means.

Rule 4: restore refuses rather than guesses, says why, tries the next.
    (tests/damage/test_damage.py)
"""

from collections.abc import Iterable
from enum import Enum

from ..errors import CheckpointError, HoldfastError, NewerFormat, StoreError
from ..spec.names import CheckpointId


class Answer(Enum):
    """What to do after a try failed."""

    NEXT = "next"
    """Damaged or unreadable: refuse it, record why, try the next older one."""
    STOP = "stop"
    """The user's mistake or decision to take: going back to an older one would hide it and lose work."""


def in_order(committed: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Newest first. Age is attempt, then step: a later attempt's branch is newer than the one it left."""
    return sorted(committed, reverse=True)


def answer(error: HoldfastError, allow: Iterable[str]) -> Answer:
    """Decide from the error that a try ended with; `allow` holds the changes the user allowed by name."""
    if isinstance(error, NewerFormat) and "format" in allow:
        return Answer.NEXT
    return Answer.NEXT if isinstance(error, CheckpointError | StoreError) else Answer.STOP
