"""Memory that a measurement takes: anonymous and shared pages of a process and its descendants, page cache left out."""

import ctypes
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROPORTIONAL = re.compile(r"Pss_(?:Anon|Shmem):\s+(\d+)")
_RESIDENT = re.compile(r"Rss(?:Anon|Shmem):\s+(\d+)")


@dataclass(slots=True)
class Peak:
    """The most that was seen."""

    nbytes: int = 0


@contextmanager
def watched(look: Callable[[], int], every_s: float) -> Iterator[Peak]:
    """Look again and again while the block runs; the thread that looks takes time, so nothing is timed meanwhile."""
    peak = Peak(look())
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            peak.nbytes = max(peak.nbytes, look())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
    peak.nbytes = max(peak.nbytes, look())


def of_family() -> int:
    """Bytes of this process and its descendants; a page that several share is counted once."""
    total = 0
    for pid in _family(os.getpid()):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        total += sum(int(kib) << 10 for kib in _PROPORTIONAL.findall(rollup))
    return total


def of_this_process() -> int:
    """Bytes of this process alone, quickly: from counters, without a walk over its pages."""
    return sum(int(kib) << 10 for kib in _RESIDENT.findall(Path("/proc/self/status").read_text()))


def at_rest() -> int:
    """Give back what is free, then count this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return of_this_process()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in found:
            yield from _family(int(child))
