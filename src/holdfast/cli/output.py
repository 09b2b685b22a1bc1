"""How facts are printed: as one JSON document, or as a page for people. Sizes, times and progress for people."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

Facts: TypeAlias = dict[str, Any]
"""What a command found out, as JSON will have it: sizes end in `_bytes`, instants in `_at` (seconds since 1970)."""

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]

_PIPED_COLUMNS = 200
"""Width of a page that does not go to a terminal: wide enough that grep finds whole lines."""


def tell(facts: Facts, as_json: bool, page: "Callable[[Facts, Console], None]") -> None:
    """Print facts on standard output, as JSON or as a page."""
    if as_json:
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        page(facts, console())


def console() -> "Console":
    """Make a console on standard output that takes every text literally, brackets too."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_COLUMNS
    return Console(width=width, markup=False, emoji=False, highlight=False)


def table(*columns: str, right: Sequence[str] = (), whole: Sequence[str] = ()) -> "Table":
    """Make a table without a frame; columns in `right` stand at the right, and like those in `whole` never wrap."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in {*right, *whole})
    return made


def size(nbytes: int | None) -> str:
    """Write a number of bytes for people, in decimal units."""
    if nbytes is None:
        return "?"
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


def ago(instant: float | None, now: float) -> str:
    """Write how long ago something was, in its largest unit."""
    if instant is None:
        return "?"
    passed = max(0.0, now - instant)
    for unit, seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if passed >= 2 * seconds:
            return f"{passed / seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def moment(instant: float | None) -> str:
    """Write an instant as local time."""
    return "?" if instant is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(instant))


def metrics(values: dict[str, float]) -> str:
    """Write metrics on one line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def shortened(text: str, length: int = 80) -> str:
    """Cut a text that is too long for a line."""
    return text if len(text) <= length else text[: length - 1] + "…"


def counted(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@contextmanager
def progress(doing: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, when that is a terminal; yields what is to be told the bytes done."""
    if not sys.stderr.isatty():
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(doing, total=total_bytes)
        yield lambda nbytes: bar.advance(task, nbytes)
