"""What the files of a run's store say: who trains it, what is saved, how it resumed.

Plain reading of plain files, next to nothing of Holdfast's own code: a demo should not be its own witness.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import HoldfastError
from ...spec import names
from ...spec.names import CheckpointId


class Evidence:
    """Looks at one store on this machine; changes nothing."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._checkpoints = store / names.CHECKPOINTS

    def attempts(self) -> dict[int, Mapping[str, Any]]:
        """Return who claimed each attempt, by its number."""
        found = {}
        for name in self._attempt_files():
            number = names.attempt_of_claim(name)
            if number is not None:
                found[number] = self._json(name)["holder"]
        return found

    def attempt_of(self, pid: int) -> int | None:
        """Tell which attempt a training process claimed; None when it has not yet."""
        return max((number for number, holder in self.attempts().items() if holder["pid"] == pid), default=None)

    def keeper(self, attempt: int) -> tuple[int, Mapping[str, Any]]:
        """Return the newest keeper of an attempt: its number, from 1, and the process. (0, {}) before the first."""
        numbers = [n for of, n in map(_keeper_of, self._attempt_files()) if of == attempt]
        newest = max(numbers, default=0)
        return newest, self._json(names.keeper(attempt, newest))["holder"] if newest else {}

    def ending(self, attempt: int) -> str | None:
        """Tell how an attempt ended; None while it lasts, or when it vanished without a word."""
        path = self.store / names.verdict(attempt)
        return str(self._json(names.verdict(attempt))["ending"]) if path.exists() else None

    def committed(self) -> list[CheckpointId]:
        """List the checkpoints that exist, oldest first."""
        return sorted(found for found in self._folders() if (self.store / found.manifest).exists())

    def unfinished(self, attempt: int) -> CheckpointId | None:
        """Return the save that an attempt has begun and not committed, if there is one.

        A checkpoint that is being pruned has no manifest either, but is older than the newest one that has.
        """
        for found in sorted(self._folders(), reverse=True):
            if (self.store / found.manifest).exists():
                return None
            if found.attempt == attempt:
                return found
        return None

    def newest(self) -> CheckpointId:
        """Return the newest checkpoint. Raises: HoldfastError when there is none."""
        committed = self.committed()
        if not committed:
            raise HoldfastError(f"{self.store} holds no checkpoint although training finished")
        return committed[-1]

    def resumed(self, attempt: int) -> Mapping[str, Any]:
        """Return what the ledger recorded when an attempt resumed; empty when it holds nothing about that."""
        folder = self.store / names.ledger_folder(attempt)
        for segment in sorted(folder.glob("*.jsonl")):
            for line in segment.read_text().splitlines():
                event: dict[str, Any] = json.loads(line)
                if event["event"] == "Resumed":
                    return event
        return {}

    def _attempt_files(self) -> list[str]:
        folder = self.store / names.ATTEMPTS
        return [names.ATTEMPTS + name for name in os.listdir(folder)] if folder.exists() else []

    def _folders(self) -> list[CheckpointId]:
        try:
            with os.scandir(self._checkpoints) as entries:
                return [found for entry in entries if (found := CheckpointId.parse(entry.name)) is not None]
        except FileNotFoundError:
            return []

    def _json(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.store / name).read_bytes())
        return value


def _keeper_of(name: str) -> tuple[int, int]:
    return names.keeper_of(name) or (0, 0)
