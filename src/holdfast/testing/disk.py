"""A disk in memory that forgets at a crash what was not synced.

`LossyDisk` has the operations of `holdfast.storage.disk.Disk`, and keeps apart what is seen now and what would surely
be there after a power loss: bytes are durable once their file was synced, names once their directory was. It can be
told to crash at its n-th operation, and shows the disk as found afterwards, under every `Survival`. With it, a test
tries all the moments at which the power may fail, one after the other, instead of hoping to meet the bad one.
"""

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias, TypeVar, final

from ..spec.ports import Buffer


class Crash(BaseException):
    """The power failed. Raised by the operation that was told to crash, and by every later one."""


class Unsynced(Enum):
    """What becomes of bytes that were written and not synced."""

    KEPT = "kept"
    CUT = "cut off"
    ZEROED = "a page of zeros: the length survived, the bytes did not"


class Survival(Enum):
    """What a crash leaves of unsynced work: (names added, names removed, bytes written).

    A file system may write back in any order between two syncs; these are the corners of what it may do.
    """

    SYNCED_ONLY = (False, False, Unsynced.CUT)
    EVERYTHING = (True, True, Unsynced.KEPT)
    ENTRIES_ONLY = (True, True, Unsynced.ZEROED)
    ENTRIES_CUT_SHORT = (True, True, Unsynced.CUT)
    DATA_WITHOUT_ENTRIES = (False, False, Unsynced.KEPT)
    ADDITIONS_ONLY = (True, False, Unsynced.KEPT)
    REMOVALS_ONLY = (False, True, Unsynced.KEPT)


@dataclass(slots=True, eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced_bytes: int = 0

    def after_crash(self, unsynced: Unsynced) -> "_File":
        kept = bytearray(self.content)
        if unsynced is not Unsynced.KEPT:
            del kept[self.synced_bytes :]
        if unsynced is Unsynced.ZEROED:
            kept.extend(bytes(len(self.content) - self.synced_bytes))
        return _File(kept, len(kept))


@dataclass(slots=True, eq=False)
class _Directory:
    entries: "dict[str, _Node]" = field(default_factory=dict)
    synced: "dict[str, _Node]" = field(default_factory=dict)

    def surviving(self, additions: bool, removals: bool) -> "dict[str, _Node]":
        found = dict(self.synced)
        for name in self.synced.keys() | self.entries.keys():
            before, now = self.synced.get(name), self.entries.get(name)
            if before is now:
                continue
            if before is not None and removals:
                del found[name]
            if now is not None and additions:
                found[name] = now
        return found


_Node: TypeAlias = _File | _Directory
_Kind = TypeVar("_Kind", _File, _Directory)


@final
class LossyDisk:
    """A `Disk` wholly in memory. Operations are those that change something or promise to; reading is not counted.

    `hard_links=False` makes `publish` fail as on a file system without them. `capacity_bytes` bounds the bytes in
    files: a write beyond it writes what fits, then fails with ENOSPC; `unlink` frees.
    """

    def __init__(self, *, hard_links: bool = True, capacity_bytes: int | None = None) -> None:
        self.history: list[str] = []
        """Each operation so far, e.g. `sync /run/a`: for messages and for asserting what an action costs."""
        self._hard_links = hard_links
        self._capacity_bytes = capacity_bytes
        self._top = _Directory()
        self._open: dict[int, tuple[Path, _File]] = {}
        self._handles = 0
        self._crash_at: int | None = None
        self._crashed = False
        self._faults: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def operations(self) -> int:
        """How many operations were begun, counted from 1; the one that crashed or failed included."""
        return len(self.history)

    def crash_at(self, operation: int) -> None:
        """Crash at that operation, counted from the disk's beginning: it is not done; a write is half done."""
        self._crash_at = operation

    def fail_at(self, operation: int, reason: int) -> None:
        """Let that operation, counted from the disk's beginning, raise OSError(reason), once, with nothing done."""
        self._faults[operation] = reason

    def after_crash(self, survival: Survival) -> "LossyDisk":
        """Show the disk as found when the power is back; everything on it is durable. This disk stays as it is."""
        additions, removals, unsynced = survival.value
        found = LossyDisk(hard_links=self._hard_links, capacity_bytes=self._capacity_bytes)
        files: dict[int, _File] = {}  # a file with two names stays one file

        def copied(node: _Node) -> _Node:
            if isinstance(node, _File):
                return files.setdefault(id(node), node.after_crash(unsynced))
            entries = {name: copied(below) for name, below in node.surviving(additions, removals).items()}
            return _Directory(entries, dict(entries))

        with self._lock:
            top = copied(self._top)
        assert isinstance(top, _Directory)
        found._top = top
        return found

    def open_new(self, path: Path) -> int:
        """Create an empty file; its name is lost unless its directory is synced."""
        with self._lock:
            self._begin("open_new", path)
            parent = self._parent_with_free_name(path)
            file = parent.entries[path.name] = _File()
            self._handles += 1
            self._open[self._handles] = (path, file)
            return self._handles

    def write(self, handle: int, buffer: Buffer) -> None:
        """Append the buffer; a crash here leaves the first half of it."""
        with self._lock:
            self._require_power()
            path, file = self._opened(handle)
            data = bytes(buffer)
            try:
                self._begin("write", path)
            except Crash:
                file.content += data[: len(data) // 2]
                raise
            room = len(data) if self._capacity_bytes is None else self._capacity_bytes - self._used_bytes()
            file.content += data[: max(room, 0)]
            if room < len(data):
                raise _error(errno.ENOSPC, path)

    def sync(self, handle: int) -> None:
        """Make durable what the file holds now."""
        with self._lock:
            path, file = self._opened(handle)
            self._begin("sync", path)
            file.synced_bytes = len(file.content)

    def close(self, handle: int) -> None:
        """Let go of the handle; it promises nothing. A failing close lets go of it as well, as Linux does."""
        with self._lock:
            path, _ = self._opened(handle)
            del self._open[handle]
            self._begin("close", path)

    def publish(self, temporary: Path, final: Path) -> None:
        """Add a second name; lost unless its directory is synced."""
        with self._lock:
            self._begin("publish", final)
            file = self._find(temporary, _File)
            parent = self._parent_with_free_name(final)
            if not self._hard_links:
                raise _error(errno.EPERM, final)
            parent.entries[final.name] = file

    def rename(self, temporary: Path, final: Path) -> None:
        """Move a file; a crash may keep either half of that, which is worse than file systems with a journal are."""
        with self._lock:
            self._begin("rename", final)
            file = self._find(temporary, _File)
            parent = self._find(final.parent, _Directory)
            if isinstance(parent.entries.get(final.name), _Directory):
                raise _error(errno.EISDIR, final)
            del self._find(temporary.parent, _Directory).entries[temporary.name]
            parent.entries[final.name] = file

    def unlink(self, path: Path) -> None:
        """Remove a name; it comes back after a crash unless its directory is synced."""
        with self._lock:
            self._begin("unlink", path)
            self._find(path, _File)
            del self._find(path.parent, _Directory).entries[path.name]

    def mkdir(self, path: Path) -> None:
        """Create a directory; it is lost, with all below, unless its parent is synced."""
        with self._lock:
            self._begin("mkdir", path)
            self._parent_with_free_name(path).entries[path.name] = _Directory()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory; it comes back after a crash unless its parent is synced."""
        with self._lock:
            self._begin("rmdir", path)
            if self._find(path, _Directory).entries:
                raise _error(errno.ENOTEMPTY, path)
            del self._find(path.parent, _Directory).entries[path.name]

    def sync_directory(self, path: Path) -> None:
        """Make durable which names the directory holds now, not what is in the files."""
        with self._lock:
            self._begin("sync_directory", path)
            directory = self._find(path, _Directory)
            directory.synced = dict(directory.entries)

    def read_into(self, path: Path, start: int, into: memoryview) -> int:
        """Copy what is seen now, synced or not."""
        with self._lock:
            self._require_power()
            part = bytes(self._find(path, _File).content[start : start + into.nbytes])
        if part:
            into.cast("B")[: len(part)] = part
        return len(part)

    def size(self, path: Path) -> int:
        """Tell the length as seen now, synced or not."""
        with self._lock:
            self._require_power()
            return len(self._find(path, _File).content)

    def entries(self, path: Path) -> list[tuple[str, bool]]:
        """List the names as seen now, synced or not."""
        with self._lock:
            self._require_power()
            found = self._find(path, _Directory).entries
            return [(name, isinstance(node, _Directory)) for name, node in found.items()]

    def _begin(self, operation: str, path: Path) -> None:
        """Count an operation, and do to it what was asked for."""
        self._require_power()
        self.history.append(f"{operation} {path}")
        if self.operations in self._faults:
            raise _error(self._faults.pop(self.operations), path)
        if self.operations == self._crash_at:
            self._crashed = True
            self._require_power()

    def _require_power(self) -> None:
        if self._crashed:
            raise Crash(f"the power failed at operation {self.operations}: {self.history[-1]}")

    def _opened(self, handle: int) -> tuple[Path, _File]:
        if handle not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[handle]

    def _find(self, path: Path, kind: type[_Kind], blamed: Path | None = None) -> _Kind:
        blamed = blamed or path
        node: _Node = self._top
        for part in path.relative_to(path.anchor).parts:
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, blamed)
            if part not in node.entries:
                raise _error(errno.ENOENT, blamed)
            node = node.entries[part]
        if not isinstance(node, kind):
            raise _error(errno.ENOTDIR if kind is _Directory else errno.EISDIR, blamed)
        return node

    def _parent_with_free_name(self, path: Path) -> _Directory:
        if path == path.parent:
            raise _error(errno.EEXIST, path)
        parent = self._find(path.parent, _Directory, blamed=path)
        if path.name in parent.entries:
            raise _error(errno.EEXIST, path)
        return parent

    def _used_bytes(self) -> int:
        files = {id(file): file for file in (*_files(self._top), *(file for _, file in self._open.values()))}
        return sum(len(file.content) for file in files.values())


def _files(directory: _Directory) -> Iterator[_File]:
    for node in directory.entries.values():
        if isinstance(node, _File):
            yield node
        else:
            yield from _files(node)


def _error(reason: int, path: Path) -> OSError:
    return OSError(reason, os.strerror(reason), str(path))
