"""The machine: what it is, how its caches are emptied, how files are made durable from outside."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_LIBRARIES = ("torch", "holdfast", "safetensors", "torch_checkpointing", "torchsnapshot", "xxhash", "numpy")


def facts(folder: Path) -> dict[str, str]:
    """Say what the figures depend on; `folder` is where files are written."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{int(memory[1]) / (1 << 20):.0f} GiB" if memory else "?",
        "file system": _file_system(folder),
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        **{name: version for name in _LIBRARIES if (version := _version(name))},
    }


def way_to_cold() -> str:
    """Choose how files are put out of the page cache: "drop" (as root, everything) or "advise" (only those files)."""
    return "drop" if os.access(_DROP_CACHES, os.W_OK) else "advise"


def make_cold(place: Path, way: str) -> None:
    """Put the files at a place out of the page cache."""
    os.sync()
    if way == "drop":
        _DROP_CACHES.write_text("3")
        return
    for file in files_at(place):
        with file.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_durable(place: Path) -> None:
    """Sync the files at a place and their folders, as a caller has to where the writer did not."""
    files = files_at(place)
    for path in [*files, *sorted({place.parent, *(file.parent for file in files)})]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def files_at(place: Path) -> list[Path]:
    """List the files at a place: itself, or those below it."""
    return [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())


def bytes_at(place: Path) -> int:
    """Add up the lengths of the files at a place."""
    return sum(file.stat().st_size for file in files_at(place))


def _processor() -> str:
    named = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return named[1].strip() if named else platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system, by the longest mount point that the folder lies below."""
    mounts = (line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines())
    found = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(found)[1] if found else "?"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
