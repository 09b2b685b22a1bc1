"""Kinds of kills: the moment that is waited for, and who dies then."""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.spec import names
from holdfast.spec.names import CheckpointId

from .zygote import Process, keepers_of

_FIRST = CheckpointId(attempt=0, step=0)
TRAINER, KEEPER, BOTH = ("trainer",), ("keeper",), ("trainer", "keeper")


@dataclass(frozen=True)
class Sight:
    """A store as anybody can see it from outside, without opening what is in it."""

    path: Path

    def committed(self) -> list[CheckpointId]:
        """The checkpoints that exist now, oldest first."""
        return sorted(checkpoint for checkpoint, files in self._folders() if names.MANIFEST in files)

    def unfinished(self) -> dict[CheckpointId, int]:
        """The checkpoints after the newest committed one: being written, or left so; and how many files each has."""
        folders = dict(self._folders())
        newest = max((checkpoint for checkpoint, files in folders.items() if names.MANIFEST in files), default=_FIRST)
        return {checkpoint: len(files) for checkpoint, files in folders.items() if checkpoint > newest}

    def claims(self) -> int:
        """How many attempts were claimed."""
        return sum(
            names.attempt_of_claim(f"attempts/{entry}") is not None for entry in _entries(self.path / "attempts")
        )

    def litter(self) -> list[str]:
        """The remains of interrupted writes, anywhere in the store."""
        return sorted(str(found.relative_to(self.path)) for found in self.path.rglob("*.partial"))

    def _folders(self) -> Iterator[tuple[CheckpointId, list[str]]]:
        for entry in _entries(self.path / "checkpoints"):
            checkpoint = CheckpointId.parse(entry)
            if checkpoint is not None:
                yield checkpoint, _entries(self.path / "checkpoints" / entry)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One way to configure the training script."""

    name: str
    words: tuple[str, ...]
    steps_per_epoch: int
    every_steps: int
    pace_s: float
    """What a batch takes at least, after its line was printed."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One attempt, while it runs."""

    profile: Profile
    process: Process
    store: Sight
    rng: random.Random
    last_batch: int
    """Samples that have been seen after the very last batch."""
    claims_before: int
    committed_before: frozenset[CheckpointId]

    def after(self, seconds: float) -> bool:
        """Wait so long; False when the trainer ended before."""
        return not self.process.ended(seconds)

    def batches(self) -> list[int]:
        """The batches done so far, each as the samples seen by then."""
        return [line["batch"] for line in self.process.lines() if "batch" in line]

    def new_commits(self) -> set[CheckpointId]:
        """What was committed since the attempt was started."""
        return set(self.store.committed()) - self.committed_before


Moment = Callable[[Scene], bool]


@dataclass(frozen=True)
class Kill:
    """Who is killed, and when."""

    kind: str
    moment: Moment
    victims: tuple[str, ...]

    def strike(self, scene: Scene) -> bool:
        """Kill, everybody within microseconds; False when there was nobody to kill any more."""
        keepers = keepers_of(scene.process.pid) if "keeper" in self.victims else []
        if scene.process.ended() or (not keepers and self.victims == KEEPER):
            return False
        first = scene.rng.random() < 0.5
        if first and "trainer" in self.victims:
            scene.process.kill()
        for pid in keepers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not first and "trainer" in self.victims:
            scene.process.kill()
        return True


def start_up(delay_s: float) -> Moment:
    """So long after the process was started, whatever it does by then."""
    return lambda scene: scene.after(delay_s)


def restoring(delay_s: float) -> Moment:
    """So long after the attempt has claimed the run, which is when it begins to restore."""
    return lambda scene: (
        scene.process.until(lambda: scene.store.claims() > scene.claims_before) and scene.after(delay_s)
    )


def training(batches: int, delay_s: float) -> Moment:
    """Some batches into the attempt, and then some."""
    return lambda scene: scene.process.until(lambda: len(scene.batches()) >= batches, 0.001) and scene.after(delay_s)


def inside_save(files: int) -> Moment:
    """While a checkpoint of this attempt is being written, which has so many files by now."""

    def now(scene: Scene) -> bool:
        attempt = scene.claims_before + 1
        return any(c.attempt >= attempt and n >= files for c, n in scene.store.unfinished().items())

    return lambda scene: scene.process.until(lambda: now(scene))


def committed(delay_s: float) -> Moment:
    """So long after this attempt's first commit."""
    return lambda scene: scene.process.until(scene.new_commits) and scene.after(delay_s)


def staging(delay_s: float) -> Moment:
    """While the state is being copied: so long after the boundary of a step at which a save is due."""

    def due(scene: Scene) -> bool:
        lines = [line for line in scene.process.lines() if "batch" in line]
        return bool(lines) and (lines[-1]["step"] + 1) % scene.profile.every_steps == 0

    return lambda scene: scene.process.until(lambda: due(scene)) and scene.after(scene.profile.pace_s + delay_s)


def epoch_end() -> Moment:
    """As soon as the checkpoint after an epoch's last batch is committed."""

    def now(scene: Scene) -> bool:
        return any(c.step % scene.profile.steps_per_epoch == 0 for c in scene.new_commits())

    return lambda scene: scene.process.until(lambda: now(scene))


def last_step(delay_s: float) -> Moment:
    """So long after the very last batch: during the final save, or the end of the process."""
    return lambda scene: scene.process.until(lambda: scene.last_batch in scene.batches()) and scene.after(delay_s)


def draw(rng: random.Random, *, fresh: bool, last: bool) -> list[Kill]:
    """Draw what one attempt, and perhaps the one after it, will suffer; an attempt ends when its trainer is struck.

    Args:
        rng: where all chance comes from.
        fresh: the attempt runs in a new interpreter, which takes seconds to start.
        last: the training may be brought to its end, after which there is little left to kill.
    """
    kind = rng.choice(_KINDS + _LAST_KINDS if last else _KINDS)
    if kind == "two in one epoch":
        second = training(rng.randint(1, 3), rng.uniform(0, 0.005))
        return [Kill(kind, committed(rng.uniform(0, 0.01)), BOTH), Kill(kind, second, BOTH)]
    into = training(rng.randint(1, 30), rng.uniform(0, 0.008))
    whom = rng.choice((TRAINER, BOTH, BOTH))
    anyone = rng.choice((TRAINER, KEEPER, BOTH))
    moment, victims = {
        "start-up": (start_up(rng.uniform(0, 3.0 if fresh else 0.1)), whom),
        "restore": (restoring(rng.uniform(0, 0.06)), whom),
        "trainer": (into, TRAINER),
        "keeper": (into, KEEPER),
        "both": (into, BOTH),
        "staging": (staging(rng.uniform(-0.001, 0.003)), TRAINER),
        "inside a save": (inside_save(rng.randint(0, 9)), anyone),
        "epoch's end": (epoch_end(), BOTH),
        "last step": (last_step(rng.uniform(0, 0.08)), anyone),
    }[kind]
    goes_on = [] if "trainer" in victims else draw(rng, fresh=fresh, last=last)[:1]
    return [Kill(kind, moment, victims), *goes_on]


_KINDS = (
    "start-up", "restore", "trainer", "both", "keeper", "staging", "inside a save", "inside a save", "epoch's end",
    "two in one epoch",
)  # fmt: skip
_LAST_KINDS = ("last step",) * 4


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
