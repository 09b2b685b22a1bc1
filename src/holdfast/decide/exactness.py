"""How exact a resume is, and which items lowered it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Level(IntEnum):
    """What a resume reaches; each level includes the ones below."""

    WEIGHTS = 0
    """The parameters."""
    FULL_STATE = 1
    """Everything in `state`, RNG and counters too; samples of the running epoch may repeat or be left out."""
    EXACT_SAMPLES = 2
    """No sample is repeated or left out, and the order is the same."""
    BIT_EXACT = 3
    """Every later loss and the final weights equal those of a run that was never interrupted, bit for bit."""

    @property
    def label(self) -> str:
        """The name that people see."""
        return self.name.lower().replace("_", " ") if self is not Level.BIT_EXACT else "bit-exact"

    @classmethod
    def from_label(cls, label: str) -> "Level":
        """Read the name back. Raises: KeyError."""
        return {level.label: level for level in cls}[label]


@dataclass(frozen=True, slots=True)
class Exactness:
    """The level reached, and every item that lowered it, worst first."""

    level: Level
    lowered_by: tuple[str, ...] = ()


def judge(
    saved: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Mapping[str, Any]],
    data: tuple[Level, str],
    config_changes: Iterable[str] = (),
) -> Exactness:
    """Compare the circumstances a checkpoint was saved under with today's.

    Args:
        saved, now: groups ("versions", "flags") of names to plain values; any difference lowers to exact samples.
        data: the level the loader reaches, and why it is not bit-exact.
        config_changes: config keys that differ and were allowed by name.
    """
    items: list[tuple[Level, str]] = []
    if data[0] < Level.BIT_EXACT:
        items.append(data)
    for group in sorted({*saved, *now}):
        old, new = saved.get(group, {}), now.get(group, {})
        items.extend(
            (Level.EXACT_SAMPLES, f"{name} was {_show(old.get(name))}, is {_show(new.get(name))}")
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        )
    items.extend((Level.EXACT_SAMPLES, f"config {key} was changed") for key in config_changes)
    items.sort(key=lambda item: item[0])
    return Exactness(level=items[0][0] if items else Level.BIT_EXACT, lowered_by=tuple(why for _, why in items))


def _show(value: object) -> str:
    return "unset" if value is None else str(value)
