"""Time that is told."""

import pytest

from holdfast.errors import UsageError
from holdfast.spec.ports import Clock
from holdfast.testing.clock import ToldClock


def test_time_passes_only_when_told() -> None:
    """`advance` and `sleep` move both readings by the same amount, and nothing else does."""
    told = ToldClock(starts_at=1000.0)
    clock: Clock = told
    assert (clock.time(), clock.monotonic()) == (1000.0, 0.0)
    told.advance(2.5)
    clock.sleep(1.5)
    assert (clock.time(), clock.monotonic()) == (1004.0, 4.0)


def test_time_never_goes_back() -> None:
    """A negative number of seconds is refused, and changes nothing."""
    clock = ToldClock()
    with pytest.raises(UsageError, match="from 0 on"):
        clock.advance(-1)
    with pytest.raises(UsageError, match="from 0 on"):
        clock.sleep(-1)
    assert clock.monotonic() == 0.0
