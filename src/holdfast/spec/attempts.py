"""What an attempt leaves in the store: who claimed it, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["finished", "exited", "crashed", "killed", "stopped", "superseded"]
"""finished: the loop ran to its end. exited: the script left early on purpose (sys.exit). crashed: an exception.
killed: the process vanished without a word. stopped: Holdfast refused to go on. superseded: a newer attempt took over.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An attempt's number belongs to whoever created its object. `holder` identifies the process (see launchers)."""

    attempt: int
    holder: Mapping[str, Any]
    claimed_at: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for the object in the store."""
        return {"format": 1, "attempt": self.attempt, "holder": dict(self.holder), "claimed_at": self.claimed_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an attempt ended. The truth about it; exit codes are hints."""

    attempt: int
    ending: Ending
    step: int
    checkpoint: str | None
    """The newest checkpoint this attempt committed."""
    detail: str
    ended_at: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for the object in the store."""
        return {
            "format": 1,
            "attempt": self.attempt,
            "ending": self.ending,
            "step": self.step,
            "checkpoint": self.checkpoint,
            "detail": self.detail,
            "ended_at": self.ended_at,
        }


def describe(holder: Mapping[str, Any]) -> str:
    """Name a process for people."""
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')} ({holder.get('command', '?')})"
