"""Typed JSON keeps what plain JSON loses, exactly."""

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spec.encoding import Unstorable, dumps, pack, unpack

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.builds(bytearray, st.binary())
    | st.builds(range, st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([-2, 1, 3]))
)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["$tuple", "$", ""]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | st.builds(set, st.lists(keys, max_size=3)) | st.builds(frozenset, st.lists(keys, max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(lambda d: defaultdict(list, d)),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.builds(deque, st.lists(inner, max_size=3), maxlen=st.none() | st.integers(3, 9)),
    ),
    max_leaves=12,
)


def through(value: Any) -> Any:
    """Pack, write, read, unpack."""
    return unpack(json.loads(dumps(pack(value))))


def same(a: Any, b: Any) -> bool:
    """Compare types, order and bits, where `==` lets 1 be True, 0.0 be -0.0, and NaN not be itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        extra = getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        return extra and same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple | deque):
        extra = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return extra and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and sorted(map(repr, a)) == sorted(map(repr, b))
    return bool(a == b)


@given(values)
def test_everything_plain_comes_back_as_it_was(value: Any) -> None:
    """Types, order, NaN, infinities, the sign of zero, keys of any hashable kind: nothing changes."""
    assert same(through(value), value)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 2**200, -(2**63),
        (), ((),), [()], {"a": ()}, {True: "a bool", 0: "an int"}, {"1": "text", 1: "number"}, {None: 0, (1, 2): 3},
        {"$tuple": [1]}, {"$leaf": "x"}, {"$unknown": 1}, {"$tuple": 1, "other": 2}, {"": {"$": 0}},
        b"", b"\x00\xff", bytearray(b"x"), "\ud800 lone surrogate", "\x00", "é€😀",
        {1, 2}, frozenset({("a", 1)}), set(), {frozenset({1}), frozenset()}, range(3, 30, 4), complex(-0.0, math.nan),
        OrderedDict(b=1, a=2), Counter("aab"), deque([1, (2,)], maxlen=2), deque(), deque(maxlen=0),
        defaultdict(list, {1: [2]}), defaultdict(None, {"a": 1}), defaultdict(dict), defaultdict(int, {"n": 1}),
        {"deep": [{"er": ({"est": {1: b"bytes"}},)}]},
        Path("runs/digits"), {"root": Path("/")},
    ],
    ids=repr,
)  # fmt: skip
def test_what_plain_json_would_change(value: Any) -> None:
    """Each of these is changed or refused by the json module, and comes back as it was from typed JSON."""
    assert same(through(value), value)


def test_a_packed_value_is_strict_json() -> None:
    """NaN and infinities are written as text, so that every JSON reader can read the file."""
    text = dumps(pack({"loss": float("nan"), "best": [float("inf"), -0.0]})).decode()
    assert text == '{"loss":{"$float":"nan"},"best":[{"$float":"inf"},-0.0]}'


class Odd:
    """No plain data."""


class Whole(int):
    """A subclass: would come back as something else, so it is not plain either."""


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Odd(), ""),
        ({"a": [1, {"b": Odd()}]}, "a[1].b"),
        ({"a": {3: (0, Odd())}}, "a.3[1]"),
        ({"groups": [{"lr": Whole(1)}]}, "groups[0].lr"),
        ({"factory": defaultdict(Odd)}, "factory"),
        ({Odd: 1}, "<key>"),
        ({"table": {(1, Odd): 2}}, "table<key>[1]"),
        ({"queue": deque([0, Odd()])}, "queue[1]"),
        (OrderedDict(x=Odd()), "x"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_path(value: Any, path: str) -> None:
    """The first value that is no plain data is refused, and the path leads to it."""
    with pytest.raises(Unstorable) as refusal:
        pack(value)
    assert refusal.value.path == path


def test_foreign_values_are_asked_about_with_their_path() -> None:
    """A handler that knows more kinds is called for each of them, and its answer is what is stored."""
    asked: list[str] = []

    def foreign(path: str, value: object) -> Any:
        asked.append(path)
        return {"$odd": path}

    packed = pack({"a": [Odd()], "b": Odd()}, "", foreign)
    assert asked == ["a[0]", "b"]
    assert unpack(packed, lambda tag, body: (tag, body)) == {"a": [("$odd", "a[0]")], "b": ("$odd", "b")}


def test_an_unknown_tag_is_refused() -> None:
    """A document of a later format is not misread as a dict."""
    with pytest.raises(ValueError, match=r"unknown tag '\$later'"):
        unpack({"x": {"$later": 1}})


def test_sets_are_written_in_one_order() -> None:
    """The same set gives the same bytes whatever the order it was built in: digests depend on it."""
    assert dumps(pack({"b", "a", "c"})) == dumps(pack({"c", "b", "a"})) == b'{"$set":["a","b","c"]}'


def test_reading_back_runs_no_code() -> None:
    """A default dict's factory comes from a short list; another name in a document is an error, not an import."""
    with pytest.raises(KeyError):
        unpack({"$default": ["os.system", []]})
