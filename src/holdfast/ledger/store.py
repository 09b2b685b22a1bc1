"""The ledger in the store: segments of JSON lines, each written once.

    ledger/a000007/00000001.jsonl

Rule 7: losing the ledger never loses a checkpoint; losing the dashboard loses nothing.
    (tests/unit/test_ledger.py)
"""

import json
import threading
from collections.abc import Iterator

from ..errors import AlreadyExists, NotFound, StoreError
from ..spec import names
from ..spec.events import Event, from_json, to_json
from ..spec.ports import Store

_NUMBERS_TRIED = 10_000
"""An earlier keeper of the same attempt may have used some numbers."""


class StoreLedger:
    """Collects events; each flush writes what has come since as one segment."""

    def __init__(self, store: Store, attempt: int) -> None:
        self._store = store
        self._attempt = attempt
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._number = 0

    def record(self, event: Event) -> None:
        """Take one event."""
        line = json.dumps(to_json(event), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._pending.append(line)

    def flush(self) -> None:
        """Write what is pending. A store that fails keeps it pending; nothing is raised."""
        with self._lock:
            lines, self._pending = self._pending, []
        for _ in range(_NUMBERS_TRIED if lines else 0):
            self._number += 1
            try:
                self._store.create(names.ledger_segment(self._attempt, self._number), lines)
            except AlreadyExists:
                continue
            except StoreError:
                self._number -= 1
                break
            return
        with self._lock:
            self._pending = lines + self._pending


def read(store: Store) -> Iterator[Event]:
    """Read all events of a run, attempt by attempt; damaged lines are passed over. Raises: StoreError."""
    for name in store.list(names.LEDGER):
        if not name.endswith(".jsonl"):
            continue
        try:
            lines = store.read(name).splitlines()
        except NotFound:
            continue
        for line in lines:
            try:
                yield from_json(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
