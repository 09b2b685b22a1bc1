"""The disk that crash tests stand on forgets what it should, and nothing else."""

import errno
from pathlib import Path

import pytest

from holdfast.storage.disk import Disk, PosixDisk
from holdfast.testing.disk import Crash, LossyDisk, Survival


def written(disk: Disk, path: Path, synced: bytes, unsynced: bytes = b"") -> None:
    """Write a file; nothing is said about its directory."""
    handle = disk.open_new(path)
    disk.write(handle, synced)
    disk.sync(handle)
    if unsynced:
        disk.write(handle, unsynced)
    disk.close(handle)


def content(disk: Disk, path: Path) -> bytes:
    """Read a whole file."""
    into = bytearray(disk.size(path))
    assert disk.read_into(path, 0, memoryview(into)) == len(into)
    return bytes(into)


def names(disk: Disk, path: Path = Path("/")) -> set[str]:
    """List one directory."""
    return {name for name, _ in disk.entries(path)}


@pytest.mark.parametrize(
    ("survival", "expected"),
    [
        (Survival.SYNCED_ONLY, b"synced"),
        (Survival.EVERYTHING, b"synced, not"),
        (Survival.ENTRIES_ONLY, b"synced\0\0\0\0\0"),
        (Survival.ENTRIES_CUT_SHORT, b"synced"),
        (Survival.DATA_WITHOUT_ENTRIES, b"synced, not"),
        (Survival.ADDITIONS_ONLY, b"synced, not"),
        (Survival.REMOVALS_ONLY, b"synced, not"),
    ],
)
def test_unsynced_bytes_are_kept_cut_or_zeroed(survival: Survival, expected: bytes) -> None:
    """Of a file whose name is durable, each survival keeps the synced bytes, and treats the others as it says."""
    disk = LossyDisk()
    written(disk, Path("/a"), b"synced", b", not")
    disk.sync_directory(Path("/"))
    assert content(disk.after_crash(survival), Path("/a")) == expected
    assert content(disk, Path("/a")) == b"synced, not"


@pytest.mark.parametrize(
    ("survival", "expected"),
    [
        (Survival.SYNCED_ONLY, {"old", "kept"}),
        (Survival.EVERYTHING, {"kept", "new", "folder"}),
        (Survival.ENTRIES_ONLY, {"kept", "new", "folder"}),
        (Survival.ENTRIES_CUT_SHORT, {"kept", "new", "folder"}),
        (Survival.DATA_WITHOUT_ENTRIES, {"old", "kept"}),
        (Survival.ADDITIONS_ONLY, {"old", "kept", "new", "folder"}),
        (Survival.REMOVALS_ONLY, {"kept"}),
    ],
)
def test_unsynced_names_survive_as_asked(survival: Survival, expected: set[str]) -> None:
    """Names added and names removed since the directory's last sync survive separately."""
    disk = LossyDisk()
    written(disk, Path("/old"), b"")
    written(disk, Path("/kept"), b"")
    disk.sync_directory(Path("/"))
    disk.unlink(Path("/old"))
    written(disk, Path("/new"), b"")
    disk.mkdir(Path("/folder"))
    found = disk.after_crash(survival)
    assert names(found) == expected
    assert names(found.after_crash(Survival.SYNCED_ONLY)) == expected  # what was found is durable


def test_a_synced_file_in_an_unsynced_folder_is_lost() -> None:
    """Durable bytes and a durable name help nothing if the folder's own name is not."""
    disk = LossyDisk()
    disk.mkdir(Path("/folder"))
    written(disk, Path("/folder/a"), b"x")
    disk.sync_directory(Path("/folder"))
    assert names(disk.after_crash(Survival.SYNCED_ONLY)) == set()
    disk.sync_directory(Path("/"))
    assert content(disk.after_crash(Survival.SYNCED_ONLY), Path("/folder/a")) == b"x"


def test_a_replaced_name_goes_back_to_the_older_file() -> None:
    """Without a sync of the directory, a rename onto a taken name leaves the file that was there before."""
    disk = LossyDisk()
    written(disk, Path("/a"), b"old")
    disk.sync_directory(Path("/"))
    written(disk, Path("/b"), b"new")
    disk.rename(Path("/b"), Path("/a"))
    assert content(disk, Path("/a")) == b"new"
    assert content(disk.after_crash(Survival.SYNCED_ONLY), Path("/a")) == b"old"
    assert content(disk.after_crash(Survival.EVERYTHING), Path("/a")) == b"new"


def test_the_told_operation_is_not_done_and_the_disk_stays_off() -> None:
    """The crash hits the operation counted from 1; afterwards every operation, reading too, raises Crash."""
    disk = LossyDisk()
    written(disk, Path("/a"), b"x")
    disk.crash_at(disk.operations + 1)
    with pytest.raises(Crash):
        disk.unlink(Path("/a"))
    assert disk.history == ["open_new /a", "write /a", "sync /a", "close /a", "unlink /a"]
    for operation in (disk.size, disk.entries, disk.mkdir, disk.unlink, disk.open_new):
        with pytest.raises(Crash, match="operation 5: unlink /a"):
            operation(Path("/a"))
    assert names(disk.after_crash(Survival.EVERYTHING)) == {"a"}


def test_a_write_that_crashes_is_half_done() -> None:
    """Half of the bytes arrive; later writes add nothing."""
    disk = LossyDisk()
    disk.crash_at(2)
    handle = disk.open_new(Path("/a"))
    for _ in range(2):
        with pytest.raises(Crash):
            disk.write(handle, b"12345678")
    assert content(disk.after_crash(Survival.EVERYTHING), Path("/a")) == b"1234"


def test_a_fault_is_raised_once_and_nothing_is_done() -> None:
    """The told operation raises OSError with the given reason; the next try of it works."""
    disk = LossyDisk()
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="/folder") as raised:
        disk.mkdir(Path("/folder"))
    assert raised.value.errno == errno.EIO
    disk.mkdir(Path("/folder"))
    assert names(disk) == {"folder"}


def test_a_file_with_two_names_is_one_file_after_a_crash_too() -> None:
    """Hard links survive as hard links: their bytes are there once."""
    disk = LossyDisk(capacity_bytes=10)
    written(disk, Path("/a"), b"123456")
    disk.publish(Path("/a"), Path("/b"))
    found = disk.after_crash(Survival.EVERYTHING)
    written(found, Path("/c"), b"1234")
    assert names(found) == {"a", "b", "c"}


def test_a_full_disk_takes_what_fits_and_unlink_frees() -> None:
    """Bytes beyond the capacity raise ENOSPC, hard links cost nothing, and space comes back with the last name."""
    disk = LossyDisk(capacity_bytes=10)
    written(disk, Path("/a"), b"123456")
    disk.publish(Path("/a"), Path("/b"))
    handle = disk.open_new(Path("/c"))
    with pytest.raises(OSError, match="/c") as raised:
        disk.write(handle, b"abcdef")
    assert raised.value.errno == errno.ENOSPC
    assert content(disk, Path("/c")) == b"abcd"
    disk.unlink(Path("/a"))
    with pytest.raises(OSError, match="/c"):
        disk.write(handle, b"e")
    disk.unlink(Path("/b"))
    disk.write(handle, b"efghij")
    assert content(disk, Path("/c")) == b"abcdefghij"


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    ("operation", "name", "reason"),
    [
        ("open_new", "file", errno.EEXIST),
        ("open_new", "none/a", errno.ENOENT),
        ("open_new", "file/a", errno.ENOTDIR),
        ("mkdir", "folder", errno.EEXIST),
        ("mkdir", "file", errno.EEXIST),
        ("mkdir", "none/a", errno.ENOENT),
        ("mkdir", "file/a", errno.ENOTDIR),
        ("rmdir", "folder", errno.ENOTEMPTY),
        ("rmdir", "file", errno.ENOTDIR),
        ("rmdir", "none", errno.ENOENT),
        ("unlink", "folder", errno.EISDIR),
        ("unlink", "none", errno.ENOENT),
        ("unlink", "file/a", errno.ENOTDIR),
        ("size", "folder", errno.EISDIR),
        ("size", "none", errno.ENOENT),
        ("entries", "file", errno.ENOTDIR),
        ("entries", "none", errno.ENOENT),
        ("sync_directory", "file", errno.ENOTDIR),
        ("sync_directory", "none", errno.ENOENT),
    ],
)
def test_it_refuses_as_the_real_disk_does(tmp_path: Path, real: bool, operation: str, name: str, reason: int) -> None:
    """What the file system of this machine refuses, the stand-in refuses, for the same reason."""
    disk: Disk = PosixDisk() if real else LossyDisk()
    top = tmp_path if real else Path("/")
    disk.mkdir(top / "folder")
    written(disk, top / "file", b"")
    written(disk, top / "folder" / "below", b"")
    with pytest.raises(OSError, match=f"{top / name}") as raised:
        getattr(disk, operation)(top / name)
    assert raised.value.errno == reason


@pytest.mark.parametrize("real", [False, True])
def test_two_names_are_given_as_the_real_disk_does(tmp_path: Path, real: bool) -> None:
    """Linking and renaming refuse the same, and rename replaces."""
    disk: Disk = PosixDisk() if real else LossyDisk()
    top = tmp_path if real else Path("/")
    disk.mkdir(top / "folder")
    written(disk, top / "a", b"a")
    written(disk, top / "b", b"b")
    for final, reason in (("b", errno.EEXIST), ("folder", errno.EEXIST), ("none/c", errno.ENOENT)):
        with pytest.raises(OSError, match="/") as raised:
            disk.publish(top / "a", top / final)
        assert raised.value.errno == reason
    for temporary, final, reason in (("a", "folder", errno.EISDIR), ("none", "c", errno.ENOENT)):
        with pytest.raises(OSError, match="/") as raised:
            disk.rename(top / temporary, top / final)
        assert raised.value.errno == reason
    disk.publish(top / "a", top / "c")
    disk.rename(top / "a", top / "b")
    assert names(disk, top) == {"b", "c", "folder"}
    assert content(disk, top / "b") == content(disk, top / "c") == b"a"
