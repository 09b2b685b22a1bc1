"""Kill a training hundreds of times, and hold every attempt against the same training left alone.

    python -m tests.scenario.torture --kills 500 --seed 1 [--json]

Each training is started with the same command again and again until it finishes. What has to hold, for every attempt:
it goes on from the newest checkpoint that was committed before it started, or fresh only if there was none; every line
it prints equals the undisturbed training's, bit for bit; nothing is skipped. And in the end: equal weights, optimizer,
schedulers, generators and metrics, every checkpoint whole, nothing half-written left, nobody still running.

Most attempts are forked from a warm process (see `zygote`), which costs a tenth of a start; some are real new ones.
"""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import wiring
from holdfast.engine.checkpoint import Checkpoint, open_checkpoint, verify
from holdfast.errors import HoldfastError
from holdfast.spec import names
from holdfast.spec.names import CheckpointId

from .kills import Kill, Profile, Scene, Sight, draw
from .zygote import Process, Zygote, command_name, describe

TRAIN = Path(__file__).with_name("train.py")
FRESH_EVERY = 12
"""One attempt in so many runs in a new interpreter."""

_PACED = ("--pace", "0.006")
PROFILES = (
    Profile(name="plain", words=_PACED, steps_per_epoch=12, every_steps=4, pace_s=0.006),
    Profile(
        name="save after save",
        words=("--every-steps", "1", "--ballast", "1", *_PACED),
        steps_per_epoch=12,
        every_steps=1,
        pace_s=0.006,
    ),
    Profile(
        name="accumulating",
        words=("--accumulate", "5", "--every-steps", "2", *_PACED),
        steps_per_epoch=3,
        every_steps=2,
        pace_s=0.006,
    ),
    Profile(
        name="saving inside an accumulation",
        words=("--accumulate", "5", "--mid", "--every-batches", "2", "--every-steps", "3", *_PACED),
        steps_per_epoch=3,
        every_steps=3,
        pace_s=0.006,
    ),
)


@dataclass
class Summary:
    """What was done, and everything that was wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    """By kind and victims."""
    trainings: int = 0
    attempts: int = 0
    resumes: int = 0
    fresh_starts: int = 0
    replayed_batches: int = 0
    torn_saves: int = 0
    """Half-written checkpoints that a restart found."""
    most_kills_of_one_training: int = 0
    orphaned_workers: int = 0
    """Loader workers that torch never ends, because their trainer was killed while they started."""
    litter: int = 0
    """Remains of interrupted writes outside of checkpoints, which nothing reads and nobody removes."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """Every promise that was broken, with the evidence."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        total = sum(self.kills.values())
        rate = {"total_kills": total, "kills_per_minute": round(60 * total / max(self.seconds, 1e-9), 1)}
        return {**self.__dict__, "kills": dict(sorted(self.kills.items())), **rate}


@dataclass
class Course:
    """One training, from its first start to its end."""

    profile: Profile
    store: Sight
    reference: list[dict[str, Any]]
    """What the undisturbed training printed."""
    seen: Counter[int] = field(default_factory=Counter)
    """How often each batch was trained on, by the samples seen after it."""
    kills: int = 0


class Torture:
    """Runs trainings and kills them."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int) -> None:
        self.summary = Summary()
        self._zygote = zygote
        self._folder = folder
        self._rng = random.Random(seed)
        self._references: dict[str, tuple[Sight, list[dict[str, Any]]]] = {}

    def run(self, kills: int, profiles: Sequence[Profile] = PROFILES) -> Summary:
        """Kill so many times, in as many trainings as that takes; then wait until nobody is left."""
        began = time.monotonic()
        while (left := kills - sum(self.summary.kills.values())) > 0:
            self.train(profiles[self.summary.trainings % len(profiles)], min(left, self._rng.randint(5, 14)))
        self._wait_for_everybody()
        self.summary.seconds = round(time.monotonic() - began, 1)
        return self.summary

    def _wait_for_everybody(self) -> None:
        """Nobody may outlive everything, but for torch's own orphans."""
        deadline = time.monotonic() + 15
        while (alive := self._zygote.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)  # loader workers look for their trainer every five seconds
        for pid in alive:
            # A worker notes who its trainer is when it has started. If the trainer is dead by then, it never goes.
            if command_name(pid) == "pt_data_worker":
                self.summary.orphaned_workers += 1
            else:
                self.summary.wrong.append(f"outlived everything: {describe(pid)}")

    def train(self, profile: Profile, kills: int) -> None:
        """Run one training to its end, killing it so many times on the way, and check what became of it."""
        self.summary.trainings += 1
        wrong_before = len(self.summary.wrong)
        wanted, reference = self._reference(profile)
        store = Sight(self._folder / f"training-{self.summary.trainings:04d}")
        course = Course(profile, store, reference)
        planned: list[Kill] = []
        finished = False
        while not finished:
            fresh = self._rng.randrange(FRESH_EVERY) == 0
            if not planned and course.kills < kills:
                planned = draw(self._rng, fresh=fresh, last=course.kills + 2 >= kills)
            finished = self._attempt(course, planned if course.kills < kills else [], fresh=fresh)
        self._check_end(course, wanted)
        most = max(self.summary.most_kills_of_one_training, course.kills)
        self.summary.most_kills_of_one_training = most
        if len(self.summary.wrong) == wrong_before:
            shutil.rmtree(store.path)  # what went wrong stays, as evidence

    def _reference(self, profile: Profile) -> tuple[Sight, list[dict[str, Any]]]:
        if profile.name not in self._references:
            store = Sight(self._folder / f"reference-{len(self._references)}")
            process = self._zygote.run(TRAIN, store.path, *profile.words, fresh=not self._references)
            assert process.exit_code == 0, process.said()
            self._references[profile.name] = (store, process.lines())
        return self._references[profile.name]

    def _attempt(self, course: Course, planned: list[Kill], *, fresh: bool) -> bool:
        """Start the training once, and strike as planned; tell whether it finished."""
        before = course.store.committed()
        self.summary.attempts += 1
        self.summary.torn_saves += len(course.store.unfinished())
        workers, overlap = self._rng.choice((0, 0, 1, 2)), self._rng.choice(((), ("--overlap",)))
        process = self._zygote.start(
            TRAIN, course.store.path, *course.profile.words, "--workers", workers, *overlap, fresh=fresh
        )
        scene = Scene(
            profile=course.profile,
            process=process,
            store=course.store,
            rng=self._rng,
            last_batch=max(line.get("batch", 0) for line in course.reference),
            claims_before=course.store.claims(),
            committed_before=frozenset(before),
        )
        killed = False
        while planned and not killed:
            kill = planned.pop(0)
            if not kill.moment(scene):
                break
            if kill.strike(scene):
                course.kills += 1
                self.summary.kills[f"{kill.kind}: {' and '.join(kill.victims)}"] += 1
                killed = "trainer" in kill.victims
        code = self._zygote.finish(process)
        problems = [*self._check_lines(course, process), *self._check_start(process, before)]
        if code not in ((0, -9) if killed else (0,)):
            problems.append(f"ended with code {code}")
        where = f"training {self.summary.trainings} ({course.profile.name}), {process.stderr.name}: "
        self.summary.wrong += [where + problem + "\n" + process.said() for problem in problems]
        return code == 0 or bool(problems)

    def _check_lines(self, course: Course, process: Process) -> list[str]:
        """Every line as in the undisturbed training, none left out, none twice."""
        lines = process.lines()
        if not lines:
            return []
        if lines[0] not in course.reference:
            return [f"its first line is wrong: {lines[0]}"]
        start = course.reference.index(lines[0])
        furthest = max((i for i, line in enumerate(course.reference) if course.seen[_key(line)]), default=-1)
        problems = []
        if start > furthest + 1:
            problems.append(f"skipped from {course.reference[furthest]} to {lines[0]}")
        for line, wanted in zip(lines, course.reference[start:], strict=False):
            if line != wanted:
                problems.append(f"printed {line} instead of {wanted}")
                break
            course.seen[_key(line)] += 1
        resumed = _RESUMED.search(process.said())
        if resumed and lines[0].get("step", -1) not in (-1, int(resumed["step"])):
            problems.append(f"resumed at step {resumed['step']}, went on with {lines[0]}")
        return problems

    def _check_start(self, process: Process, before: list[CheckpointId]) -> list[str]:
        """It began where it had to: at the newest commit, bit-exactly, or fresh if there was none."""
        said = process.said()
        problems = ["printed a traceback"] if "Traceback" in said and process.exit_code == 0 else []
        if resumed := _RESUMED.search(said):
            self.summary.resumes += 1
            name = CheckpointId.parse(resumed["name"])
            if name is None or (before and name < before[-1]):
                problems.append(f"resumed from {name}, although {before[-1]} was committed")
            if resumed["level"] != "bit-exact":
                problems.append(f"resumed {resumed['level']}")
        elif "starts fresh" in said:
            self.summary.fresh_starts += 1
            if before:
                problems.append(f"started fresh, although {before[-1]} was committed")
        elif process.lines():
            problems.append("trained without saying from where")
        return problems

    def _check_end(self, course: Course, wanted: Sight) -> None:
        """The finished training equals the undisturbed one; started again, it does nothing but finish."""
        missing = [line for line in course.reference if not course.seen[_key(line)]]
        problems = [f"never printed {missing[0]}"] if missing else []
        self.summary.replayed_batches += sum(times - 1 for key, times in course.seen.items() if key > 0)
        problems += differences(wanted, course.store)
        again = self._zygote.run(TRAIN, course.store.path, *course.profile.words)
        if again.exit_code != 0 or again.lines() != course.reference[-1:]:
            problems.append(f"started after its end: code {again.exit_code}, {again.lines()[:1]}, {again.said()}")
        problems += differences(wanted, course.store)
        problems += [f"{name} is left over" for name in _left_over(course.store)]
        self.summary.litter += len(course.store.litter())
        where = f"training {self.summary.trainings} ({course.profile.name}) in {course.store.path}: "
        self.summary.wrong += [where + problem for problem in problems]


_RESUMED = re.compile(r"attempt \d+ resumed from (?P<name>\S+) \(step (?P<step>\d+)\): (?P<level>[^\n]*)")


def _key(line: dict[str, Any]) -> int:
    """What a line is about: samples seen, or minus the epoch's number, counted from -1, or 0 for the end."""
    return line["batch"] if "batch" in line else -1 - line["epoch_end"] if "epoch_end" in line else 0


def differences(wanted: Sight, found: Sight) -> list[str]:
    """What is not the same in the newest checkpoints of two stores, down to each tensor, document and metric."""
    try:
        ours, theirs = whole(wanted)[-1], whole(found)[-1]
    except HoldfastError as error:
        return [f"a committed checkpoint is damaged: {error}"]
    leaves, others = _digests(ours), _digests(theirs)
    return [
        f"{name} differs at the end"
        for name in sorted(leaves.keys() | others.keys())
        if leaves.get(name) != others.get(name)
    ]


def whole(sight: Sight) -> list[Checkpoint]:
    """Open every checkpoint of a store, oldest first, after verifying every byte of it."""
    store = wiring.open_store(sight.path)
    checkpoints = [open_checkpoint(store, wiring.xxh3, checkpoint) for checkpoint in sight.committed()]
    for checkpoint in checkpoints:
        for _ in verify(store, wiring.xxh3, checkpoint, deep=True):
            pass
    return checkpoints


def _left_over(sight: Sight) -> list[str]:
    """Objects that belong to no committed checkpoint."""
    checkpoints = whole(sight)
    ranks = [rank for checkpoint in checkpoints for rank in checkpoint.ranks]
    known = {name for rank in ranks for name in rank.objects()} | {c.id.manifest for c in checkpoints}
    known |= {rank.checkpoint.folder + names.rank_manifest_file(rank.rank) for rank in ranks}
    return [name for name in wiring.open_store(sight.path).list(names.CHECKPOINTS) if name not in known]


def _digests(checkpoint: Checkpoint) -> dict[str, Any]:
    rank = checkpoint.ranks[0]
    return {f"{leaf.part}/{leaf.leaf.name}": leaf.digests for leaf in rank.leaves} | {
        name: blob.digests for name, blob in rank.blobs.items()
    }


def main() -> int:
    """Read the command line, torture, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-torture-"))
    with Zygote(folder / "output") as zygote:
        summary = Torture(zygote, folder, args.seed).run(args.kills)
    if not summary.wrong:
        shutil.rmtree(folder)
    told = summary.to_json()
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        for name, value in told.items():
            if not isinstance(value, dict):
                print(f"{name.replace('_', ' ')}: {len(value) if isinstance(value, list) else value}")
        for kind, count in told["kills"].items():
            print(f"  {count:5d}  {kind}")
        print("\n".join(summary.wrong))
    return 1 if summary.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
