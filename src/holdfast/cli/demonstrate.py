"""`holdfast demo`: wired here, made in `demo/`, which is imported only when it is asked for."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .output import JsonOption

FolderArgument = Annotated[Path, typer.Argument(metavar="[DIR]", help="A folder for the runs and the report.")]
StepsOption = Annotated[int | None, typer.Option("--steps", help="Optimizer steps.", show_default="the demo's own")]
KillsOption = Annotated[int | None, typer.Option("--kills", help="How often to kill.", show_default="the demo's own")]

_NEEDS = ("torch", "matplotlib")


def demo(
    folder: FolderArgument = Path("demo"),
    steps: StepsOption = None,
    kills: KillsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small GPT twice, kill one of the two again and again, and prove that both end bit for bit the same.

    Writes the losses, the kills, and a picture into DIR. Exit code 0 when every loss and the final weights are
    identical.

    Example: `holdfast demo proof --kills 4`
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {' and '.join(missing)}: pip install 'holdfast[demo]'")
    from rich.console import Console

    from .demo import demo as play

    asked = {name: value for name, value in (("steps", steps), ("kills", kills)) if value is not None}
    # With --json, what it tells on the way must not mix with the document on standard output.
    raise typer.Exit(play(folder, as_json=as_json, console=Console(stderr=as_json), **asked))
