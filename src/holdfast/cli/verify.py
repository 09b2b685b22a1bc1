"""`holdfast verify`: is what is stored still what was committed?"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from .. import wiring
from ..engine import checkpoint as checkpoints
from ..engine.checkpoint import Checkpoint, committed, open_checkpoint
from ..errors import CheckpointError, NewerFormat, NoSuchCheckpoint, StoreError, UsageError
from ..spec.names import CheckpointId
from ..spec.ports import Store
from . import output
from .address import LATEST, CheckpointArgument, RunArgument, find_checkpoint, find_run
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console

AllOption = Annotated[bool, typer.Option("--all", help="Check every checkpoint of the run.")]
DeepOption = Annotated[
    bool, typer.Option("--deep/--quick", help="Read every byte, or only manifests, names, lengths and headers.")
]


def verify(
    run: RunArgument,
    checkpoint: CheckpointArgument = None,
    every: AllOption = False,
    deep: DeepOption = True,
    as_json: JsonOption = False,
) -> None:
    """Check that a checkpoint is what was committed, every byte of it.

    Files of older checkpoints that it refers to are checked along. Nothing is changed, and a damaged checkpoint stays
    where it is: a resume refuses it and takes the next older one. Exit code 0 when all is sound, 11 when not.

    Example: `holdfast verify runs/digits --all`
    """
    address = find_run(run)
    if every and (checkpoint is not None or address.named is not None):
        raise UsageError("--all checks every checkpoint; leave it out to check the one that is named")
    chosen = committed(address.store) if every else [find_checkpoint(address, checkpoint)]
    verdicts = [_judge(address.store, one, deep) for one in chosen]
    if any(verdict["problem"] for verdict in verdicts):  # what a running attempt pruned in the meantime is not damaged
        there = {str(one) for one in committed(address.store)}
        verdicts = [verdict for verdict in verdicts if verdict["checkpoint"] in there]
    if not verdicts:
        raise NoSuchCheckpoint(checkpoint or LATEST, [str(one) for one in committed(address.store)])
    sound = not any(verdict["problem"] for verdict in verdicts)
    output.tell({"run": address.store.url, "deep": deep, "sound": sound, "checkpoints": verdicts}, as_json, _page)
    if not sound:
        raise typer.Exit(CheckpointError.exit_code)


def _judge(store: Store, checkpoint: CheckpointId, deep: bool) -> Facts:
    began = time.monotonic()
    verdict, problem = "sound", None
    checked = 0
    try:
        opened = open_checkpoint(store, wiring.xxh3, checkpoint)
        with output.progress(str(checkpoint), _total(opened)) as done:
            for nbytes in checkpoints.verify(store, wiring.xxh3, opened, deep=deep):
                checked += nbytes
                done(nbytes)
    except (CheckpointError, NewerFormat, StoreError) as error:
        verdict, problem = "damaged" if isinstance(error, CheckpointError) else "unreadable", str(error)
    return {
        "checkpoint": str(checkpoint),
        "verdict": verdict,
        "problem": problem,
        "checked_bytes": checked if deep else 0,
        "took_s": round(time.monotonic() - began, 3),
    }


def _total(checkpoint: Checkpoint) -> int:
    blobs = sum(blob.nbytes for rank in checkpoint.ranks for blob in rank.blobs.values())
    return blobs + sum(stored.leaf.nbytes for rank in checkpoint.ranks for stored in rank.leaves)


def _page(facts: Facts, console: "Console") -> None:
    rows = output.table("checkpoint", "verdict", "checked", "", right=("checked",), whole=("checkpoint",))
    for verdict in facts["checkpoints"]:
        checked = output.size(verdict["checked_bytes"]) if facts["deep"] else "quickly"
        if verdict["problem"] is None:
            rows.add_row(verdict["checkpoint"], "sound", checked, f"{verdict['took_s']:.1f} s")
        else:
            rows.add_row(verdict["checkpoint"], verdict["verdict"].upper(), checked, verdict["problem"], style="red")
    console.print(rows)
