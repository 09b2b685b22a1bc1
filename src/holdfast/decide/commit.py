"""Who has written what: wait, publish, or abandon.

Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
    (tests/crash/test_save_and_prune.py, tests/unit/test_commit.py)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..spec.manifest import RankManifest


class Action(Enum):
    """What whoever commits does next."""

    WAIT = "wait"
    PUBLISH = "publish"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class Decision:
    """The action, and who is missing or what is wrong."""

    action: Action
    reason: str


def judge(present: Mapping[int, RankManifest], world_size: int, newer_attempt: int | None) -> Decision:
    """Decide from the rank manifests that are durable.

    Args:
        present: rank to what that rank wrote.
        world_size: how many ranks commit together.
        newer_attempt: a later claim on the run, if there is one.
    """
    if newer_attempt is not None:
        return Decision(Action.ABANDON, f"attempt {newer_attempt} has taken over")
    missing = [rank for rank in range(world_size) if rank not in present]
    if missing:
        return Decision(Action.WAIT, f"rank {', '.join(map(str, missing))} missing")
    for rank, manifest in present.items():
        if rank >= world_size or manifest.rank != rank or manifest.world_size != world_size:
            return Decision(Action.ABANDON, f"rank {rank} belongs to another world size")
        if manifest.checkpoint != present[0].checkpoint:
            return Decision(Action.ABANDON, f"rank {rank} wrote {manifest.checkpoint}")
    return Decision(Action.PUBLISH, f"all {world_size} ranks are there")
