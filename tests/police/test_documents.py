"""The documents agree with the repository: links lead somewhere, code compiles, commands and verbs exist."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import typer.main

import holdfast
from holdfast.cli.app import app

from .markdown import Block, Document, documents, files, table, written
from .source import PACKAGE, ROOT, hold, last_name

MAX_README_LINES = 149
MAX_LOOK_BYTES = 1 << 20
"""Larger files are not looked at: nobody wrote them by hand."""

ELSEWHERE = [f"/{name}/" for name in ("work", "root")] + ["/tmp" + "/venv"]
"""Paths of one machine, which mean nothing to anybody else."""

_LINE_NUMBER = re.compile(r"\b[\w/]+\.py:\d+")
_COMMAND = re.compile(r"^(?:\w+=\S+ )*(?:\S*/)?holdfast ([a-z][\w-]*(?: [/|] [a-z][\w-]*)*)")
_VERB = re.compile(r"^(?:\w+=\S+ )*make (?:-\S+ )*([a-z][\w-]*)")
_MODULE = re.compile(r"(?:src/holdfast/)?((?:spec|decide|engine|storage|state|ranks|cli|testing)/[a-z_/]*)(?:\.py)?")


def line_numbers(text: Document) -> Iterator[str]:
    """Say where a document points at a line of code."""
    yield from (f"{text.path}: {found}" for found in _LINE_NUMBER.findall(text.text))


def dead_links(text: Document, root: Path = ROOT) -> Iterator[str]:
    """Say which relative links lead nowhere, headings included."""
    for link in text.links:
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        target = (root / text.path).parent / path if path else root / text.path
        if not target.exists():
            yield f"{text.path}: {link}"
        elif anchor and target.suffix == ".md" and anchor not in Document(path, target.read_text()).anchors:
            yield f"{text.path}: {link} (no such heading)"


def wrong_code(block: Block) -> Iterator[str]:
    """Say what in a piece of Python does not compile, or calls Holdfast in a way that it cannot be called."""
    try:
        tree = ast.parse(block.code)
    except SyntaxError as error:
        yield f"line {error.lineno} does not compile: {error.text}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = {"holdfast": holdfast, "run": holdfast.Run}.get(node.value.id)
            if owner is not None and node.attr not in dir(owner):
                yield f"{node.value.id}.{node.attr} does not exist"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"holdfast.{n}" for n in holdfast.__all__}:
            try:
                signature = inspect.signature(getattr(holdfast, last_name(node)))
                signature.bind(*node.args, **{k.arg: k.value for k in node.keywords if k.arg})
            except TypeError as error:
                yield f"{ast.unparse(node.func)}(...): {error}"


def commands(text: Document) -> set[str]:
    """The subcommands of `holdfast` that a document mentions as commands."""
    found = [match[1] for line in text.command_lines if (match := _COMMAND.match(line))]
    return {name for group in found for name in re.split(r" [/|] ", group)}


def verbs(text: Document) -> set[str]:
    """The verbs of `make` that a document mentions as commands."""
    return {match[1] for line in text.command_lines if (match := _VERB.match(line))}


def missing_modules(text: Document) -> Iterator[str]:
    """Say which parts of the package a document speaks of and nobody has written."""
    for span in text.spans:
        match = _MODULE.fullmatch(span)
        if match and not any((PACKAGE / f"{match[1].rstrip('/')}{end}").exists() for end in ("", ".py")):
            yield f"{text.path}: {span}"


def test_no_document_points_at_line_numbers() -> None:
    """No document says `file.py` and a line: the next commit moves it."""
    found = [complaint for text in documents() for complaint in line_numbers(text)]
    hold(found, "Point at the function instead; line numbers move:")


def test_every_relative_link_leads_somewhere() -> None:
    """Each link and picture of each document names a file of the repository, and a heading in it if it names one."""
    assert documents()
    found = [complaint for text in documents() for complaint in dead_links(text)]
    hold(found, "Correct these links, or write what they lead to:")


def test_the_readme_is_short() -> None:
    """README.md stays under 150 lines."""
    lines = len(readme().text.splitlines())
    assert lines <= MAX_README_LINES, f"README.md has {lines} lines; move what not everybody needs to docs/"


def test_the_readme_shows_code_that_compiles() -> None:
    """Every piece of Python in README.md compiles, and calls Holdfast as it can be called."""
    blocks = [block for block in readme().blocks if block.language == "python"]
    assert blocks, "show in README.md how a training loop uses Holdfast, between ```python fences"
    hold((complaint for block in blocks for complaint in wrong_code(block)), "Correct the code in README.md:")


def test_the_commands_in_the_documents_exist() -> None:
    """Every `holdfast` command that a document mentions is a command of the program; README.md mentions some."""
    there = set(getattr(typer.main.get_command(app), "commands", {}))
    assert commands(readme())
    for text in documents():
        hold(sorted(commands(text) - there), f"{text.path} mentions commands that `holdfast --help` does not know:")


def test_every_command_is_in_a_table_of_the_readme() -> None:
    """README.md lists each command of the program in its table of commands."""
    rows = table(readme().text, "command", "does")
    listed = {word for row in rows for word in re.findall(r"[a-z]+", row[0])}
    there = set(getattr(typer.main.get_command(app), "commands", {}))
    hold(sorted(there - listed), "Give each of these commands a row in README.md (| command | does |):")


def test_the_verbs_in_the_documents_exist() -> None:
    """Every `make` verb that a document mentions is in the Makefile."""
    there = set(re.findall(r"^([a-z][\w-]*)\s*:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert verbs(readme())
    for text in documents():
        hold(sorted(verbs(text) - there), f"{text.path} mentions verbs that the Makefile does not have:")


def test_the_modules_in_the_documents_exist() -> None:
    """Every part of the package that a document speaks of, like `engine/keep`, is there."""
    found = [complaint for text in documents() for complaint in missing_modules(text)]
    hold(found, "These documents speak of code that is not there:")


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    """No file of the repository holds a path that exists only where somebody worked on it."""
    found: list[str] = []
    for path in files():
        if (ROOT / path).stat().st_size < MAX_LOOK_BYTES:
            content = (ROOT / path).read_bytes()
            found += [f"{path}: {place}" for place in ELSEWHERE if place.encode() in content]
    hold(found, "Say it without this machine's paths:")


def test_planted_faults_are_seen(tmp_path: Path) -> None:
    """Each check of this file sees what it is for, in a document made of faults."""
    (tmp_path / "there.md").write_text("# A heading, `here`\n")
    text = Document(
        "bad.md",
        "See run.py:12, [a](gone.md), [b](there.md#nowhere), [c](there.md#a-heading-here), [d](https://example.org/x)\n"
        "and ![e](gone.png), `holdfast fly RUN`, `make bread`, `engine/wings` and `engine/keep`; make sure of it.\n"
        "```\n$ holdfast ls runs/digits\nA=1 bin/holdfast swim / sink\nholdfast: attempt 1\nmake -j2 haste N=1\n```\n",
    )
    assert list(line_numbers(text)) == ["bad.md: run.py:12"]
    assert list(dead_links(text, tmp_path)) == [
        "bad.md: gone.md",
        "bad.md: there.md#nowhere (no such heading)",
        "bad.md: gone.png",
    ]
    assert commands(text) == {"fly", "ls", "swim", "sink"}
    assert verbs(text) == {"bread", "haste"}
    assert list(missing_modules(text)) == ["bad.md: engine/wings"]


def test_planted_wrong_code_is_seen() -> None:
    """Code that does not compile, names that do not exist and arguments that do not fit are complained about."""
    for code in (
        "with x as y",
        "holdfast.Trainer",
        "run.fly()",
        "holdfast.Keep(latest=3)",
        "with holdfast.Run('runs/digits') as run: ...",
    ):
        assert len(list(wrong_code(Block("python", code)))) == 1
    assert not list(wrong_code(Block("python", "holdfast.Run('runs/digits', state={}, may_lose='5min').save()")))


def test_what_git_ignores_is_not_looked_at(tmp_path: Path) -> None:
    """The files of the repository are those that .gitignore does not leave out, at any depth or at the top alone."""
    (tmp_path / ".gitignore").write_text("# made here\n.venv/\n/demo/\n*.pyc\n")
    for name in (".git/a", ".venv/a", "demo/a", "src/.venv/a", "src/demo/a", "src/a.pyc", "src/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(files(tmp_path)) == [".gitignore", "src/a.py", "src/demo/a"]


def readme() -> Document:
    """Read README.md."""
    return written("README.md", "Write it: what Holdfast is, ten lines of code, what is guaranteed and what is not.")
