"""The events: each kind can be read back, is recorded by something, and is explained to people."""

from collections.abc import Iterator

import pytest

from holdfast.spec import events
from holdfast.spec.events import KINDS, Event

from .markdown import documents
from .source import Source, hold, last_name, sources


def kinds() -> dict[str, type[Event]]:
    """Every class of event that spec/events.py defines."""
    found = {name: kind for name, kind in vars(events).items() if isinstance(kind, type)}
    return {name: kind for name, kind in found.items() if issubclass(kind, Event) and kind is not Event}


def recorded(source: Source) -> Iterator[str]:
    """The classes of which a file hands an instance to something called `record`."""
    for _, call in source.calls:
        if last_name(call).lstrip("_") == "record":
            yield from map(last_name, call.args)


def test_every_kind_can_be_read_back() -> None:
    """KINDS, by which the ledger is read, holds each class of event under its name."""
    assert kinds() == KINDS, "list each class of event in KINDS of spec/events.py"


def test_every_kind_is_recorded() -> None:
    """Each class of event is recorded somewhere in the package."""
    found = {name for source in sources() for name in recorded(source)}
    hold(sorted(KINDS.keys() - found), "Nothing records these: take them out of spec/events.py, or record them.")


def test_every_kind_is_explained() -> None:
    """Each class of event is mentioned, in backticks, in one of the pages below docs/."""
    pages = {text.path: text.text for text in documents() if text.path.startswith("docs/")}
    if "docs/failures.md" not in pages:
        pytest.skip("docs/failures.md is missing; test_failures_table.py says so")
    absent = [kind for kind in KINDS if not any(f"`{kind}`" in text for text in pages.values())]
    hold(absent, "Explain these in a page below docs/, each in backticks:")


def test_an_idle_event_is_seen() -> None:
    """To be imported or made is not to be recorded; to be handed to `record` or `_record` is."""
    assert not list(recorded(Source("a.py", "from events import A\nlost = A(at=1.0)")))
    busy = "self._ledger.record(events.A(at=1.0))\nself._record(B(at=1.0))"
    assert list(recorded(Source("a.py", busy))) == ["A", "B"]
