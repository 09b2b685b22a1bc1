"""The metric history of a run: one row per step, each step once.

It lives in the checkpoint as `metrics.csv`, so a resume cuts it back to the resumed step by itself.
"""

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, SupportsFloat, runtime_checkable


@runtime_checkable
class _Tensor(Protocol):
    """What can be held by value now and read later, without waiting for the device."""

    def detach(self) -> "_Tensor": ...
    def clone(self) -> "_Tensor": ...
    def __float__(self) -> float: ...


class History:
    """Rows of (step, metrics). The last row is open: what is reported before the next step begins still joins it."""

    def __init__(self, text: bytes = b"") -> None:
        """Go on from the CSV of a checkpoint."""
        rows = list(csv.reader(io.StringIO(text.decode())))
        self._columns: list[str] = rows[0][1:] if rows else []
        self._closed: list[list[str]] = rows[1:-1]
        self._buffer = _csv([["step", *self._columns], *self._closed]) if rows else bytearray()
        self._step = 0
        self._open: dict[str, str | _Tensor] = {}
        self.revision = 0
        """Counts the reports, so that anybody can tell whether something was reported since."""
        if len(rows) > 1:
            self._step = int(rows[-1][0])
            self._open = {name: cell for name, cell in zip(self._columns, rows[-1][1:], strict=False) if cell}

    def report(self, step: int, metrics: Mapping[str, object]) -> None:
        """Add metrics to the row of a step, which is the last one or a new one. Raises: ValueError, TypeError."""
        values = {name: _held(name, value) for name, value in metrics.items()}
        if step != self._step:
            self._close()
            self._step = step
        self._open.update(values)
        self.revision += 1

    def to_csv(self) -> bytes:
        """Write everything reported so far; waits for tensors that are still being computed."""
        cells = self._cells()
        self._widen(cells)
        if not self._columns:
            return b""
        return bytes(self._buffer + _csv([self._row(cells)] if cells else []))

    def latest(self) -> dict[str, float]:
        """Return the newest finite value of each metric in the last row."""
        cells = {name: float(cell) for name, cell in self._cells().items()}
        return {name: value for name, value in cells.items() if math.isfinite(value)}

    def _close(self) -> None:
        cells = self._cells()
        if cells:
            self._widen(cells)
            self._closed.append(self._row(cells))
            self._buffer += _csv(self._closed[-1:])
        self._open = {}

    def _cells(self) -> dict[str, str]:
        for name, value in self._open.items():
            if not isinstance(value, str):
                self._open[name] = repr(float(value))
        return {name: value for name, value in self._open.items() if isinstance(value, str)}

    def _widen(self, cells: Iterable[str]) -> None:
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns += new
            self._closed = [[*row, *[""] * len(new)] for row in self._closed]
            self._buffer = _csv([["step", *self._columns], *self._closed])

    def _row(self, cells: Mapping[str, str]) -> list[str]:
        return [str(self._step), *(cells.get(name, "") for name in self._columns)]


def metric_at(text: bytes, metric: str | None) -> Callable[[int], float | None]:
    """Make the look-up of the value of a metric that belongs to a step: its own, or else the last one before it."""
    steps: list[int] = []
    values: list[float] = []
    for row in csv.DictReader(io.StringIO(text.decode() if metric else "")):
        cell = row.get(metric or "")
        if cell:
            steps.append(int(row["step"]))
            values.append(float(cell))

    def look_up(step: int) -> float | None:
        known = bisect_right(steps, step)
        return values[known - 1] if known else None

    return look_up


def _held(name: str, value: object) -> "str | _Tensor":
    if name == "step":
        raise ValueError("a metric cannot be called 'step': that is the first column of metrics.csv")
    if isinstance(value, _Tensor):
        return value.detach().clone()
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"metric {name!r} is a {type(value).__name__}; report a number or a tensor of one element")
    return repr(float(value))


def _csv(rows: Iterable[list[str]]) -> bytearray:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return bytearray(text.getvalue().encode())
