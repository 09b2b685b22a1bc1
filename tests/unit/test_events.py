"""Events: every kind is known and reads back as it was written."""

import json
from dataclasses import fields
from typing import Any

import pytest

from holdfast.spec import events
from holdfast.spec.events import KINDS, Event, from_json, to_json

SAMPLES: dict[str, Any] = {
    "float": 0.1,
    "int": 7,
    "str": "text",
    "tuple[str, ...]": ("a", "b"),
    "tuple[tuple[str, str], ...]": (("0000000012-a000001", "why"),),
    "Mapping[str, Any]": {"pid": 12, "host": "here"},
}


def sample(kind: type[Event]) -> Event:
    """Make an event with something in every field."""
    return kind(**{f.name: SAMPLES[getattr(f.type, "__name__", str(f.type)) if f.type in (float, int, str) else
                                   str(f.type).replace("collections.abc.", "").replace("typing.", "")]
                   for f in fields(kind)})  # fmt: skip


def test_kinds_is_complete() -> None:
    """Every event class of the module can be read back."""
    defined = {
        name: value
        for name, value in vars(events).items()
        if isinstance(value, type) and issubclass(value, Event) and value is not Event
    }
    assert defined == KINDS


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_event_round_trips(kind: type[Event]) -> None:
    """Through one line of JSON, with tuples as tuples."""
    event = sample(kind)
    line = json.dumps(to_json(event))
    assert "\n" not in line
    assert from_json(json.loads(line)) == event


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_an_event_with_a_field_missing_is_none(kind: type[Event]) -> None:
    """A reader of the ledger can tell, and pass it over."""
    for field in fields(kind):
        value = to_json(sample(kind))
        del value[field.name]
        with pytest.raises(KeyError):
            from_json(value)


def test_fields_of_a_later_version_are_passed_over() -> None:
    """An event that has more fields than this version knows is still read."""
    event = sample(events.StartedFresh)
    assert from_json({**to_json(event), "added_later": 1}) == event


@pytest.mark.parametrize("value", [{}, {"event": "Unknown", "at": 1.0}, {"event": ["x"], "at": 1.0}])
def test_what_is_no_event_is_refused(value: dict[str, Any]) -> None:
    """With the errors that the docstring names."""
    with pytest.raises((KeyError, TypeError)):
        from_json(value)


def test_units_stand_in_the_names() -> None:
    """Every float but the instant ends in `_s`, every size in `_bytes`."""
    for kind in KINDS.values():
        for field in fields(kind):
            if field.type is float:
                assert field.name == "at" or field.name.endswith("_s"), f"{kind.__name__}.{field.name}"
