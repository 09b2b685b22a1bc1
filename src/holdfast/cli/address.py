"""What a person typed: which run, and which checkpoint of it. Looking creates nothing."""

import os
import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from .. import wiring
from ..engine.checkpoint import committed
from ..errors import NoSuchCheckpoint, NotAStore, NotFound, UsageError
from ..spec import names
from ..spec.names import CheckpointId
from ..spec.ports import Store

LATEST = "latest"

RunArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder, like runs/digits; or that of one of its checkpoints.")
]
CheckpointArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[CHECKPOINT]",
        help="A name, like 0000000120-a000001, a step, like 120, or latest.",
        show_default=LATEST,
    ),
]

_INSIDE = re.compile(r"^(.+)/checkpoints/([^/]+)$")


@dataclass(frozen=True, slots=True)
class Address:
    """A run, and the name of the checkpoint in it whose folder was given, if it was."""

    store: Store
    named: str | None = None


def find_run(text: str) -> Address:
    """Open the run that a path means. Raises: NotFound, NotAStore, UsageError, StoreError."""
    store = wiring.open_store(text)
    inside = _INSIDE.match(store.url.rstrip("/"))
    if inside is not None and CheckpointId.parse(inside[2]) is not None:
        address = Address(wiring.open_store(inside[1]), inside[2])
    else:
        address = Address(store)
    if os.path.isfile(address.store.url) or not _is_run(address.store):
        raise _why_no_run(address.store.url)
    return address


def find_checkpoint(address: Address, wanted: str | None) -> CheckpointId:
    """Choose the checkpoint that is meant: by name, by step (the newest of that step), or the latest.

    Raises: NoSuchCheckpoint, UsageError when two are named; StoreError.
    """
    if address.named is not None and wanted is not None:
        raise UsageError(f"two checkpoints are named, {address.named} by its folder and {wanted}; name one")
    wanted = address.named or wanted or LATEST
    existing = committed(address.store)
    if wanted == LATEST:
        matching = existing
    elif wanted.isdecimal():
        matching = [checkpoint for checkpoint in existing if checkpoint.step == int(wanted)]
    else:
        matching = [checkpoint for checkpoint in existing if str(checkpoint) == wanted]
    if not matching:
        raise NoSuchCheckpoint(wanted, [str(checkpoint) for checkpoint in existing])
    return matching[-1]


def _is_run(store: Store) -> bool:
    """Recognise a run, also one that has lost its run.json."""
    try:
        return store.size(names.RUN) >= 0
    except NotFound:
        claimed = any(names.attempt_of_claim(name) is not None for name in store.list(names.ATTEMPTS))
        return claimed or bool(committed(store))


def _why_no_run(url: str) -> NotFound | NotAStore:
    # Not through the store: its `list` would walk all that lies below, and somebody may have given a whole disk.
    found = os.listdir(url) if os.path.isdir(url) else None
    if found:
        return NotAStore(url, found)
    nothing = "that is a file" if os.path.isfile(url) else "there is no such folder"
    what = nothing if found is None else "the folder is empty"
    return NotFound(url, f"{what}; give the path of a run, the one that holdfast.Run was given")
