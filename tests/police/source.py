"""The package's own source, parsed once, with every syntax node knowing where it stands."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True, slots=True)
class Place:
    """A node, the dotted name of the definition that it is or stands in, and the definition right around it."""

    name: str
    node: ast.AST
    owner: Scope


@dataclass(frozen=True)
class Source:
    """One file; `path` is relative to the package, with slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax of it."""
        return ast.parse(self.text, self.path)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every node below the module."""
        return tuple(_below(self.tree, "", self.tree))

    @property
    def functions(self) -> Iterator[tuple[Place, Function]]:
        """Every function and method, nested ones too."""
        for place in self.places:
            if isinstance(place.node, Function):
                yield place, place.node

    @property
    def classes(self) -> Iterator[tuple[Place, ast.ClassDef]]:
        """Every class."""
        for place in self.places:
            if isinstance(place.node, ast.ClassDef):
                yield place, place.node

    @property
    def calls(self) -> Iterator[tuple[Place, ast.Call]]:
        """Every call."""
        for place in self.places:
            if isinstance(place.node, ast.Call):
                yield place, place.node

    def where(self, place: Place) -> str:
        """Name a place as complaints and lists of exceptions do: `state/loader.py:DataLoader.epoch`."""
        return f"{self.path}:{place.name}" if place.name else self.path


@cache
def sources() -> tuple[Source, ...]:
    """Every file of the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    return tuple(Source(file.relative_to(PACKAGE).as_posix(), file.read_text()) for file in files)


def last_name(node: ast.AST) -> str:
    """The name that a name, an attribute or a call ends in: `c` for `a.b.c(d)`; nothing for any other expression."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def imported(source: Source) -> Iterator[tuple[Place, str]]:
    """Every absolute import as a dotted name, `pathlib.PurePath` for `from pathlib import PurePath`."""
    for place in source.places:
        if isinstance(place.node, ast.Import):
            yield from ((place, alias.name) for alias in place.node.names)
        elif isinstance(place.node, ast.ImportFrom) and place.node.level == 0:
            yield from ((place, f"{place.node.module}.{alias.name}") for alias in place.node.names)


def hold(complaints: Iterable[str], remedy: str) -> None:
    """Fail with all complaints and the sentence that says what to do, if there is any."""
    found = list(complaints)
    if found:
        pytest.fail("\n".join([remedy, *(f"  - {complaint}" for complaint in found)]), pytrace=False)


def _below(node: ast.AST, name: str, owner: Scope) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            inner = f"{name}.{child.name}" if name else child.name
            yield Place(inner, child, owner)
            yield from _below(child, inner, child)
        else:
            yield Place(name, child, owner)
            yield from _below(child, name, owner)
