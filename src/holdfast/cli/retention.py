"""`holdfast pin`, `unpin`, `prune`: retention by hand."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from .. import wiring
from ..decide.retention import Keep
from ..engine import prune as pruning
from ..engine.history import metric_at
from ..engine.prune import PruneReport, Rules
from ..errors import CheckpointError, NoSuchCheckpoint, UsageError
from ..spec.names import CheckpointId
from ..spec.ports import Store
from . import output
from .address import Address, RunArgument, find_checkpoint, find_run
from .inventory import Inventory, read_history, take_inventory
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console


class Mode(StrEnum):
    """Which values of a metric are good ones."""

    MIN = "min"
    MAX = "max"


PinArgument = Annotated[
    str | None, typer.Argument(metavar="CHECKPOINT", help="A name, like 0000000120-a000001, a step, or latest.")
]
LastOption = Annotated[int | None, typer.Option("--last", help="Keep the newest so many, and never fewer than two.")]
BestOption = Annotated[int | None, typer.Option("--best", help="Keep the best so many by --metric; 0: none.")]
MetricOption = Annotated[str | None, typer.Option("--metric", help="A reported metric, like val_loss.")]
ModeOption = Annotated[Mode | None, typer.Option("--mode", help="Whether small or large values of --metric are good.")]
EveryOption = Annotated[
    int | None,
    typer.Option("--every-steps", metavar="N", help="Keep the first at or after every multiple of N steps; 0: none."),
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")]


def pin(run: RunArgument, checkpoint: PinArgument = None, as_json: JsonOption = False) -> None:
    """Keep a checkpoint, whatever the retention rules say, until it is unpinned.

    Example: `holdfast pin runs/digits 120`
    """
    address = find_run(run)
    chosen = find_checkpoint(address, _required(checkpoint, address))
    changed = chosen not in pruning.pinned(address.store)
    pruning.pin(address.store, chosen)
    _tell_pin(address.store, chosen, pinned=True, changed=changed, as_json=as_json)


def unpin(run: RunArgument, checkpoint: PinArgument = None, as_json: JsonOption = False) -> None:
    """Leave a pinned checkpoint to the retention rules again; nothing is deleted now.

    Example: `holdfast unpin runs/digits 120`
    """
    address = find_run(run)
    pins = pruning.pinned(address.store)
    chosen = _pinned_one(address, _required(checkpoint, address), pins)
    pruning.unpin(address.store, chosen)
    _tell_pin(address.store, chosen, pinned=False, changed=chosen in pins, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Delete the checkpoints that no rule wants to keep, and what interrupted saves left behind.

    The rules are the run's own, those of `holdfast.Keep` that its newest sound checkpoint was saved under; each of
    --last, --best, --metric, --mode and --every-steps replaces one of them for this time.

    A checkpoint stays if any rule wants it, or if it is pinned. The newest two that are sound stay whatever the rules
    say. Before a checkpoint goes, every byte of the newest two that stay is read; when one is not what was committed,
    nothing is deleted, and the exit code is 11. What a running attempt is writing is left alone.

    Example: `holdfast prune runs/digits --last 3 --best 2 --metric val_loss --dry-run`
    """

    run: RunArgument
    last: LastOption = None
    best: BestOption = None
    metric: MetricOption = None
    mode: ModeOption = None
    every_steps: EveryOption = None
    dry_run: DryOption = False
    as_json: JsonOption = False

    def carry_out(self) -> None:
        """Prune, and tell what stays, why, and what went."""
        store = find_run(self.run).store
        inventory = take_inventory(store)
        keep = self._keep(inventory.keep)
        rules = Rules(
            keep=keep,
            metric_at=_metric_at(store, inventory, keep, typed=self.metric is not None),
            refused=inventory.damaged,
            writing_from=inventory.writing_from,
            dry_run=self.dry_run,
            deep=True,
        )
        report = pruning.prune(store, wiring.xxh3, rules)
        output.tell({"keep": asdict(keep), **_facts(store, inventory, report, self.dry_run)}, self.as_json, _page)
        if report.held_back:
            raise typer.Exit(CheckpointError.exit_code)

    def _keep(self, own: Keep) -> Keep:
        """Put what was typed in the place of the run's own rules. Raises: UsageError."""
        best = own.best if self.best is None else self.best
        metric = own.metric if self.metric is None else self.metric
        if (best > 0 and metric is None) or (best == 0 and self.metric is not None):
            raise UsageError("--best and --metric belong together, like: --best 2 --metric val_loss")
        return replace(
            own,
            last=own.last if self.last is None else self.last,
            best=best,
            metric=metric,
            mode=own.mode if self.mode is None else self.mode.value,
            every_steps=own.every_steps if self.every_steps is None else self.every_steps or None,
        )


class CarriedOut(TyperCommand):
    """A command whose options are the fields of a value, which then carries itself out."""

    def invoke(self, ctx: Any) -> Any:
        """Make the value, then have it do its work."""
        return super().invoke(ctx).carry_out()


def _required(checkpoint: str | None, address: Address) -> str | None:
    if checkpoint is None and address.named is None:
        raise UsageError("say which checkpoint: a name, a step, or latest; `holdfast ls` lists them")
    return checkpoint


def _pinned_one(address: Address, wanted: str | None, pins: set[CheckpointId]) -> CheckpointId:
    """Choose among the committed ones; a pin whose checkpoint is gone can still be named in full."""
    try:
        return find_checkpoint(address, wanted)
    except NoSuchCheckpoint:
        orphan = CheckpointId.parse(wanted or address.named or "")
        if orphan in pins:
            return orphan
        raise


def _tell_pin(store: Store, checkpoint: CheckpointId, *, pinned: bool, changed: bool, as_json: bool) -> None:
    facts = {"run": store.url, "checkpoint": str(checkpoint), "pinned": pinned, "changed": changed}
    word = "pinned" if pinned else "not pinned"
    text = f"{checkpoint} is {word}{'' if changed else ', as it was before'}"
    output.tell(facts, as_json, lambda told, console: console.print(text))


def _metric_at(store: Store, inventory: Inventory, keep: Keep, *, typed: bool) -> Callable[[int], float | None]:
    """Look metrics up in the history that the newest sound checkpoint holds.

    Raises: UsageError for a typed metric that was never reported; CheckpointError, StoreError.
    """
    history = read_history(store, inventory) if keep.best else b""
    reported = history.decode().partition("\n")[0].split(",")[1:]
    if typed and inventory.newest_sound and keep.metric not in reported:
        raise UsageError(f"no metric {keep.metric!r} was reported; there are: {', '.join(reported) or 'none'}")
    return metric_at(history, keep.metric)


def _facts(store: Store, inventory: Inventory, report: PruneReport, dry_run: bool) -> Facts:
    left_alone = [c for c in inventory.unfinished if c.attempt >= inventory.writing_from]
    return {
        "run": store.url,
        "dry_run": dry_run,
        "kept": [{"checkpoint": str(c), "because": why} for c, why in report.retention.kept],
        "let_go": [str(c) for c in report.retention.let_go],
        "leftovers": list(report.leftovers),
        "left_alone": [str(c) for c in left_alone],
        "deleted_objects": report.deleted,
        "held_back": report.held_back or None,
    }


def _page(facts: Facts, console: "Console") -> None:
    verb = "would go" if facts["dry_run"] or facts["held_back"] else "went"
    rows = output.table("checkpoint", "", "because", whole=("checkpoint", ""))
    for name in facts["let_go"]:
        rows.add_row(name, verb, "no rule wants it")
    for entry in facts["kept"]:
        rows.add_row(entry["checkpoint"], "stays", entry["because"])
    if rows.row_count:
        console.print(rows)
    if facts["leftovers"]:
        console.print(f"{output.counted(len(facts['leftovers']), 'object')} of unfinished saves {verb}")
    for name in facts["left_alone"]:
        console.print(f"{name} is unfinished and left alone: it is being written, or the next resume commits it")
    if facts["held_back"]:
        console.print(f"NOTHING WAS DELETED: {facts['held_back']}", style="red")
    elif not facts["let_go"] and not facts["leftovers"]:
        console.print("nothing has to go")
