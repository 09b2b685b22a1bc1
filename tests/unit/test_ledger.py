"""The ledger in the store: what happened is kept, and failing to keep it does no harm.

Rule 7: losing the ledger never loses a checkpoint.
"""

import pytest

from holdfast.errors import AccessDenied, NoSpace, StoreError, Unavailable
from holdfast.ledger.store import StoreLedger, read
from holdfast.spec import names
from holdfast.spec.events import AttemptEnded, Event, KeeperStarted, StartedFresh
from holdfast.spec.ports import Ledger
from holdfast.storage.memory import MemoryStore
from tests.stand_ins import Hindered, Operation

EVENTS: list[Event] = [
    StartedFresh(at=1.0),
    KeeperStarted(at=2.0, number=1, pid=5),
    AttemptEnded(at=3.0, attempt=1, ending="finished", step=9),
]


def test_what_was_flushed_is_read_back_in_order() -> None:
    """Each flush is one segment, written once; segments and attempts are read in order."""
    store = MemoryStore()
    for attempt in (1, 2):
        ledger: Ledger = StoreLedger(store, attempt)
        for event in EVENTS:
            ledger.record(event)
            ledger.flush()
    assert list(read(store)) == EVENTS * 2
    assert store.list(names.ledger_folder(1)) == [names.ledger_segment(1, n) for n in (1, 2, 3)]


def test_nothing_is_written_without_need() -> None:
    """Recording alone touches no store, and a flush with nothing pending writes no segment."""
    store = MemoryStore()
    ledger = StoreLedger(store, 1)
    ledger.flush()
    ledger.record(EVENTS[0])
    assert store.list("") == []
    ledger.flush()
    ledger.flush()
    assert store.list("") == [names.ledger_segment(1, 1)]


def test_a_second_keeper_goes_on_after_the_firsts_segments() -> None:
    """Numbers that are taken are passed over: nothing is overwritten, nothing is lost."""
    store = MemoryStore()
    for event in EVENTS:
        ledger = StoreLedger(store, 1)
        ledger.record(event)
        ledger.flush()
    assert list(read(store)) == EVENTS


@pytest.mark.parametrize("error", [NoSpace("x", "full"), Unavailable("x", "away"), AccessDenied("x", "no")])
def test_a_failing_store_raises_nothing_and_loses_nothing(error: StoreError) -> None:
    """What could not be written is written by a later flush, in order, once."""
    store = MemoryStore()
    fails = True

    def refuse(operation: Operation, name: str) -> None:
        if fails:
            raise error

    ledger = StoreLedger(Hindered(store, refuse), 1)
    for event in EVENTS[:2]:
        ledger.record(event)
        ledger.flush()
    assert store.list("") == []
    fails = False
    ledger.record(EVENTS[2])
    ledger.flush()
    assert list(read(store)) == EVENTS
    assert store.list("") == [names.ledger_segment(1, 1)]


def test_damaged_lines_are_passed_over() -> None:
    """Rubbish, unknown kinds, lines cut short and remains of interrupted writes: the rest is read."""
    store = MemoryStore()
    ledger = StoreLedger(store, 1)
    for event in EVENTS:
        ledger.record(event)
    ledger.flush()
    lines = store.read(names.ledger_segment(1, 1)).splitlines(keepends=True)
    store.create(
        names.ledger_segment(2, 1),
        [
            b"\xff\xfe\n",
            b"[]\n",
            b"5\n",
            b"\n",
            b'{"event": "Unheard"}\n',
            b'{"event": ["x"]}\n',
            *lines,
            lines[0][:-9],
        ],
    )
    store.create(names.ledger_folder(2) + ".00000002.jsonl.7-0.partial", lines)
    assert list(read(store)) == EVENTS * 2


def test_an_empty_store_has_no_events() -> None:
    """That is no error."""
    assert list(read(MemoryStore())) == []
