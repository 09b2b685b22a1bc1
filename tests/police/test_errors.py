"""The errors: the tree that is drawn is the tree that is there, and every branch of it bears fruit."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, Stop

from .source import ROOT, Place, Source, hold, last_name, sources

FAILURES = ROOT / "docs" / "failures.md"

INTERNAL = {
    "spec/encoding.py:Unstorable": "translated by whoever knows what the value is",
    "engine/channel.py:ChannelClosed": "a message between two files: the other process is gone",
    "testing/disk.py:Crash": "the power failed: nothing may catch it as an error",
}
"""Exceptions outside errors.py, and why no user meets them."""

_LINE = re.compile(
    r"^(?P<branch>[│├└─ ]*)(?P<name>\w+)(?: \((?P<also>[\w, ]+)\))?(?P<text>.*?)(?: exit (?P<code>\d+))?$"
)


@dataclass(frozen=True, slots=True)
class Branch:
    """What the drawing says of one class."""

    parent: str
    also: tuple[str, ...]
    exit_code: int


def drawn(docstring: str) -> dict[str, Branch]:
    """Read the tree in a docstring; a line without an exit code has its parent's, and the root 1."""
    tree: dict[str, Branch] = {}
    above: list[str] = []
    for line in inspect.cleandoc(docstring.partition("::\n\n")[2].partition("\n\n")[0]).splitlines():
        match = _LINE.match(line)
        assert match, f"this line of the tree cannot be read: {line}"
        depth = len(match["branch"]) // 4
        parent = above[depth - 1] if depth else ""
        code = int(match["code"]) if match["code"] else tree[parent].exit_code if parent else 1
        tree[match["name"]] = Branch(parent, tuple(re.findall(r"\w+", match["also"] or "")), code)
        above[depth:] = [match["name"]]
    return tree


def actual() -> dict[str, Branch]:
    """Read the same from the classes."""
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {
        name: Branch(
            parent=next((base.__name__ for base in kind.__bases__ if issubclass(base, HoldfastError)), ""),
            also=tuple(b.__name__ for b in kind.__bases__ if not issubclass(b, HoldfastError) and b is not Exception),
            exit_code=kind.exit_code,
        )
        for name, kind in classes.items()
        if issubclass(kind, HoldfastError)
    }


def raised(source: Source) -> Iterator[str]:
    """Names of classes that are called, stand in a table of errors to raise, or are handed on to be raised."""
    for place in source.places:
        node = place.node
        if isinstance(node, ast.Call):
            yield last_name(node)
            yield from (last_name(keyword.value) for keyword in node.keywords)
        elif isinstance(node, ast.Dict):
            yield from map(last_name, node.values)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield last_name(node.exc)


def leaves(tree: dict[str, Branch]) -> set[str]:
    """The classes without subclasses: what is raised, where the others are what is caught."""
    return tree.keys() - {branch.parent for branch in tree.values()}


def test_the_drawing_is_the_tree() -> None:
    """The tree in errors.py has every class, below its parent, with its other bases and its exit code."""
    docstring = errors.__doc__ or ""
    assert drawn(docstring) == actual(), "redraw the tree at the top of errors.py"


def test_a_wrong_drawing_is_seen() -> None:
    """The reader of the drawing understands nesting, other bases and exit codes: each slip of the pen changes it."""
    docstring = errors.__doc__ or ""
    for right, wrong in (
        ("│   ├── NewerFormat ", "├── NewerFormat "),
        ("UsageError (ValueError)", "UsageError"),
        ("exit 11", "exit 12"),
        ("Corrupt", "Corrupted"),
        ("        ├── NoSpace\n", ""),
    ):
        assert right in docstring
        assert drawn(docstring.replace(right, wrong)) != actual()


def test_every_error_is_raised() -> None:
    """Each class without subclasses is raised somewhere in the package."""
    elsewhere = {name for source in sources() if source.path != "errors.py" for name in raised(source)}
    hold(sorted(leaves(actual()) - elsewhere), "Nothing raises these: take them out of errors.py, or raise them.")


def test_a_dead_error_is_seen() -> None:
    """To be imported, caught or asked for is not to be raised; to be called or listed in a table is."""
    idle = "from errors import A\ntry:\n    isinstance(error, A)\nexcept A as error:\n    kind: type[A]"
    assert "A" not in set(raised(Source("a.py", idle)))
    for busy in ("raise A(1)", "raise A", "_MEANING = {1: A}", "explained(name, missing=A)"):
        assert "A" in set(raised(Source("a.py", busy)))


def test_every_error_has_a_docstring_of_its_own() -> None:
    """Each class says when it happens."""
    missing = [name for name in actual() if not vars(getattr(errors, name)).get("__doc__")]
    hold(missing, "Say in one sentence when each of these happens:")


def test_no_error_hides_elsewhere() -> None:
    """Exceptions are defined in errors.py, but for those that no user ever meets."""
    found = {source.where(place) for source in sources() for place, _ in _exceptions(source)}
    hold(sorted(found - INTERNAL.keys()), "Move these to errors.py, or list them in INTERNAL with the reason:")
    hold(sorted(INTERNAL.keys() - found), "Take these out of INTERNAL, they are gone:")


def test_every_stop_is_in_the_failure_table() -> None:
    """docs/failures.md mentions each Stop: whoever meets one finds what was promised."""
    if not FAILURES.exists():
        pytest.skip("docs/failures.md is missing; test_failures_table.py says so")
    text = FAILURES.read_text()
    stops = [kind.__name__ for kind in Stop.__subclasses__()]
    hold([name for name in stops if f"`{name}`" not in text], "Add these to docs/failures.md, in backticks:")


def _exceptions(source: Source) -> Iterator[tuple[Place, ast.ClassDef]]:
    if source.path != "errors.py":
        for place, node in source.classes:
            if any(re.search(r"(Exception|Error|Exit|Interrupt)$", last_name(base)) for base in node.bases):
                yield place, node
