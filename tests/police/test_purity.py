"""Rule 6: nothing in `decide/` reads a clock, a file, an environment variable or a random number; nor does `spec/`."""

import sys
from collections.abc import Iterator

import pytest

from .source import Source, hold, imported, last_name, sources

PURE_FOLDERS = ("decide/", "spec/")
TRUNK = ("errors.py", "spec/", "decide/", "engine/")

PURE = {
    "base64", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "json",
    "math", "operator", "re", "statistics", "string", "struct", "textwrap", "types", "typing",
}  # fmt: skip
"""Modules whose functions give the same answer to the same arguments, always."""

PURE_NAMES = {"pathlib.PurePath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath"}
"""What is pure in a module that is not: paths that know no file system."""

ALLOWED = {
    "spec/encoding.py imports pathlib.Path": "a stored path comes back as one; nothing is done with it",
}
"""What is not pure by itself, and what keeps it so."""

WORLDLY_CALLS = {"open", "input", "print", "exec", "eval", "compile", "breakpoint", "__import__", "id", "hash"}
"""Builtins that touch the world, or answer differently in another process."""

PORTS_INSTEAD = {
    "time": "a Clock", "datetime": "a Clock", "random": "an argument", "uuid": "an argument", "secrets": "an argument",
    "pathlib": "a Store", "shutil": "a Store", "tempfile": "a Store", "glob": "a Store", "subprocess": "Processes",
    "multiprocessing": "Processes", "signal": "an argument", "logging": "a function to tell",
}  # fmt: skip
"""What the engine is handed instead of importing these."""


def impurities(source: Source) -> Iterator[str]:
    """Say where a file could learn something that its arguments do not tell."""
    for place, name in imported(source):
        if name.partition(".")[0] not in PURE and name not in PURE_NAMES:
            yield f"{source.where(place)} imports {name}"
    for place, call in source.calls:
        if last_name(call.func) in WORLDLY_CALLS and last_name(call.func) == getattr(call.func, "id", ""):
            yield f"{source.where(place)} calls {last_name(call.func)}()"


def strangers(source: Source) -> Iterator[str]:
    """Say what a file imports that does not come with Python."""
    for place, name in imported(source):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            yield f"{source.where(place)} imports {name}"


def shortcuts(source: Source) -> Iterator[str]:
    """Say which port the engine goes round."""
    for place, name in imported(source):
        instead = PORTS_INSTEAD.get(name.partition(".")[0])
        if instead:
            yield f"{source.where(place)} imports {name}: ask for {instead}"
    for place in source.places:
        if last_name(place.node) in ("environ", "getenv"):
            yield f"{source.where(place)} reads the environment: ask for an argument"


def test_values_and_decisions_are_pure() -> None:
    """Rule 6, for `decide/` and `spec/`: they import only modules without a world behind them."""
    files = [source for source in sources() if source.path.startswith(PURE_FOLDERS)]
    assert len(files) > len(PURE_FOLDERS)
    remedy = "Let the caller look, and hand what it saw over as an argument; decide/ and spec/ only compute."
    found = {complaint for source in files for complaint in impurities(source)}
    hold(sorted(found - ALLOWED.keys()), remedy)
    hold(sorted(ALLOWED.keys() - found), "Nothing does this any more; take it out of ALLOWED:")


def test_the_trunk_needs_only_python() -> None:
    """Errors, spec, decide and engine import the standard library and each other, nothing else."""
    files = [source for source in sources() if source.path.startswith(TRUNK)]
    assert {source.path.partition("/")[0] for source in files} == {folder.rstrip("/") for folder in TRUNK}
    remedy = "Put a port into spec/ports, implement it in a leaf, and take it as an argument."
    hold((complaint for source in files for complaint in strangers(source)), remedy)


def test_the_engine_goes_through_its_ports() -> None:
    """The engine imports no clock, no randomness, no files, no processes: it is handed them."""
    files = [source for source in sources() if source.path.startswith("engine/")]
    assert files
    remedy = "The engine gets its Store, State, Ranks, Ledger and Clock as arguments."
    hold((complaint for source in files for complaint in shortcuts(source)), remedy)


@pytest.mark.parametrize(
    "code",
    [
        *(f"import {name}" for name in ("os", "sys", "time", "random", "io", "subprocess", "socket", "threading")),
        "from datetime import datetime",
        "from pathlib import Path",
        "import pathlib",
        "from os import environ as e",
        "def f():\n    import time",
        "def f(path):\n    return open(path)",
        "x = hash('a')",
    ],
)
def test_a_planted_impurity_is_seen(code: str) -> None:
    """Clock, file, environment, randomness and process are complained about, also inside functions."""
    assert len(list(impurities(Source("decide/a.py", code)))) == 1


def test_planted_strangers_and_shortcuts_are_seen() -> None:
    """Torch in the trunk, and a clock or the environment in the engine, are complained about; relative imports not."""
    code = "import os, time\nfrom torch import nn\nfrom .keep import Keeper\nx = os.environ['A']\ny = clock.time()"
    assert list(strangers(Source("engine/a.py", code))) == ["engine/a.py imports torch.nn"]
    assert [complaint.partition(":")[0] for complaint in shortcuts(Source("engine/a.py", code))] == [
        "engine/a.py imports time",
        "engine/a.py reads the environment",
    ]


def test_what_is_pure_passes() -> None:
    """Pure paths, methods that are called like builtins, and the standard library's containers pass."""
    code = "from pathlib import PurePath\nfrom collections.abc import Mapping\nimport re\nre.compile('a')\na.open('b')"
    assert list(impurities(Source("spec/a.py", code))) == []
