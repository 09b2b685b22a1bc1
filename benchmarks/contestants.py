"""What a measurement asks of whoever saves and loads."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pending:
    """A save that has begun and does not hold training up any more."""

    done: Callable[[], bool]
    wait: Callable[[], object]
    """Return when its files are complete. Raises: what the save failed with."""


class Contestant(Protocol):
    """One way to save a state and to load it again, used as its documentation shows."""

    def prepare(self) -> None:
        """Get ready for the first save, as far as there is a way to."""
        ...

    def save(self, number: int) -> Pending:
        """Save the state as it is; `updating` tells when it may change again."""
        ...

    def updating(self) -> AbstractContextManager[object]:
        """Enter the block in which training changes the state; it waits until a save in flight allows it."""
        ...

    def place(self, number: int) -> Path:
        """Where the files of one save are."""
        ...

    def discard(self, number: int) -> None:
        """Remove an older save."""
        ...

    def close(self) -> None:
        """Save no more. Loading still works."""
        ...

    def load(self, number: int) -> None:
        """Load a save into the state."""
        ...


def finished() -> Pending:
    """Make what a save returns that has done everything already."""
    return Pending(done=lambda: True, wait=lambda: None)


def remove(place: Path) -> None:
    """Remove a file or a folder that may be gone already."""
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
