"""One training from its first launch to its end, launched again by the same command after every kill."""

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import HoldfastError
from .evidence import Evidence
from .kills import Kill, Killer, Strike, Target
from .trainer import Trainer

_MISSES = 5
"""A save is over in a moment: so many times in a row a kill may come too late for it."""
_SUCCESSOR_S = 60.0


class Show(Protocol):
    """What a course tells while it runs."""

    def made(self, step: int, loss: float) -> None:
        """A step was made."""
        ...

    def struck(self, strike: Strike) -> None:
        """Something was killed."""
        ...

    def back(self, kill: Kill) -> None:
        """Training makes steps again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How one training went."""

    store: Path
    log: Path
    launches: int
    kills: tuple[Kill, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is trained, and where."""

    store: Path
    log: Path
    steps: int
    every_steps: int
    """Steps between two saves."""

    def command(self) -> list[str]:
        """The command line that starts the training, and every time again."""
        script = [sys.executable, "-m", "holdfast.cli.demo.train"]
        return [*script, "--store", str(self.store), "--steps", str(self.steps)]


class Driver:
    """Drives one task to its end, whatever it is told to do to it on the way."""

    def __init__(self, task: Task, show: Show, chance: random.Random) -> None:
        self._task = task
        self._show = show
        self._evidence = Evidence(task.store)
        self._killer = Killer(self._evidence, task.every_steps, chance)
        self._launches = 0
        self._kills: list[Kill] = []

    def run(self, targets: Sequence[Target]) -> Course:
        """Train to the end, with a kill at every target.

        Raises: HoldfastError when training fails, hangs, or ends in any other way than finished.
        """
        began = time.monotonic()
        trainer = self._launch()
        try:
            for target in targets:
                trainer = self._suffer(target, trainer)
            trainer.reach(self._task.steps)
            trainer.finish()
        finally:
            self._killer.end(trainer)
        attempt = self._evidence.attempt_of(trainer.pid)
        ending = self._evidence.ending(attempt) if attempt is not None else None
        if ending != "finished":
            raise HoldfastError(f"the last attempt in {self._task.store} ended as {ending}, not as finished")
        return Course(
            store=self._task.store,
            log=self._task.log,
            launches=self._launches,
            kills=tuple(self._kills),
            seconds=time.monotonic() - began,
        )

    def _suffer(self, target: Target, trainer: Trainer) -> Trainer:
        """Kill as told, until a kill that was meant for a save has hit one; return the trainer that goes on."""
        for _ in range(_MISSES):
            strike = self._killer.strike(len(self._kills) + 1, target, trainer)
            self._show.struck(strike)
            if strike.kind == "keeper":
                kill = self._go_on(strike, trainer)
            else:
                trainer = self._launch()
                kill = self._resume(strike, trainer)
            self._kills.append(kill)
            self._show.back(kill)
            if target.kind != "save" or strike.save is not None:
                return trainer
        raise HoldfastError(f"{_MISSES} kills in a row came too late to hit a save; try again with a slower disk")

    def _go_on(self, strike: Strike, trainer: Trainer) -> Kill:
        """Wait until the trainer has made its next step and has another keeper."""
        trainer.reach(strike.reached + 1)
        back_s = time.monotonic() - strike.struck_at
        deadline = time.monotonic() + _SUCCESSOR_S
        while self._killer.replaced(strike) is None:
            if time.monotonic() > deadline:
                raise HoldfastError(f"no keeper took over from the killed one in {_SUCCESSOR_S:g} s")
            trainer.reach(trainer.step + 1)
        return Kill(strike=strike, resumed_step=strike.reached, back_s=back_s)

    def _resume(self, strike: Strike, trainer: Trainer) -> Kill:
        """Wait for the first step of a new launch; ask the ledger what it resumed from."""
        trainer.reach(1)
        attempt = self._evidence.attempt_of(trainer.pid)
        event = self._evidence.resumed(attempt) if attempt is not None else {}
        return Kill(
            strike=strike,
            resumed_step=(trainer.first_step or 1) - 1,
            back_s=time.monotonic() - strike.struck_at,
            checkpoint=event.get("checkpoint"),
            level=event.get("level"),
            lowered_by=tuple(event.get("lowered_by", ())),
        )

    def _launch(self) -> Trainer:
        self._launches += 1
        return Trainer(self._task.command(), self._task.log, self._show.made)
