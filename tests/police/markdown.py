"""The documents of the repository, and what in them is code, a link or a table."""

import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .source import ROOT, hold

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\w*)")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|\b(?:src|href|srcset)=[\"']([^\"']+)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code between fences."""

    language: str
    code: str


@dataclass(frozen=True, slots=True)
class Document:
    """One file; `path` is relative to the repository."""

    path: str
    text: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The pieces of code between fences, in order."""
        return tuple(_split(self.text)[0])

    @property
    def prose(self) -> str:
        """All that is not between fences."""
        return _split(self.text)[1]

    @property
    def spans(self) -> list[str]:
        """The pieces of code within lines."""
        return [" ".join(code.split()) for _, code in _SPAN.findall(self.prose)]

    @property
    def command_lines(self) -> Iterator[str]:
        """Every line that could be typed into a shell: those between fences other than python's, and the spans."""
        for block in self.blocks:
            if block.language not in ("python", "toml", "yaml", "json"):
                yield from (line.strip().removeprefix("$ ") for line in block.code.splitlines())
        yield from self.spans

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures."""
        text = _SPAN.sub("", self.prose)
        return [inline or tag or reference for inline, tag, reference in _LINK.findall(text)]

    @property
    def anchors(self) -> set[str]:
        """What a link may name after `#`: the headings, as GitHub spells them."""
        headings = re.findall(r"^#+\s+(.+?)\s*$", self.prose, re.MULTILINE)
        plain = [re.sub(r"\]\([^)]*\)|[^\w\s-]", "", heading.lower()) for heading in headings]
        return {re.sub(r"\s", "-", heading) for heading in plain}


@cache
def documents() -> tuple[Document, ...]:
    """Read every document of the repository."""
    return tuple(Document(path, (ROOT / path).read_text()) for path in files() if path.endswith(".md"))


def written(path: str, remedy: str) -> Document:
    """Find one document; fail with the remedy when it is not there."""
    found = [text for text in documents() if text.path == path]
    hold([] if found else [f"{path} is not there"], remedy)
    return found[0]


def table(text: str, *columns: str) -> list[list[str]]:
    """The rows of every table with these columns, by their cells; an escaped bar stays in its cell."""
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if [cell.lower() for cell in cells] == [column.lower() for column in columns]:
            inside = True
        elif not cells:
            inside = False
        elif inside and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append(cells)
    return rows


def files(root: Path = ROOT) -> Iterator[str]:
    """Name every file of the repository, except what .gitignore leaves out."""
    lines = (root / ".gitignore").read_text().splitlines()
    ignored = [".git/", *(line.strip() for line in lines if line.strip() and not line.startswith("#"))]
    for folder, below, names in os.walk(root):
        here = Path(folder).relative_to(root)
        below[:] = sorted(name for name in below if not _ignored(here / name, ignored, folder=True))
        yield from ((here / name).as_posix() for name in sorted(names) if not _ignored(here / name, ignored))


def _ignored(path: Path, patterns: list[str], *, folder: bool = False) -> bool:
    for pattern in patterns:
        if pattern.endswith("/") and not folder:
            continue
        bare = pattern.rstrip("/")
        whole = path.as_posix() if "/" in bare else path.name
        if fnmatch.fnmatch(whole, bare.lstrip("/")):
            return True
    return False


def _split(text: str) -> tuple[list[Block], str]:
    blocks: list[Block] = []
    prose: list[str] = []
    fence, language, code = "", "", [""]
    for line in text.splitlines():
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, code = match[1], match[2].lower(), []
        elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            blocks.append(Block(language, "\n".join(code)))
            fence = ""
        elif fence:
            code.append(line)
        else:
            prose.append(line)
    return blocks, "\n".join(prose)
