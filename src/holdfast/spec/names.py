"""Every object name in a store is built and parsed here, and nowhere else.

::

    run.json                                          what this store is
    attempts/000007.json                              the claim of an attempt
    attempts/000007.keeper-01.json                    the first keeper process of that attempt
    attempts/000007.verdict.json                      how it ended
    checkpoints/0000001200-a000007/<file>             one checkpoint; manifest.json is the commit
    checkpoints/0000001200.01-a000007/<file>          another one of the same step and attempt, taken later
    pins/0000001200-a000007.json                      retention by hand
    ledger/a000007/00000001.jsonl                     events
"""

import re
from dataclasses import dataclass

RUN = "run.json"
ATTEMPTS = "attempts/"
CHECKPOINTS = "checkpoints/"
PINS = "pins/"
LEDGER = "ledger/"
TOP_LEVEL = (RUN, ATTEMPTS, CHECKPOINTS, PINS, LEDGER)

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
METRICS = "metrics.csv"

_CHECKPOINT = re.compile(r"^(\d{10,})(?:\.(\d{2,}))?-a(\d{6,})$")
_CLAIM = re.compile(r"^attempts/(\d{6,})\.json$")
_ATTEMPT = re.compile(r"^attempts/(\d{6,})\.")
_KEEPER = re.compile(r"^attempts/(\d{6,})\.keeper-(\d{2,})\.json$")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """The name of a checkpoint. Ordering is age: attempt first, then step, then the order within the step.

    A later attempt that went back to an earlier step is newer than everything of the attempt it came from. `again`
    counts further saves at one step: inside an accumulation, after an epoch's last batch, after a failed save.
    """

    attempt: int
    step: int
    again: int = 0

    def __str__(self) -> str:
        again = f".{self.again:02d}" if self.again else ""
        return f"{self.step:010d}{again}-a{self.attempt:06d}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointId | None":
        """Read a checkpoint's directory name; None when it is not one, or not spelled as `str` spells it."""
        match = _CHECKPOINT.match(text)
        if match is None:
            return None
        step, again, attempt = match.groups()
        found = cls(attempt=int(attempt), step=int(step), again=int(again or 0))
        return found if str(found) == text else None

    @property
    def folder(self) -> str:
        """Prefix of every object of this checkpoint, with a trailing slash."""
        return f"{CHECKPOINTS}{self}/"

    @property
    def manifest(self) -> str:
        """Name of the object whose existence makes this a checkpoint."""
        return self.folder + MANIFEST

    @property
    def pin(self) -> str:
        """Name of the object that keeps it from being pruned."""
        return f"{PINS}{self}.json"


def checkpoint_of(name: str) -> CheckpointId | None:
    """Tell which checkpoint an object belongs to; None for an object outside `checkpoints/`."""
    if not name.startswith(CHECKPOINTS):
        return None
    return CheckpointId.parse(name.removeprefix(CHECKPOINTS).partition("/")[0])


def part_file(part: str, rank: int) -> str:
    """Name, inside a checkpoint, of the safetensors file of one part of the state and one rank."""
    return f"{part}.r{rank:05d}.safetensors"


def documents_file(rank: int) -> str:
    """Name, inside a checkpoint, of one rank's typed JSON documents."""
    return f"documents.r{rank:05d}.json"


def rank_manifest_file(rank: int) -> str:
    """Name, inside a checkpoint, of one rank's manifest."""
    return f"rank.r{rank:05d}.json"


def claim(attempt: int) -> str:
    """Name of the object that claims an attempt."""
    return f"{ATTEMPTS}{attempt:06d}.json"


def attempt_of_claim(name: str) -> int | None:
    """Read an attempt's number from the name of its claim; None when the name is another object's."""
    match = _CLAIM.match(name)
    return int(match.group(1)) if match else None


def attempt_of(name: str) -> int | None:
    """Tell which attempt left an object: its claim, keepers, verdict, a checkpoint's file; None for all others."""
    match = _ATTEMPT.match(name)
    checkpoint = checkpoint_of(name)
    return int(match.group(1)) if match else checkpoint.attempt if checkpoint else None


def keeper(attempt: int, number: int) -> str:
    """Name of the object that says who the n-th keeper of an attempt is."""
    return f"{ATTEMPTS}{attempt:06d}.keeper-{number:02d}.json"


def keeper_of(name: str) -> tuple[int, int] | None:
    """Read (attempt, number) from the name of a keeper's object; None when the name is another object's."""
    match = _KEEPER.match(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def verdict(attempt: int) -> str:
    """Name of the object that says how an attempt ended."""
    return f"{ATTEMPTS}{attempt:06d}.verdict.json"


def ledger_folder(attempt: int) -> str:
    """Prefix of the ledger segments of one attempt."""
    return f"{LEDGER}a{attempt:06d}/"


def ledger_segment(attempt: int, number: int) -> str:
    """Name of one segment of the ledger: events as JSON lines."""
    return f"{ledger_folder(attempt)}{number:08d}.jsonl"
