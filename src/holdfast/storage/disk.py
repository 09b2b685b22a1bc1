"""The few operations of a file system that `LocalStore` needs, each a point at which the power may fail.

`Disk` is the seam, `PosixDisk` the real one. `holdfast.testing.disk.LossyDisk` is a disk in memory that forgets at a
crash what was not synced. Failures are raised as the `OSError` that the operating system gives.
"""

import ctypes
import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol, final

from ..spec.ports import Buffer

_DIRECT_BYTES = 1 << 20
"""Smaller writes are quicker through the page cache."""
_PAGE_BYTES = 4096

_DIRECTORY_CANNOT_BE_SYNCED = {errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class Disk(Protocol):
    """Files and directories by absolute path. Safe to use from several threads. Raises: OSError, from every method."""

    def open_new(self, path: Path) -> int:
        """Create an empty file and return a handle for writing; fail if the path is taken."""
        ...

    def write(self, handle: int, buffer: Buffer) -> None:
        """Append the whole buffer; on failure, any part of it may have been written."""
        ...

    def sync(self, handle: int) -> None:
        """Make the file's bytes durable; says nothing about its directory entry."""
        ...

    def close(self, handle: int) -> None:
        """Let go of the handle; network file systems may only now report a failed write."""
        ...

    def publish(self, temporary: Path, final: Path) -> None:
        """Give the file the second name `final`, in one step (a hard link); fail if that name is taken."""
        ...

    def rename(self, temporary: Path, final: Path) -> None:
        """Move the file to the name `final`, in one step; a file of that name is replaced."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove one name of a file; its bytes go with its last name."""
        ...

    def mkdir(self, path: Path) -> None:
        """Create one directory; its parent must exist."""
        ...

    def rmdir(self, path: Path) -> None:
        """Remove one directory; fail if it holds anything."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in this one directory durable, as far as the file system can: added ones and removed ones."""
        ...

    def read_into(self, path: Path, start: int, into: memoryview) -> int:
        """Fill `into` from byte `start` of the file on; return the bytes read, fewer only at the file's end."""
        ...

    def size(self, path: Path) -> int:
        """Tell a file's length in bytes; a directory is an error (EISDIR)."""
        ...

    def entries(self, path: Path) -> list[tuple[str, bool]]:
        """List the names in one directory, in no order, each with whether it is a directory itself."""
        ...


@final
class PosixDisk:
    """The file system of this machine. Buffers are handed to the kernel as they are, never copied."""

    def open_new(self, path: Path) -> int:
        """Create the file with the permissions that the umask leaves."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, buffer: Buffer) -> None:
        """Write until nothing is left: Linux takes less than 2 GiB at a time.

        Large buffers that lie on pages go past the page cache, which is faster, leaves the training's cached data
        alone, and takes no processor time for copying.
        """
        left = _flat(buffer)
        if left.nbytes >= _DIRECT_BYTES:
            left = _write_direct(handle, left)
        while left.nbytes:
            left = left[os.write(handle, left) :]

    def sync(self, handle: int) -> None:
        """Call fsync, or what takes its place: on macOS fsync stops at the drive's cache, F_FULLFSYNC does not."""
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            with suppress(OSError):  # not every file system there knows it
                fcntl.fcntl(handle, full)
                return
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close the descriptor."""
        os.close(handle)

    def publish(self, temporary: Path, final: Path) -> None:
        """Link; a name that turns out to be this very file is a success."""
        try:
            os.link(temporary, final)
        except FileExistsError:
            # An NFS client that lost the first answer asks again and is told "exists" about its own link.
            if not os.path.samefile(temporary, final):
                raise

    def rename(self, temporary: Path, final: Path) -> None:
        """Rename, replacing."""
        os.rename(temporary, final)

    def unlink(self, path: Path) -> None:
        """Unlink."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Create the directory with the permissions that the umask leaves."""
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        """Remove the empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        """Sync the directory; a file system that cannot do it for directories (some network, some FUSE) is let be."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        except OSError as error:
            if error.errno not in _DIRECTORY_CANNOT_BE_SYNCED:
                raise
        finally:
            os.close(handle)

    def read_into(self, path: Path, start: int, into: memoryview) -> int:
        """Read until the memory is full or the file ends."""
        target, filled = _flat(into), 0
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while filled < target.nbytes:
                got = os.preadv(handle, [target[filled:]], start + filled)
                if not got:
                    break
                filled += got
        finally:
            os.close(handle)
        return filled

    def size(self, path: Path) -> int:
        """Ask for the file's status."""
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return status.st_size

    def entries(self, path: Path) -> list[tuple[str, bool]]:
        """Scan the directory; a link to a directory counts as one."""
        with os.scandir(path) as found:
            return [(entry.name, entry.is_dir()) for entry in found]


def _write_direct(handle: int, view: memoryview) -> memoryview:
    """Write the whole pages of a view with O_DIRECT where that is possible; return what is left to write."""
    if view.readonly or not hasattr(os, "O_DIRECT"):
        return view
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    if address % _PAGE_BYTES or os.lseek(handle, 0, os.SEEK_CUR) % _PAGE_BYTES:
        return view
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    written, whole = 0, view.nbytes - view.nbytes % _PAGE_BYTES
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT)
        while written < whole:
            written += os.write(handle, view[written:whole])
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system, or the rest of a short write, wants it the ordinary way
            raise
    finally:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)
    return view[written:]


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty view cannot be cast
