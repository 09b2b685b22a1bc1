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
    """What is known at a step boundary."""

    step: int
    saved_step: int
    """The step of the last save, or the one this attempt began with."""
    in_accumulation: bool = False
    """Between two micro-batches: times may be due here, steps may not."""
    seconds_since: float
    """Seconds since the last save, or since the start."""
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
    if history.step == history.saved_step and not history.in_accumulation:
        return Decision(False, "no step since the last save")
    if not history.in_accumulation and _passed_a_multiple(cadence.every_steps, history):
        return Decision(True, f"every {cadence.every_steps} steps")
    if cadence.every_s is not None and history.seconds_since >= cadence.every_s:
        return Decision(True, f"every {cadence.every_s:g} s")
    if cadence.may_lose_s is not None and history.seconds_since >= interval(cadence.may_lose_s, history.durable_s):
        return Decision(True, f"may lose {cadence.may_lose_s:g} s")
    return Decision(False, "nothing due")


def _passed_a_multiple(every_steps: int | None, history: History) -> bool:
    """Multiples, so that a save that had to wait for a buffer does not shift all later ones."""
    return every_steps is not None and history.step // every_steps > history.saved_step // every_steps


def interval(may_lose_s: float, durable_s: float) -> float:
    """Seconds between saves so that interval + time-to-durable stays within `may_lose_s`, but at least half of it."""
    return max(may_lose_s - durable_s, may_lose_s / 2)
