"""SIGKILL, in four ways: when, to whom, and what it hit.

========  ====================================================================================================
both      trainer and keeper, between two saves: the steps since the newest checkpoint are lost and made again
trainer   the trainer alone, at any moment: its keeper lives on and commits the newest snapshot
save      trainer and keeper while a save is half written: it must be invisible, the one before must serve
keeper    the keeper alone: training must not even pause for long, let alone end
========  ====================================================================================================
"""

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import HoldfastError, UsageError
from ...launchers.local import LocalProcesses
from .evidence import Evidence
from .trainer import Trainer

Kind = Literal["both", "trainer", "save", "keeper"]
KINDS: tuple[Kind, ...] = ("both", "trainer", "save", "keeper")

_WAIT_S = 60.0
_LOOKS_PER_GLANCE = 50
"""While waiting for a save to begin, the trainer's log is looked at only once in so many looks at the store."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kill that is meant to happen at or soon after a step."""

    kind: Kind
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A kill that happened, as it was found afterwards."""

    number: int
    kind: Kind
    """What was meant; `save` tells what was hit."""
    attempt: int
    reached: int
    """The newest step that the trainer had reported when it was killed."""
    save: int | None
    """The step whose save was half written; None between two saves."""
    struck_at: float
    """Seconds on the monotonic clock."""

    @property
    def killed(self) -> str:
        """Who was killed."""
        return {"trainer": "trainer", "keeper": "keeper"}.get(self.kind, "trainer and keeper")

    @property
    def where(self) -> str:
        """What the kill fell into."""
        return f"inside the save of step {self.save}" if self.save is not None else "between saves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A strike and what came after it."""

    strike: Strike
    resumed_step: int
    """The step after which training went on."""
    back_s: float
    """Seconds from the kill to the next step."""
    checkpoint: str | None = None
    """What the next attempt resumed from; None when training went on by itself, or started afresh."""
    level: str | None = None
    lowered_by: tuple[str, ...] = field(default=())

    @property
    def replayed(self) -> int:
        """Steps that were made again."""
        return self.strike.reached - self.resumed_step


def plan(steps: int, kills: int, every_steps: int, chance: random.Random) -> list[Target]:
    """Spread kills over a run at random, one kind after the other.

    Raises: UsageError when there are too few kills or too little room for them.
    """
    if kills < len(KINDS) - 1:
        raise UsageError(f"kills={kills}: give at least {len(KINDS) - 1}, so that most ways to die are tried")
    if steps < 2 * every_steps * (kills + 1):
        raise UsageError(f"steps={steps}: {kills} kills need at least {2 * every_steps * (kills + 1)} steps")
    piece = steps / (kills + 1)
    targets = []
    for i in range(kills):
        kind = KINDS[i % len(KINDS)]
        step = round(piece * (i + 1) + chance.uniform(-piece / 4, piece / 4))
        if kind == "both":  # late between two saves: the older one is committed by then, and there is work to lose
            step += -step % every_steps - chance.randint(1, every_steps // 2)
        targets.append(Target(kind, step))
    return targets


class Killer:
    """Carries out kills upon one store's trainer and keeper."""

    def __init__(self, evidence: Evidence, every_steps: int, chance: random.Random) -> None:
        self._evidence = evidence
        self._every_steps = every_steps
        self._chance = chance
        self._processes = LocalProcesses()

    def strike(self, number: int, target: Target, trainer: Trainer) -> Strike:
        """Wait for the target's moment, kill, and find out what was hit.

        Raises: HoldfastError when the trainer fails before that, or a killed process does not die.
        """
        trainer.reach(max(target.step, trainer.step + 1))
        attempt = self._evidence.attempt_of(trainer.pid)
        if attempt is None:
            raise HoldfastError(f"the trainer (process {trainer.pid}) has claimed no attempt in {self._evidence.store}")
        if target.kind == "save":
            self._await_save(attempt, trainer)
        elif target.kind == "both":
            self._await_quiet(attempt, trainer)
        else:
            time.sleep(self._chance.uniform(0.0, 0.1))  # anywhere within a step
        now = time.monotonic()
        self._kill(target.kind, attempt, trainer)
        unfinished = self._evidence.unfinished(attempt)
        return Strike(
            number=number,
            kind=target.kind,
            attempt=attempt,
            reached=trainer.step,
            save=unfinished.step if unfinished is not None else None,
            struck_at=now,
        )

    def end(self, trainer: Trainer) -> None:
        """Leave nothing of a trainer running, nor of its keeper."""
        attempt = self._evidence.attempt_of(trainer.pid)
        trainer.kill()
        if attempt is not None:
            self._shoot(self._evidence.keeper(attempt)[1])

    def replaced(self, strike: Strike) -> int | None:
        """Return the process id of the keeper that took over from a killed one; None as long as there is none."""
        number, keeper = self._evidence.keeper(strike.attempt)
        alive = number > 1 and self._processes.alive(keeper)
        return int(keeper["pid"]) if alive else None

    def _await_save(self, attempt: int, trainer: Trainer) -> None:
        """Return in the moment in which a save has begun; looks at the store without a pause, so not for long."""
        while trainer.step % self._every_steps < self._every_steps - 1:
            trainer.reach(trainer.step + 1)
        begun = self._evidence.unfinished(attempt)
        looks = 0
        while (found := self._evidence.unfinished(attempt)) is None or found == begun:
            looks += 1
            if looks % _LOOKS_PER_GLANCE == 0 and not trainer.look():
                raise HoldfastError("training ended while a save was waited for")

    def _await_quiet(self, attempt: int, trainer: Trainer) -> None:
        """Return when steps have been made since the newest checkpoint and no save is under way."""
        while self._evidence.unfinished(attempt) is not None or trainer.step % self._every_steps == 0:
            trainer.reach(trainer.step + 1)

    def _kill(self, kind: Kind, attempt: int, trainer: Trainer) -> None:
        keeper = self._evidence.keeper(attempt)[1] if kind != "trainer" else {}
        if keeper:
            self._shoot(keeper)  # first, or it would begin to write what its trainer left behind
        if kind != "keeper":
            trainer.kill()
        deadline = time.monotonic() + _WAIT_S
        while keeper and self._processes.alive(keeper):
            if time.monotonic() > deadline:
                raise HoldfastError(f"the keeper (process {keeper['pid']}) did not die of SIGKILL in {_WAIT_S:g} s")
            time.sleep(0.001)

    def _shoot(self, holder: Mapping[str, Any]) -> None:
        """Send SIGKILL to a process described in the store, unless it is gone: its number may be another's by now."""
        if holder and self._processes.alive(holder):
            os.kill(int(holder["pid"]), signal.SIGKILL)
