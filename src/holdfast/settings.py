"""One frozen Settings: what the script says, then what the environment says. Read once, passed on explicitly."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .decide.interval import Cadence
from .decide.retention import Keep
from .errors import UsageError

_UNITS_S = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$")
DEFAULT_MAY_LOSE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run behaves, beyond what `Run` is told directly.

    Times are seconds, or text like "90s", "5min", "1h".

    Raises: UsageError for a value that makes no sense.
    """

    every_steps: int | None = None
    """Save every so many steps."""
    every: str | float | None = None
    """Save every so much time."""
    keep: Keep = field(default_factory=Keep)
    """Which checkpoints stay."""
    allow: tuple[str, ...] | list[str] = ()
    """Changes that may differ from the checkpoint: config keys ("lr", "model.width"), or "format"."""
    save_mid_accumulation: bool = False
    """With `accumulate=k`: every micro-batch ends in a boundary, and gradients are stored too."""
    allow_pickle: bool = False
    """Store objects that are no plain data as pickles, and load them: only for checkpoints you trust."""
    overlap: bool = False
    """Copy what only changes in an optimizer's step under the next forward and backward, instead of standing still.
    For loops that change parameters nowhere else; a write in between is noticed, unless it goes through `.data`."""
    slots: int = 2
    """Staging buffers of the size of the state; 1 where memory is short."""
    finish_s: float = 600.0
    """Deadline for the keeper to write what is staged when training ends."""

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Keep):
            raise UsageError(f"keep={self.keep!r}: give a holdfast.Keep, like Keep(last=3)")
        if self.every_steps is not None and (not isinstance(self.every_steps, int) or self.every_steps < 1):
            raise UsageError(f"every_steps={self.every_steps}: use a positive number of steps")
        if self.every is not None:
            seconds(self.every, "every")
        if self.slots not in (1, 2):
            raise UsageError(f"slots={self.slots}: use 2, or 1 where memory is short")
        if isinstance(self.allow, str):
            raise UsageError(f'allow={self.allow!r}: give a list, like ["{self.allow}"]')


def cadence(may_lose: str | float | None, settings: Settings, environ: Mapping[str, str]) -> Cadence:
    """Put together when to save. HOLDFAST_MAY_LOSE in the environment has the last word on `may_lose`.

    Without any word from anybody, ten minutes of work may be lost.
    """
    may_lose = environ.get("HOLDFAST_MAY_LOSE", may_lose)
    result = Cadence(
        may_lose_s=None if may_lose is None else seconds(may_lose, "may_lose"),
        every_s=None if settings.every is None else seconds(settings.every, "every"),
        every_steps=settings.every_steps,
    )
    return replace(result, may_lose_s=DEFAULT_MAY_LOSE_S) if result == Cadence() else result


def seconds(value: str | float, name: str) -> float:
    """Read a time. Raises: UsageError naming the setting."""
    if isinstance(value, str):
        match = _TIME.match(value.lower())
        unit = _UNITS_S.get(match.group(2) or "s") if match else None
        if match is None or unit is None:
            raise UsageError(f'{name}={value!r} is no time; write "30s", "5min", "1h", or a number of seconds')
        value = float(match.group(1)) * unit
    if not 0 < value < float("inf"):
        raise UsageError(f"{name}={value!r}: use a time longer than nothing")
    return float(value)
