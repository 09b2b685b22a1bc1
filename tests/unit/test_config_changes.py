"""What changed between two configs, and what was allowed to."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.decide.config import differences, is_allowed

CASES: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    ({}, {}, []),
    ({"lr": 0.1}, {"lr": 0.1}, []),
    ({"lr": 0.1}, {"lr": 0.2}, [("lr", "0.1", "0.2")]),
    ({"lr": 0.1}, {}, [("lr", "0.1", "absent")]),
    ({}, {"lr": None}, [("lr", "absent", "None")]),
    ({"lr": 1}, {"lr": 1.0}, [("lr", "1", "1.0")]),
    ({"on": True}, {"on": 1}, [("on", "True", "1")]),
    ({"x": math.nan}, {"x": math.nan}, []),
    ({"x": 0.0}, {"x": -0.0}, [("x", "0.0", "-0.0")]),
    ({"m": {"width": 8, "deep": {"a": 1}}}, {"m": {"width": 9, "deep": {"a": 2}}},
     [("m.deep.a", "1", "2"), ("m.width", "8", "9")]),
    ({"m": {"width": 8}}, {"m": 8}, [("m", "absent", "8"), ("m.width", "8", "absent")]),
    ({"m": {}}, {}, [("m", "{}", "absent")]),
    ({"b": 1, "a": 2}, {"a": 2, "b": 1}, []),
    ({"sizes": [1, 2]}, {"sizes": [1, 3]}, [("sizes", "[1, 2]", "[1, 3]")]),
    ({"sizes": (1, 2)}, {"sizes": [1, 2]}, [("sizes", "(1, 2)", "[1, 2]")]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_differences(old: dict[str, Any], new: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    """Keys are dotted and sorted; types count, NaN equals itself, the order of keys does not matter."""
    assert differences(old, new) == expected


configs = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers() | st.floats() | st.text(), max_size=4)


@given(configs)
def test_a_config_does_not_differ_from_itself(config: dict[str, Any]) -> None:
    """Whatever is in it."""
    assert differences(config, dict(config)) == []


@pytest.mark.parametrize(
    ("key", "allow", "allowed"),
    [
        ("lr", ["lr"], True),
        ("lr", ("lr",), True),
        ("lr", [], False),
        ("lr", ["lr2"], False),
        ("lr2", ["lr"], False),
        ("model.width", ["model.width"], True),
        ("model.width", ["model"], True),
        ("models.width", ["model"], False),
        ("model", ["model.width"], False),
        ("lr", ["format"], False),
    ],
)
def test_is_allowed(key: str, allow: list[str], allowed: bool) -> None:
    """By its own name or that of a group it belongs to, not by a name that merely begins alike."""
    assert is_allowed(key, allow) is allowed
