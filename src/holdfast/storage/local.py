"""Objects as files below one folder, on any file system with either hard links or an atomic rename.

Rule 1: objects are written once, under their final unique name, and never changed.
    (tests/contracts/test_stores.py, tests/crash/test_local_create.py)

An object is written to a temporary file beside its final place (never on another file system), synced, and only then
given its final name, by a hard link: that fails if the name is taken, so exactly one of several writers wins.

Where hard links do not exist (some network and FUSE file systems), exclusivity is weaker: the temporary is renamed
after a look whether the name is free. Threads of one `LocalStore` still exclude each other, but two processes that
write one name at the same moment may both believe that they won, and the later one's bytes stay.

A crash leaves at most a temporary, `.<name>.<pid>-<number>.partial`, which `list` shows. Nothing about existence is
cached: other processes write here too. When `create` fails after the object got its final name (the sync of a directory
failed), the object is there, whole, but may be gone after a power loss; the error says so by being raised.
"""

import errno
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from ..errors import AccessDenied, AlreadyExists, NoSpace, NotFound, StoreError, Unavailable
from ..spec.ports import Buffer
from .disk import Disk, PosixDisk
from .naming import checked, well_formed

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_MEANING: dict[int | None, type[StoreError]] = {
    errno.ENOENT: NotFound,
    errno.ENOTDIR: NotFound,
    errno.EISDIR: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EROFS: AccessDenied,
}
"""What the operating system's reasons mean to a caller; any other reason is `Unavailable`."""

_REMEDY: dict[type[StoreError], str] = {
    NotFound: "see what there is with `list`",
    AlreadyExists: "objects are written once; use another name",
    NoSpace: "free space there, or use another path",
    AccessDenied: "give this user access, or use another path",
    Unavailable: "check the disk or the server behind that path, then try again",
}

_TRIES = 100
"""How often to look for a free temporary name, or to make a directory that others keep removing."""


@final
class LocalStore:
    """Keep objects as files below `root`, which the first `create` makes. Safe to use from several threads."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root.absolute()  # a later change of the working directory does not move the store
        self._disk: Disk = disk if disk is not None else PosixDisk()
        self._numbers = itertools.count()
        self._renaming = threading.Lock()

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def create(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write one new object durably; an exception out of `chunks` leaves nothing and propagates unchanged.

        Raises: AlreadyExists (nothing was changed), NoSpace, AccessDenied, Unavailable.
        """
        final_path = self._path(name)
        with self._explained(name, f"create a file in {final_path.parent}", missing=Unavailable):
            temporary, handle = self._open_temporary(name, final_path)
        try:
            self._fill(name, temporary, handle, chunks)
            with self._explained(name, f"give a written file the name {final_path}", missing=Unavailable):
                self._publish(temporary, final_path)
        except BaseException:
            self._discard(temporary)
            raise
        with self._explained(name, f"sync the folders of {final_path}", missing=Unavailable):
            self._sync_upwards(final_path.parent)

    def read(self, name: str) -> bytes:
        """Read a whole object; for large ones `read_into` saves a copy. Raises: NotFound, AccessDenied, Unavailable."""
        path = self._path(name)
        with self._explained(name, f"read {path}"):
            content = memoryview(bytearray(self._disk.size(path)))
            return bytes(content[: self._disk.read_into(path, 0, content)])

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Fill `into` from byte `start` on, straight from the file. Raises: NotFound, AccessDenied, Unavailable."""
        path = self._path(name)
        with self._explained(name, f"read {path}"):
            return self._disk.read_into(path, start, into)

    def size(self, name: str) -> int:
        """Tell the object's length in bytes. Raises: NotFound, AccessDenied, Unavailable."""
        path = self._path(name)
        with self._explained(name, f"look at {path}"):
            return self._disk.size(path)

    def list(self, prefix: str, *, shallow: bool = False) -> list[str]:
        """List the names that begin with `prefix`, sorted, walking only folders that can hold such names.

        Raises: AccessDenied, Unavailable.
        """
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not well_formed(folder[:-1]):
            return []  # no object can be called that, and the walk must not leave the root
        with self._explained(prefix or self.url, f"list {self._root / folder}"):
            return sorted(self._walk(folder, prefix, shallow=shallow))

    def delete(self, name: str) -> None:
        """Remove an object durably, and the folders that it leaves empty. Raises: AccessDenied, Unavailable."""
        path = self._path(name)
        with self._explained(name, f"delete {path}", missing=Unavailable):
            # A missing one may have been unlinked by a process that died before its sync: the sync is done anyway.
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._disk.unlink(path)
            with suppress(FileNotFoundError):  # not even the root exists
                self._remove_empty_and_sync(path.parent)

    def _path(self, name: str) -> Path:
        return self._root / checked(name)

    def _open_temporary(self, name: str, final_path: Path) -> tuple[Path, int]:
        for _ in range(_TRIES):
            temporary = final_path.with_name(f".{final_path.name}.{os.getpid()}-{next(self._numbers)}.partial")
            try:
                return temporary, self._disk.open_new(temporary)
            except FileExistsError:
                continue  # the remains of a dead process that had our id, or a live one's on another machine
            except FileNotFoundError:
                with suppress(FileNotFoundError):  # a concurrent `delete` took a new, still empty folder away
                    self._make_directory(final_path.parent)
        raise Unavailable(
            name,
            f"could not create a file in {final_path.parent} in {_TRIES} tries: that folder keeps vanishing, or is "
            "full of remains; check what else works there, then try again",
        )

    def _make_directory(self, directory: Path) -> None:
        try:
            self._make_one_directory(directory)
        except FileNotFoundError:
            self._make_directory(directory.parent)
            self._make_one_directory(directory)

    def _make_one_directory(self, directory: Path) -> None:
        try:
            self._disk.mkdir(directory)
        except FileExistsError:
            return
        self._disk.sync_directory(directory.parent)

    def _fill(self, name: str, temporary: Path, handle: int, chunks: Iterable[Buffer]) -> None:
        try:
            for chunk in chunks:
                with self._explained(name, f"write {temporary}", missing=Unavailable):
                    self._disk.write(handle, chunk)
            with self._explained(name, f"sync {temporary}", missing=Unavailable):
                self._disk.sync(handle)
        except BaseException:
            with suppress(OSError):
                self._disk.close(handle)
            raise
        with self._explained(name, f"close {temporary}", missing=Unavailable):
            self._disk.close(handle)

    def _publish(self, temporary: Path, final_path: Path) -> None:
        try:
            self._disk.publish(temporary, final_path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            self._rename_if_free(temporary, final_path)
        else:
            with suppress(OSError):  # the object is there; a temporary that stays is only litter, and listed
                self._disk.unlink(temporary)

    def _rename_if_free(self, temporary: Path, final_path: Path) -> None:
        with self._renaming:
            try:
                self._disk.size(final_path)
            except FileNotFoundError:
                self._disk.rename(temporary, final_path)
            else:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final_path))

    def _discard(self, temporary: Path) -> None:
        with suppress(OSError):
            self._disk.unlink(temporary)
            self._remove_empty(temporary.parent)

    def _sync_upwards(self, directory: Path) -> None:
        # All folders up to the root, also those found in place: whoever made them may not have synced them yet.
        for place in (directory, *directory.parents):
            self._disk.sync_directory(place)
            if place == self._root:
                return

    def _remove_empty_and_sync(self, directory: Path) -> None:
        while True:
            directory = self._remove_empty(directory)
            try:
                return self._disk.sync_directory(directory)
            except (FileNotFoundError, NotADirectoryError):
                if directory == self._root:
                    raise
                directory = directory.parent  # it is gone: the folder above had its entry

    def _remove_empty(self, directory: Path) -> Path:
        """Remove the directory and those above it as far as they are empty; return the lowest one that is left."""
        while directory != self._root:
            try:
                self._disk.rmdir(directory)
            except OSError:
                break  # not empty, or gone already; or not removable, and tidiness is no reason to fail
            directory = directory.parent
        return directory

    def _walk(self, folder: str, prefix: str, *, shallow: bool = False) -> Iterator[str]:
        try:
            entries = self._disk.entries(self._root / folder)
        except FileNotFoundError:
            return  # nothing created yet, or removed while walking
        except NotADirectoryError:
            if self._root_is_no_directory():
                raise
            return
        for entry, is_directory in entries:
            name = folder + entry
            if not name.startswith(prefix):
                continue
            if not is_directory:
                yield name
            elif shallow:
                yield name + "/"
            else:
                yield from self._walk(name + "/", prefix)

    @contextmanager
    def _explained(self, name: str, attempt: str, missing: type[StoreError] = NotFound) -> Iterator[None]:
        """Turn an OSError into the StoreError that says what was attempted; `missing` stands for a path not there."""
        try:
            yield
        except OSError as error:
            reason, kind = error.strerror or str(error), _MEANING.get(error.errno, Unavailable)
            if kind is NotFound:
                kind = missing
            if isinstance(error, NotADirectoryError) and self._root_is_no_directory():
                # Nothing that trying again would mend.
                reason, kind = f"{self._root} is not a folder; give the path of a folder, or a new one", AccessDenied
            raise kind(name, f"could not {attempt}: {reason}; {_REMEDY[kind]}") from error

    def _root_is_no_directory(self) -> bool:
        try:
            self._disk.entries(self._root)
        except OSError as error:
            return isinstance(error, NotADirectoryError)
        return False
