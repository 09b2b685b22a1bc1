"""Which checkpoints to keep.

Rule 5: only prune deletes, and never below two verified checkpoints; a newer one is committed before an older one goes.
    (tests/unit/test_retention.py, tests/crash/test_save_and_prune.py)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..spec.names import CheckpointId

FLOOR = 2
"""So many usable checkpoints stay, whatever the rules say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Retention: a checkpoint stays if any of these rules wants it.

    Raises: UsageError when the rules make no sense together.
    """

    last: int = 3
    """The newest so many; fewer than two still keeps two."""
    best: int = 0
    """The best so many by `metric`."""
    metric: str | None = None
    mode: str = "min"
    """Whether the smallest ("min") or the largest ("max") value of `metric` is best."""
    every_steps: int | None = None
    """The first checkpoint at or after every multiple of so many steps, for ever."""

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise UsageError(f"Keep(last={self.last}, best={self.best}): last is at least 1, best at least 0")
        if self.best and self.metric is None:
            raise UsageError('Keep(best=…) needs the name of a reported metric: Keep(best=1, metric="val_loss")')
        if self.mode not in ("min", "max"):
            raise UsageError(f'Keep(mode={self.mode!r}): use "min" or "max"')
        if self.every_steps is not None and self.every_steps < 1:
            raise UsageError(f"Keep(every_steps={self.every_steps}): use a positive number of steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A committed checkpoint, as far as retention is concerned."""

    checkpoint: CheckpointId
    metric: float | None = None
    pinned: bool = False
    refused: bool = False
    """A resume found it damaged: it counts for nothing, and goes when everything kept is newer."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays, with the reason, and what goes, oldest first."""

    kept: tuple[tuple[CheckpointId, str], ...]
    let_go: tuple[CheckpointId, ...]


def judge(keep: Keep, candidates: Iterable[Candidate]) -> Retention:
    """Decide about every candidate."""
    by_age = sorted(candidates, key=lambda c: c.checkpoint)
    usable = [c for c in by_age if not c.refused]
    reasons: dict[CheckpointId, str] = {}
    for c in by_age:
        if c.pinned:
            reasons[c.checkpoint] = "pinned"
    for c in usable[-max(keep.last, FLOOR) :]:
        reasons.setdefault(c.checkpoint, f"last {max(keep.last, FLOOR)}")
    for c in _best(keep, usable):
        reasons.setdefault(c.checkpoint, f"best {keep.best} by {keep.metric} ({keep.mode})")
    for c in _spaced(keep, usable):
        reasons.setdefault(c.checkpoint, f"every {keep.every_steps} steps")
    oldest_last = usable[-max(keep.last, FLOOR) :][0].checkpoint if usable else None
    for c in by_age:
        if c.refused and (oldest_last is None or c.checkpoint > oldest_last):
            reasons.setdefault(c.checkpoint, "damaged, but not older than what is kept")
    return Retention(
        kept=tuple((c.checkpoint, reasons[c.checkpoint]) for c in by_age if c.checkpoint in reasons),
        let_go=tuple(c.checkpoint for c in by_age if c.checkpoint not in reasons),
    )


def _best(keep: Keep, usable: Sequence[Candidate]) -> list[Candidate]:
    measured = [c for c in usable if c.metric is not None and math.isfinite(c.metric)]
    sign = 1 if keep.mode == "min" else -1
    ranked = sorted(measured, key=lambda c: (sign * (c.metric or 0.0), c.checkpoint))
    return ranked[: keep.best]


def _spaced(keep: Keep, usable: Sequence[Candidate]) -> list[Candidate]:
    if keep.every_steps is None:
        return []
    first: dict[int, Candidate] = {}
    for c in sorted(usable, key=lambda c: (c.checkpoint.step, -c.checkpoint.attempt)):
        first.setdefault(c.checkpoint.step // keep.every_steps, c)
    return [c for multiple, c in first.items() if multiple > 0]
