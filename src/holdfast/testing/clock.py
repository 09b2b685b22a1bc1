"""Time that is told, never slept: the `Clock` port for tests."""

import threading
from typing import final

from ..errors import UsageError


@final
class ToldClock:
    """Stand still until told to go on. Safe to use from several threads."""

    def __init__(self, starts_at: float = 1_700_000_000.0) -> None:
        self._starts_at = starts_at
        self._passed_s = 0.0
        self._lock = threading.Lock()

    def time(self) -> float:
        """Tell the seconds since 1970, UTC: where the clock started plus what has passed."""
        with self._lock:
            return self._starts_at + self._passed_s

    def monotonic(self) -> float:
        """Tell the seconds that have passed since the clock was made."""
        with self._lock:
            return self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises: UsageError for a negative number of seconds."""
        if seconds < 0:
            raise UsageError(f"time cannot pass by {seconds} s; give a number of seconds from 0 on")
        with self._lock:
            self._passed_s += seconds

    def sleep(self, seconds: float, /) -> None:
        """Return at once, with that much time passed. Raises: UsageError for a negative number of seconds."""
        self.advance(seconds)
