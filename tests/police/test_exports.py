"""The public names: a short, sorted list that costs nothing until a name is used."""

import ast
import json
import subprocess
import sys

import pytest

import holdfast

from .source import PACKAGE, Source, last_name

INIT = Source("__init__.py", (PACKAGE / "__init__.py").read_text())


def test_all_is_sorted_and_what_dir_shows() -> None:
    """`__all__` is sorted, without doubles, and `dir(holdfast)` shows exactly it."""
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))
    assert dir(holdfast) == list(holdfast.__all__)


def test_all_is_complete() -> None:
    """`__all__` holds what type checkers are shown under TYPE_CHECKING: no name more, no name less."""
    shown = {
        alias.asname
        for statement in INIT.tree.body
        if isinstance(statement, ast.If) and last_name(statement.test) == "TYPE_CHECKING"
        for node in ast.walk(statement)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    remedy = "list each public name in __all__, and import it as itself under TYPE_CHECKING"
    assert shown == set(holdfast.__all__), remedy


def test_names_arrive_when_they_are_used() -> None:
    """`import holdfast` brings none of its names; the first use brings one, and no other."""
    program = """
import json, holdfast
before = [name for name in holdfast.__all__ if name in vars(holdfast)]
holdfast.Keep
print(json.dumps([before, [name for name in holdfast.__all__ if name in vars(holdfast) and name != "errors"]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, after = json.loads(done.stdout)
    assert before == []
    assert set(after) <= {"Keep"}


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    """Each public name can be had from the package, is called what it is called there, and has a docstring."""
    value = getattr(holdfast, name)
    assert value.__doc__, f"give {name} a docstring"
    assert value.__name__.removeprefix("holdfast.") == name


def test_other_names_are_refused() -> None:
    """A name that is not there is an AttributeError that names it, as hasattr expects."""
    assert not hasattr(holdfast, "Trainer")
    with pytest.raises(AttributeError, match="'Trainer'"):
        _ = holdfast.Trainer
