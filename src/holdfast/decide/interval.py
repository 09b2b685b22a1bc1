"""When to save."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """What the user asked for; any of these being due is enough."""

    may_lose_s: float | None = None
    """Work that may be lost: the time between saves, less what a save takes to become durable."""
    every_s: float | None = None
    every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known at a step boundary. Steps and seconds count from the last save, or from the start."""

    steps_since: int
    seconds_since: float
    durable_s: float
    """Measured time from a snapshot to its commit; 0 when none was measured yet."""
    asked: str | None = None
    """Why somebody asked for a save by hand; None when nobody did."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to save at this boundary, and why."""

    save: bool
    reason: str


def due(cadence: Cadence, history: History) -> Decision:
    """Decide at a step boundary."""
    if history.asked is not None:
        return Decision(True, history.asked)
    if history.steps_since == 0:
        return Decision(False, "no step since the last save")
    if cadence.every_steps is not None and history.steps_since >= cadence.every_steps:
        return Decision(True, f"every {cadence.every_steps} steps")
    if cadence.every_s is not None and history.seconds_since >= cadence.every_s:
        return Decision(True, f"every {cadence.every_s:g} s")
    if cadence.may_lose_s is not None and history.seconds_since >= interval(cadence.may_lose_s, history.durable_s):
        return Decision(True, f"may lose {cadence.may_lose_s:g} s")
    return Decision(False, "nothing due")


def interval(may_lose_s: float, durable_s: float) -> float:
    """Seconds between saves so that interval + time-to-durable stays within `may_lose_s`, but at least half of it."""
    return max(may_lose_s - durable_s, may_lose_s / 2)
