"""`holdfast ls`: the checkpoints of a run, oldest to newest, and how its attempts ended."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import wiring
from ..decide.retention import Retention
from ..engine.history import metric_at
from ..engine.past import PastAttempt
from ..engine.prune import Rules, pinned, weigh
from ..errors import CheckpointError
from ..spec.attempts import describe
from ..spec.names import CheckpointId
from ..spec.ports import Store
from . import output
from .address import RunArgument, find_run
from .inventory import Inventory, read_history, take_inventory
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console

_ATTEMPTS_SHOWN = 10


def ls(run: RunArgument, as_json: JsonOption = False) -> None:
    """List a run's checkpoints, oldest to newest, and how its attempts ended.

    Only committed checkpoints are listed: those that a resume would find. Damage that shows without reading every byte
    is told; for certainty use `holdfast verify`. The column "kept" goes by the run's own retention rules, like
    `holdfast prune` without options.

    Example: `holdfast ls runs/digits`
    """
    output.tell(_facts(find_run(run).store), as_json, _page)


def _facts(store: Store) -> Facts:
    inventory = take_inventory(store)
    pins = pinned(store)
    reasons = dict(_retention(store, inventory).kept)
    return {
        "run": store.url,
        "keep": asdict(inventory.keep),
        "checkpoints": [_checkpoint(c, inventory, c in pins, reasons.get(c)) for c in inventory.existing],
        "attempts": [_attempt(attempt, inventory) for attempt in inventory.attempts],
        "unfinished": [
            {"checkpoint": str(c), "objects": len(objects), "left_alone": c.attempt >= inventory.writing_from}
            for c, objects in inventory.unfinished.items()
        ],
    }


def _retention(store: Store, inventory: Inventory) -> Retention:
    """What `holdfast prune` without options would keep."""
    keep = inventory.keep
    try:
        history = read_history(store, inventory) if keep.best else b""
    except CheckpointError:  # only its bytes tell that it is damaged: `verify` says so; the manifests have metrics too
        history = b""
    rules = Rules(keep=keep, metric_at=metric_at(history, keep.metric), refused=inventory.damaged)
    return weigh(store, wiring.xxh3, inventory.existing, rules)


def _checkpoint(checkpoint: CheckpointId, inventory: Inventory, is_pinned: bool, kept: str | None) -> Facts:
    opened = inventory.opened.get(checkpoint)
    about = opened.manifest.step if opened else {}
    problem = inventory.problems.get(checkpoint)
    return {
        "checkpoint": str(checkpoint),
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "epoch": about.get("epoch"),
        "samples": about.get("samples"),
        "taken_at": about.get("taken_at"),
        "written_bytes": opened.nbytes if opened else None,
        "metrics": about.get("metrics", {}),
        "reason": about.get("reason"),
        "parent": about.get("parent"),
        "pinned": is_pinned,
        "kept_because": kept,
        "problem": None if problem is None else str(problem),
        "damaged": checkpoint in inventory.damaged,
    }


def _attempt(attempt: PastAttempt, inventory: Inventory) -> Facts:
    verdict = attempt.verdict
    return {
        "attempt": attempt.attempt,
        "holder": attempt.holder,
        "claimed_at": attempt.claimed_at,
        "ending": verdict.ending if verdict else None,
        "living": inventory.living if attempt is inventory.attempts[-1] else False,
        "step": verdict.step if verdict else None,
        "checkpoint": verdict.checkpoint if verdict else None,
        "detail": verdict.detail if verdict else None,
        "ended_at": verdict.ended_at if verdict else None,
    }


def _page(facts: Facts, console: "Console") -> None:
    now = time.time()
    if not facts["checkpoints"]:
        console.print(f"{facts['run']}: nothing is committed yet")
    else:
        columns = ("checkpoint", "step", "epoch", "taken", "size", "metrics", "reason", "kept")
        listed = output.table(*columns, right=("step", "epoch", "taken", "size"), whole=("checkpoint",))
        for entry in facts["checkpoints"]:
            listed.add_row(*_row(entry, now), style="red" if entry["problem"] else None)
        console.print(listed)
        for entry in facts["checkpoints"]:
            if entry["problem"]:
                console.print(f"{entry['checkpoint']} is {_trouble(entry)}: {entry['problem']}", style="red")
    _attempts(facts, now, console)
    _unfinished(facts["unfinished"], console)


def _row(entry: Facts, now: float) -> list[str]:
    if entry["problem"]:
        return [entry["checkpoint"], str(entry["step"]), *[""] * 5, _trouble(entry).upper()]
    return [
        entry["checkpoint"],
        str(entry["step"]),
        "" if entry["epoch"] is None else str(entry["epoch"]),
        output.ago(entry["taken_at"], now),
        output.size(entry["written_bytes"]),
        output.metrics(entry["metrics"]),
        entry["reason"] or "",
        entry["kept_because"] or "-",
    ]


def _trouble(entry: Facts) -> str:
    return "damaged" if entry["damaged"] else "unreadable"


def _attempts(facts: Facts, now: float, console: "Console") -> None:
    attempts = facts["attempts"]
    if not attempts:
        return
    shown = attempts[-_ATTEMPTS_SHOWN:]
    columns = ("attempt", "began", "ended", "from step", "to step")
    listed = output.table(*columns, "", right=("attempt", "began", "from step", "to step"), whole=("ended",))
    began_at = _first_steps(facts["checkpoints"])
    for attempt in shown:
        listed.add_row(
            str(attempt["attempt"]),
            output.ago(attempt["claimed_at"], now),
            _ending(attempt),
            str(began_at.get(attempt["attempt"], "")),
            "" if attempt["step"] is None else str(attempt["step"]),
            output.shortened(_detail(attempt)),
        )
    console.print()
    console.print(listed)
    if len(attempts) > len(shown):
        console.print(f"{output.counted(len(attempts) - len(shown), 'earlier attempt')} not shown; --json lists all")


def _first_steps(checkpoints: list[Facts]) -> dict[int, int]:
    """The step at which each attempt went on, as far as the checkpoints that are left tell."""
    steps: dict[int, int] = {}
    for entry in checkpoints:
        parent = CheckpointId.parse(entry["parent"] or "")
        if parent is not None and parent.attempt != entry["attempt"]:
            steps.setdefault(entry["attempt"], parent.step)
    return steps


def _ending(attempt: Facts) -> str:
    if attempt["ending"]:
        return str(attempt["ending"])
    return {True: "running", None: "not known"}.get(attempt["living"], "without a word")


def _detail(attempt: dict[str, Any]) -> str:
    if attempt["ending"] or attempt["living"] is False:
        return attempt["detail"] or ""
    return describe(attempt["holder"] or {})


def _unfinished(unfinished: list[Facts], console: "Console") -> None:
    alone = [entry for entry in unfinished if entry["left_alone"]]
    litter = [entry for entry in unfinished if not entry["left_alone"]]
    if not unfinished:
        return
    console.print()
    if alone:
        console.print(
            f"{output.counted(len(alone), 'save')} being written, or waiting for the next resume to commit it"
        )
    if litter:
        console.print(f"{output.counted(len(litter), 'unfinished save')} left behind; `holdfast prune` tidies up")
