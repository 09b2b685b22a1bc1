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
from ..spec.ports import Clock, Store

_FLUSH_EVERY_S = 2.0


class StoreLedger:
    """Collects events and writes them a segment at a time, at most every two seconds; the first one at once."""

    def __init__(self, store: Store, clock: Clock, attempt: int) -> None:
        self._store = store
        self._clock = clock
        self._attempt = attempt
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._number = 0
        self._flushed_at = float("-inf")

    def record(self, event: Event) -> None:
        """Take one event; write the segment when the last one is old enough."""
        line = json.dumps(to_json(event), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._pending.append(line)
            if self._clock.monotonic() - self._flushed_at >= _FLUSH_EVERY_S:
                self._write()

    def flush(self) -> None:
        """Write what is pending. A store that fails keeps it pending; nothing is raised."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._flushed_at = self._clock.monotonic()
        if not self._pending:
            return
        for _ in range(1000):  # an earlier keeper of this attempt may have used some numbers
            self._number += 1
            try:
                self._store.create(names.ledger_segment(self._attempt, self._number), self._pending)
            except AlreadyExists:
                continue
            except StoreError:
                self._number -= 1
                return
            self._pending = []
            return


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
