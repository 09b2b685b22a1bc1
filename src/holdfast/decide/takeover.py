"""May the next attempt begin? A table over what the last one left behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Action(Enum):
    """What a process that wants to train the run does next."""

    CLAIM = "claim"
    REFUSE = "refuse"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Decision:
    """The action, and the process it is about."""

    action: Action
    holder: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAttempt:
    """The newest claim. Liveness is None when a process ran on another machine and nobody here can tell."""

    trainer: Mapping[str, Any] | None
    trainer_alive: bool | None
    keepers_alive: Sequence[Mapping[str, Any]]
    ended: bool
    """A verdict is there."""


def judge(last: LastAttempt | None) -> Decision:
    """Decide.

    A trainer that lives holds the run. A dead trainer's keeper is still writing the last snapshot: wait for it. A
    claim from another machine cannot be checked; the machine is taken for gone, and if it is not, it will find the
    newer claim before its next commit and stop (fencing).
    """
    if last is None:
        return Decision(Action.CLAIM)
    if last.trainer_alive and not last.ended:
        return Decision(Action.REFUSE, last.trainer)
    if last.keepers_alive:
        return Decision(Action.WAIT, last.keepers_alive[-1])
    return Decision(Action.CLAIM)
