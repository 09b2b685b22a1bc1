"""The metric history of a run: one row per step, each step once.

It lives in the checkpoint as `metrics.csv`, so a resume cuts it back to the resumed step by itself.
"""

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, SupportsFloat, runtime_checkable

from ..errors import UsageError

_UNREAD_ROWS = 4096
"""So many rows are held before their tensors are read, if nothing is saved meanwhile."""


@runtime_checkable
class _Tensor(Protocol):
    """What can be held by value now and read later, without waiting for the device."""

    def detach(self) -> "_Tensor": ...
    def clone(self) -> "_Tensor": ...
    def __float__(self) -> float: ...
    def numel(self) -> int: ...


class History:
    """Rows of (step, metrics). The last row is open: what is reported before the next step begins still joins it.

    Tensors are held by value and read when the history is written, so that reporting waits for no device.
    """

    def __init__(self, text: bytes = b"") -> None:
        """Go on from the CSV of a checkpoint."""
        rows = list(csv.reader(io.StringIO(text.decode())))
        self._columns: list[str] = rows[0][1:] if rows else []
        self._written: list[list[str]] = rows[1:-1]
        self._buffer = _csv([["step", *self._columns], *self._written]) if rows else bytearray()
        self._unread: list[tuple[int, dict[str, str | _Tensor]]] = []
        self._step = 0
        self._open: dict[str, str | _Tensor] = {}
        self.revision = 0
        """Counts the reports, so that anybody can tell whether something was reported since."""
        if len(rows) > 1:
            self._step = int(rows[-1][0])
            self._open = {name: cell for name, cell in zip(self._columns, rows[-1][1:], strict=False) if cell}

    def report(self, step: int, metrics: Mapping[str, object]) -> None:
        """Add metrics to the row of a step, which is the last one or a new one. Raises: UsageError."""
        values = {name: _held(name, value) for name, value in metrics.items()}
        if step != self._step:
            self._close()
            self._step = step
        self._open.update(values)
        self.revision += 1

    def to_csv(self) -> bytes:
        """Write everything reported so far; waits for tensors that are still being computed."""
        self._read()
        cells = _cells(self._open)
        self._widen(cells)
        if not self._columns:
            return b""
        return bytes(self._buffer + _csv([self._row(self._step, cells)] if cells else []))

    def at(self, step: int) -> dict[str, float]:
        """Return the finite values that were reported for a step, if it is the newest one; otherwise nothing."""
        values = {name: float(cell) for name, cell in _cells(self._open).items()} if step == self._step else {}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _close(self) -> None:
        if self._open:
            self._unread.append((self._step, self._open))
        self._open = {}
        if len(self._unread) >= _UNREAD_ROWS:
            self._read()

    def _read(self) -> None:
        """Take the values of closed rows over into the text."""
        fresh = []
        for step, values in self._unread:
            cells = _cells(values)
            self._widen(cells)
            fresh.append((step, cells))
        rows = [self._row(step, cells) for step, cells in fresh]
        self._unread = []
        self._written += rows
        self._buffer += _csv(rows)

    def _widen(self, cells: Iterable[str]) -> None:
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns += new
            self._written = [[*row, *[""] * len(new)] for row in self._written]
            self._buffer = _csv([["step", *self._columns], *self._written])

    def _row(self, step: int, cells: Mapping[str, str]) -> list[str]:
        return [str(step), *(cells.get(name, "") for name in self._columns)]


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
        raise UsageError("a metric cannot be called 'step': that is the first column of metrics.csv")
    if isinstance(value, _Tensor):
        if value.numel() != 1:
            raise UsageError(f"metric {name!r} is a tensor of {value.numel()} elements; report one with one element")
        return value.detach().clone()
    if not isinstance(value, SupportsFloat):
        raise UsageError(f"metric {name!r} is a {type(value).__name__}; report a number or a tensor of one element")
    return repr(float(value))


def _cells(values: dict[str, "str | _Tensor"]) -> dict[str, str]:
    """Read every value, once; this is what may wait for a device."""
    cells = {name: value if isinstance(value, str) else repr(float(value)) for name, value in values.items()}
    values.update(cells)
    return cells


def _csv(rows: Iterable[list[str]]) -> bytearray:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return bytearray(text.getvalue().encode())
