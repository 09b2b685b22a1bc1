"""The tests themselves: each says what it proves, and none is fooled by a mock."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from .source import PACKAGE, ROOT, Source, hold, imported


@cache
def files() -> tuple[Source, ...]:
    """Every file of tests, those shipped in holdfast.testing included."""
    found = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((PACKAGE / "testing").rglob("*.py"))]
    return tuple(Source(file.relative_to(ROOT).as_posix(), file.read_text()) for file in found)


def silent(source: Source) -> Iterator[str]:
    """Say which tests do not say what they prove."""
    for place, function in source.functions:
        if function.name.startswith("test_") and not ast.get_docstring(function):
            yield source.where(place)


def mocks(source: Source) -> Iterator[str]:
    """Say where a test puts a mock in the place of code."""
    yield from (source.where(place) for place, name in imported(source) if "mock" in name.split("."))


def test_every_test_says_what_it_proves() -> None:
    """Each test function has a docstring."""
    found = [complaint for source in files() for complaint in silent(source)]
    hold(found, "Give each of these tests a docstring that states the truth it asserts:")


def test_no_test_mocks() -> None:
    """No test uses mocks: stand-ins implement a port, and pass the same contract as the real thing."""
    found = [complaint for source in files() for complaint in mocks(source)]
    hold(found, "Write a stand-in that implements the port (see tests/stand_ins.py, holdfast.testing):")


@pytest.mark.parametrize(
    "code",
    [
        "def test_a(): ...",
        "class TestA:\n    def test_a(self):\n        '''  '''",
        "from unittest import mock",
        "import unittest.mock",
        "from unittest.mock import Mock",
    ],
)
def test_a_planted_fault_is_seen(code: str) -> None:
    """A test without a word, in a class too, and every way to import a mock are complained about."""
    source = Source("tests/test_a.py", code)
    assert len([*silent(source), *mocks(source)]) == 1
