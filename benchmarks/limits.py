"""What the machine can do with the same bytes: copy, write, read, digest. Nothing that saves can be faster for long."""

import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from holdfast.wiring import xxh3

from . import machine
from .state import Trained, bytes_of

_PAGE_BYTES = 4096
_PIECE_BYTES = 16 << 20
_REPEATS = 3
_READERS = 4


def measure(state: Trained, folder: Path, way: str) -> dict[str, float]:
    """Measure every limit for the bytes of a state; seconds by name, the best way of each under the plain name.

    A copy is made tensor by tensor into one buffer; files are one, read and written from end to end.
    """
    nbytes = state.nbytes + -state.nbytes % _PAGE_BYTES
    values = {"state_bytes": float(state.nbytes)}
    values |= copies("copy_ordinary", state.tensors, mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    shared = memfd(nbytes)
    values |= copies("copy_memfd", state.tensors, shared)
    memory = memoryview(shared)
    file = folder / "limit"
    values |= _best(
        "write",
        {
            "buffered": lambda: _write(file, memory, os.O_WRONLY),
            "direct": lambda: _write(file, memory, os.O_WRONLY | os.O_DIRECT),
        },
    )
    values |= _reads(file, memory, way)
    values |= _digests(memory)
    file.unlink()
    return values


def memfd(nbytes: int) -> mmap.mmap:
    """Map memory that other processes can share; copying into it once makes it warm."""
    descriptor = os.memfd_create("benchmark", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    mapped = mmap.mmap(descriptor, nbytes)
    os.close(descriptor)
    return mapped


def copies(name: str, tensors: Sequence[torch.Tensor], buffer: mmap.mmap) -> dict[str, float]:
    """Time copies of tensors into a buffer, once it is warm: by torch, and by memmove on one and two threads."""
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    targets = _targets(tensors, flat)
    pairs = [
        (target.data_ptr(), source.data_ptr(), source.nbytes) for target, source in zip(targets, tensors, strict=True)
    ]
    halves = [half for to, since, nbytes in pairs for half in _halves(to, since, nbytes)]

    def by_torch() -> None:
        for target, source in zip(targets, tensors, strict=True):
            target.copy_(source)

    def by_memmove() -> None:
        for to, since, nbytes in pairs:
            ctypes.memmove(to, since, nbytes)

    with ThreadPoolExecutor(2) as threads:

        def by_two() -> None:
            for _ in threads.map(lambda half: ctypes.memmove(*half), halves):
                pass

        by_torch()
        return _best(name, {"torch": by_torch, "memmove": by_memmove, "memmove2": by_two})


def _targets(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> list[torch.Tensor]:
    """One place in the buffer for each tensor, one after the other."""
    starts = [bytes_of(tensors[:number]) for number in range(len(tensors))]
    return [
        flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=True)
    ]


def _halves(to: int, since: int, nbytes: int) -> list[tuple[int, int, int]]:
    half = nbytes // 2
    return [(to, since, half), (to + half, since + half, nbytes - half)]


def _write(file: Path, memory: memoryview, flags: int) -> float:
    """Write a new file and sync it and its folder."""
    file.unlink(missing_ok=True)
    os.sync()
    began = time.perf_counter()
    descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
    for start in range(0, memory.nbytes, _PIECE_BYTES):
        os.write(descriptor, memory[start : start + _PIECE_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return time.perf_counter() - began


def _reads(file: Path, memory: memoryview, way: str) -> dict[str, float]:
    def cold(threads: int, flags: int) -> float:
        machine.make_cold(file, way)
        return _read(file, memory, threads, flags)

    values = _best(
        "read_cold",
        {
            "buffered": lambda: cold(1, 0),
            f"buffered{_READERS}": lambda: cold(_READERS, 0),
            "direct": lambda: cold(1, os.O_DIRECT),
            f"direct{_READERS}": lambda: cold(_READERS, os.O_DIRECT),
        },
    )
    _read(file, memory, 1, 0)
    return values | _best(
        "read_warm",
        {
            "buffered": lambda: _read(file, memory, 1, 0),
            f"buffered{_READERS}": lambda: _read(file, memory, _READERS, 0),
        },
    )


def _read(file: Path, memory: memoryview, threads: int, flags: int) -> float:
    """Read the whole file into memory that is there already."""
    began = time.perf_counter()
    descriptor = os.open(file, os.O_RDONLY | flags)
    starts = range(0, memory.nbytes, _PIECE_BYTES)

    def piece(start: int) -> None:
        os.preadv(descriptor, [memory[start : start + _PIECE_BYTES]], start)

    if threads == 1:
        for start in starts:
            piece(start)
    else:
        with ThreadPoolExecutor(threads) as readers:
            list(readers.map(piece, starts))
    os.close(descriptor)
    return time.perf_counter() - began


def _digests(memory: memoryview) -> dict[str, float]:
    pieces = [memory[start : start + _PIECE_BYTES] for start in range(0, memory.nbytes, _PIECE_BYTES)]

    def one() -> None:
        for piece in pieces:
            xxh3(piece)

    with ThreadPoolExecutor(2) as threads:

        def two() -> None:
            list(threads.map(xxh3, pieces))

        return _best("digest", {"one": one, "two": two})


def _best(name: str, ways: dict[str, Callable[[], float | None]]) -> dict[str, float]:
    """Time every way, in turn, a few times; its median is its time. A way may keep its own time."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_REPEATS):
        for way, act in ways.items():
            began = time.perf_counter()
            own = act()
            times[way].append(time.perf_counter() - began if own is None else own)
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    return {f"{name}_s": min(medians.values())} | {f"{name}_{way}_s": taken for way, taken in medians.items()}
