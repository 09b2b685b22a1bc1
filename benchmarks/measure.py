"""Interleaving, and what to make of the samples: medians, ranges, ratios within a round. Pure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one process measured."""

    kind: str
    contestant: str
    size_mib: int
    round: int
    values: Mapping[str, Any]
    """Numbers, or lists of numbers, by name; seconds in `_s`, bytes in `_bytes`."""
    error: str = ""
    """Why there are no values."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What to look up: a value's name, and whose it is."""

    kind: str
    contestant: str
    name: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its range."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Sum samples up; None when there are none."""
        return cls(statistics.median(values), min(values), max(values), len(values)) if values else None

    def scaled(self, factor: float) -> "Spread":
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)

    def shifted(self, by: float) -> "Spread":
        """The same, counted from elsewhere."""
        return Spread(self.median + by, self.low + by, self.high + by, self.count)


class Results:
    """All records of a run."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = tuple(records)

    @property
    def sizes(self) -> list[int]:
        """The sizes that saves were measured at, in MiB."""
        return sorted({record.size_mib for record in self.records if record.kind == "save"})

    def contestants(self, kind: str) -> list[str]:
        """Who took part in one kind of measurement, in the order of the first round."""
        return list(dict.fromkeys(record.contestant for record in self.records if record.kind == kind))

    def by_round(self, metric: Metric, size_mib: int | None) -> dict[int, list[float]]:
        """The samples of each round; any size where `size_mib` is None."""
        found: dict[int, list[float]] = {}
        for record in self.records:
            whose = (record.kind, record.contestant) == (metric.kind, metric.contestant)
            if whose and size_mib in (None, record.size_mib) and metric.name in record.values:
                value = record.values[metric.name]
                found.setdefault(record.round, []).extend(value if isinstance(value, list) else [value])
        return found

    def spread(self, metric: Metric, size_mib: int | None) -> Spread | None:
        """Sum up the samples of all rounds."""
        return Spread.of([value for values in self.by_round(metric, size_mib).values() for value in values])

    def ratio(self, over: Metric, under: Metric, size_mib: int | None) -> Spread | None:
        """Sum up the ratios of samples to the median of another metric in the same round."""
        below = self.by_round(under, size_mib)
        return Spread.of(
            [
                value / statistics.median(below[number])
                for number, values in self.by_round(over, size_mib).items()
                if number in below
                for value in values
            ]
        )


def there_and_back(contestants: Sequence[_T], rounds: int) -> Iterator[tuple[int, _T]]:
    """Go over the contestants once a round, every other round backwards.

    A steady drift of the machine then adds the same to everybody, and neighbours stay neighbours.
    """
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            yield number, contestant
