"""The house rules: one text each, wherever they are printed, and each proved by tests that name it."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .markdown import written
from .source import ROOT, Source, hold, sources

HEADING = "## House rules"
DOCUMENT = "docs/design.md"

_RULE = re.compile(r"^Rule (\d+): ((?:(?!\nRule \d+:|\n\n).)*)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^(\d+)\. ((?:(?!\n\d+\.|\n\n).)*)", re.MULTILINE | re.DOTALL)
_BRACKETS = re.compile(r" ?\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Printed:
    """A rule as a file prints it: its text without remarks, and the tests that the last brackets name."""

    path: str
    number: int
    text: str
    tests: tuple[str, ...]


def printed(source: Source) -> Iterator[Printed]:
    """Read the rules at the top of a file."""
    for number, block in _RULE.findall(ast.get_docstring(source.tree) or ""):
        words = " ".join(block.split())
        named = (_BRACKETS.findall(words) or [""])[-1].split(", ")
        tests = tuple(name for name in named if name.startswith("tests/"))
        yield Printed(source.path, int(number), spoken(words), tests)


def listed(text: str) -> dict[int, str]:
    """Read the numbered list under the heading of the house rules, remarks left out."""
    _, _, below = text.partition(f"\n{HEADING}\n")
    section = below.partition("\n## ")[0]
    return {int(number): " ".join(words.split()) for number, words in _ITEM.findall(section)}


def spoken(words: str) -> str:
    """Reduce a rule to what it says: no remark in brackets, no capital at the beginning."""
    plain = _BRACKETS.sub("", words).strip()
    return plain[:1].lower() + plain[1:]


def unequal(rules: Iterable[Printed], canon: dict[int, str]) -> Iterator[str]:
    """Say which file prints a rule that is not in the list, or in other words than the list."""
    for rule in rules:
        text = spoken(canon.get(rule.number, ""))
        if rule.text != text:
            yield f"{rule.path}: Rule {rule.number}: {rule.text!r}, but {DOCUMENT} says {text!r}"


def unproved(rules: Iterable[Printed]) -> Iterator[str]:
    """Say which rule is printed without a test, with one that is not there, or with one that does not name it."""
    for rule in rules:
        if not rule.tests:
            yield f"{rule.path}: Rule {rule.number} names no test"
        for test in rule.tests:
            file = ROOT / test
            if not file.is_file():
                yield f"{rule.path}: Rule {rule.number} names {test}, which is not there"
            elif not re.search(rf"\bRule {rule.number}\b", file.read_text()):
                yield f'{rule.path}: Rule {rule.number} names {test}, which does not say "Rule {rule.number}"'


def all_printed() -> list[Printed]:
    """Read the rules at the top of every file of the package."""
    return [rule for source in sources() for rule in printed(source)]


def canonical() -> dict[int, str]:
    """Read the list of rules in the design document."""
    return listed(written(DOCUMENT, f"Write it, with a numbered list under {HEADING!r}.").text)


def test_a_rule_has_one_text() -> None:
    """Every file that prints a house rule prints it in the words of the list in docs/design.md."""
    assert all_printed()
    hold(unequal(all_printed(), canonical()), f"Print each rule word for word as {DOCUMENT} has it:")


def test_every_rule_is_printed_where_it_governs() -> None:
    """Every rule of the list stands at the top of a file; "(… yet.)" excuses one about code that nobody wrote yet."""
    numbers = {rule.number for rule in all_printed()}
    canon = canonical()
    assert sorted(canon) == list(range(1, len(canon) + 1)), "number the rules from 1, without gaps"
    absent = [f"{n}. {text}" for n, text in canon.items() if n not in numbers and not text.endswith("yet.)")]
    hold(absent, "Print these at the top of the file they govern, followed by (tests/...), the tests that prove them:")


def test_every_rule_names_tests_that_name_it() -> None:
    """Each printed rule is followed by test files in brackets; each is there, and says which rule it proves."""
    remedy = 'Put (tests/a.py, tests/b.py) after each rule, and say "Rule N: ..." in a docstring of each of those.'
    hold(unproved(all_printed()), remedy)


def test_planted_rules_are_seen() -> None:
    """Other words, an unknown number, no test, and tests that are not there or name no rule are complained about."""
    source = Source(
        "a.py",
        '"""A.\n\nRule 1: be\n    good. (Here: better.)\n    (tests/gone.py)\nRule 2: be bad.\n'
        'Rule 3: be.\n    (tests/__init__.py)\n\nNo rule.\n"""',
    )
    canon = listed("# A\n\n## House rules\n\nEach.\n\n1. Be\n   good. (A remark.)\n2. Be kind.\n\n## Later\n\n3. Be.\n")
    assert canon == {1: "Be good. (A remark.)", 2: "Be kind."}
    rules = list(printed(source))
    assert [(rule.number, rule.text) for rule in rules] == [(1, "be good."), (2, "be bad."), (3, "be.")]
    assert [complaint.split(":")[1] for complaint in unequal(rules, canon)] == [" Rule 2", " Rule 3"]
    assert [complaint.partition(": ")[2] for complaint in unproved(rules)] == [
        "Rule 1 names tests/gone.py, which is not there",
        "Rule 2 names no test",
        'Rule 3 names tests/__init__.py, which does not say "Rule 3"',
    ]
