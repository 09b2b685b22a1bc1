"""docs/failures.md: every fault, what is promised about it, and the test that proves the promise."""

import re
from collections.abc import Iterable, Iterator
from functools import cache

from .markdown import table, written
from .source import ROOT, Source, hold, last_name

DOCUMENT = "docs/failures.md"
COLUMNS = ("fault", "promise", "test")
PROVING_FOLDERS = ("tests/scenario", "tests/damage", "tests/crash")
SUITES = "src/holdfast/testing/contracts.py"

_TEST = re.compile(r"\btests/[\w/]+\.py(?:::\w+)*")


def rows() -> list[list[str]]:
    """Read every row of the table."""
    text = written(DOCUMENT, f"Write it: a table | {' | '.join(COLUMNS)} | with a row for every fault.")
    found = table(text.text, *COLUMNS)
    hold([] if found else [DOCUMENT], f"Put a table | {' | '.join(COLUMNS)} | there, with a row for every fault:")
    return found


def wrong_rows(found: Iterable[list[str]]) -> Iterator[str]:
    """Say which rows prove nothing: without a promise, without a test, or with one that is not there."""
    for cells in found:
        if len(cells) != len(COLUMNS) or not all(cells):
            yield f"{' | '.join(cells)}: give it a fault, a promise and a test"
            continue
        fault, _, proof = cells
        named = _TEST.findall(proof)
        if not named:
            yield f"{fault}: names no test, like `tests/scenario/test_kill.py::test_kill_during_a_save`"
        yield from (f"{fault}: {name} is not there" for name in named if not is_there(name))


def is_there(name: str) -> bool:
    """Tell whether `tests/file.py::test` or `tests/file.py::Class::test` exists; a test may be a suite's."""
    path, *inner = name.split("::")
    if not inner or not (ROOT / path).is_file():
        return False
    defined = definitions(path)
    if ".".join(inner) in defined:
        return True
    suites = [base for base in defined.get(inner[0], ()) if f"{base}.{inner[-1]}" in definitions(SUITES)]
    return len(inner) == 2 and bool(suites)


@cache
def definitions(path: str) -> dict[str, tuple[str, ...]]:
    """The tests and classes of a file, by dotted name; for a class, what it inherits from."""
    source = Source(path, (ROOT / path).read_text())
    classes = {place.name: tuple(map(last_name, node.bases)) for place, node in source.classes}
    return classes | {place.name: () for place, function in source.functions if function.name.startswith("test_")}


def test_every_row_names_a_test_that_is_there() -> None:
    """Each row of the table has a fault, a promise, and at least one test that exists."""
    hold(wrong_rows(rows()), f"Correct these rows of {DOCUMENT}:")


def test_every_proof_is_in_the_table() -> None:
    """Each file of scenario, damage and crash tests is named in the table at least once."""
    named = {name.partition("::")[0] for row in rows() for name in _TEST.findall(row[-1])}
    there = {
        file.relative_to(ROOT).as_posix() for folder in PROVING_FOLDERS for file in (ROOT / folder).glob("test_*.py")
    }
    assert there
    hold(sorted(there - named), f"Say in {DOCUMENT} which fault and which promise each of these is about:")


def test_planted_rows_are_seen() -> None:
    """A row without a promise, without a test, or with one that does not exist is complained about; others are not."""
    here = "tests/police/test_failures_table.py"
    suite = "tests/contracts/test_stores.py::TestMemoryStore"
    inherited = next(name for name in definitions(SUITES) if name.startswith("StoreContract.test_")).partition(".")[2]
    text = f"""
| Fault | Promise | Test |
|---|:--|---|
| fine | yes | `{here}::test_planted_rows_are_seen`, `{suite}::{inherited}` |
| a \\| b | | `{here}::test_planted_rows_are_seen` |
| no test | yes | believe me |
| a file | yes | `{here}` |
| gone | yes | `{here}::test_gone` |
| gone file | yes | `tests/gone.py::test_a` |
| gone method | yes | `{suite}::test_gone` |

| fault | other |
|---|---|
| not ours | x |
"""
    found = table(text, *COLUMNS)
    assert len(found) == 7
    assert [complaint.partition(":")[0] for complaint in wrong_rows(found)] == [
        "a \\| b |  | `tests/police/test_failures_table.py",
        "no test",
        "a file",
        "gone",
        "gone file",
        "gone method",
    ]
