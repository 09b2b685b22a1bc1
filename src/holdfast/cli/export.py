"""`holdfast export`: one checkpoint as plain files that need no Holdfast."""

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import wiring
from ..engine.checkpoint import open_checkpoint
from ..engine.export import Exported, Source, TorchWriter
from ..engine.export import export as export_checkpoint
from ..errors import Unavailable, UsageError
from ..spec.ports import Store
from . import output
from .address import Address, RunArgument, find_checkpoint, find_run
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    """How parts with tensors are written that are no modules."""

    AUTO = "auto"
    SAFETENSORS = "safetensors"


FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="CHECKPOINT", help="A name, a step, or latest.", show_default="latest"),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="auto: optimizers and the like as .pt, if torch is here. safetensors: nothing as .pt."
    ),
]


def export(
    run: RunArgument,
    folder: FolderArgument,
    checkpoint: CheckpointOption = None,
    form: FormatOption = Format.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Write one checkpoint as plain files: safetensors, .pt, JSON, YAML, CSV.

    A module becomes model.safetensors with every name of its state_dict (safetensors.torch.load_file reads it), an
    optimizer optimizer.pt (torch.load with weights_only=True reads it), a part without tensors scheduler.json. Along go
    train_state.json, config.yaml and metrics.csv. Every byte is verified while it is read. The folder appears when all
    is there, or not at all.

    Example: `holdfast export runs/digits exported --checkpoint 120`
    """
    address = find_run(run)
    found = open_checkpoint(address.store, wiring.xxh3, find_checkpoint(address, checkpoint))
    folder = _free(folder, address)
    torch_is_here = importlib.util.find_spec("torch") is not None
    total = sum(stored.leaf.nbytes for rank in found.ranks for stored in rank.leaves)
    with _appearing(folder) as place, output.progress(str(found.id), total) as done:
        target = wiring.open_store(place)
        source = Source(address.store, wiring.xxh3, found, done)
        writer = _torch_writer(place) if torch_is_here and form is Format.AUTO else None
        files = [_file(target, exported) for exported in export_checkpoint(source, target, writer)]
    notes = (
        [] if torch_is_here or form is Format.SAFETENSORS else ["torch is not installed here, so nothing is a .pt file"]
    )
    facts = {
        "run": address.store.url,
        "checkpoint": str(found.id),
        "folder": str(folder),
        "files": files,
        "notes": notes,
    }
    output.tell(facts, as_json, _page)


def _torch_writer(place: Path) -> TorchWriter:
    from ..state.export import write_torch_file

    return lambda file, packed, leaves, read: write_torch_file(place / file, packed, leaves, read)


def _file(target: Store, exported: Exported) -> Facts:
    return {"file": exported.file, "file_bytes": target.size(exported.file), "holds": exported.holds}


def _free(folder: Path, address: Address) -> Path:
    """Make sure that the folder is new or empty, and not inside the run. Raises: UsageError."""
    folder = folder.expanduser().resolve()
    if folder.is_relative_to(Path(address.store.url).resolve()):
        raise UsageError(f"{folder} lies inside the run; give a folder outside of it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a new or empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new or empty folder")
    return folder


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the given one, which takes its name when the block ends without an error.

    Raises: Unavailable.
    """
    place = folder.with_name(f".{folder.name}.{os.getpid()}-{time.time_ns()}.partial")
    try:
        place.mkdir(parents=True)
        yield place
        _sync(place)
        place.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise Unavailable(str(folder), f"could not be made: {error.strerror or error}; give another folder") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _page(facts: Facts, console: "Console") -> None:
    console.print(f"{facts['checkpoint']} exported to {facts['folder']}")
    files = output.table("file", "bytes", "holds", right=("bytes",))
    for file in facts["files"]:
        files.add_row(file["file"], f"{file['file_bytes']:,}", file["holds"])
    console.print(files)
    for note in facts["notes"]:
        console.print(note)
