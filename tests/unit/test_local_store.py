"""What `LocalStore` makes of the file system's refusals, and how it tidies up after itself."""

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.errors import AccessDenied, AlreadyExists, NoSpace, NotFound, StoreError, Unavailable
from holdfast.storage.disk import Disk, PosixDisk
from holdfast.storage.local import LocalStore
from holdfast.testing.disk import LossyDisk, Survival

ROOT = Path("/runs/digits")
NAME = "checkpoints/0000000100-a000001/model"
FOLDER = ROOT / "checkpoints/0000000100-a000001"

# The operations of a create() whose folders exist, in their order.
OPEN, WRITE, SYNC, CLOSE, PUBLISH, UNLINK, SYNC_FOLDER = range(1, 8)


def ready(disk: LossyDisk) -> LocalStore:
    """Make a store in which the folder of NAME exists and holds a neighbour."""
    store = LocalStore(ROOT, disk)
    store.create(NAME + ".neighbour", [b"n"])
    return store


def files_below(disk: LossyDisk, folder: Path) -> set[str]:
    """List one directory of a disk, remains included."""
    return {name for name, _ in disk.entries(folder)}


def test_the_operations_of_a_create_in_their_order() -> None:
    """Rule 1: written beside its place, synced, closed, linked, unlinked; then each folder up to the root is synced."""
    disk = LossyDisk()
    store = ready(disk)
    before = disk.operations
    store.create(NAME, [b"x"])
    assert [line.partition(" ")[0] for line in disk.history[before:]] == (
        ["open_new", "write", "sync", "close", "publish", "unlink"] + ["sync_directory"] * 3
    )
    temporary = Path(disk.history[before].partition(" ")[2])
    assert temporary.parent == FOLDER
    assert temporary.name.startswith(".model.")
    assert temporary.name.endswith(".partial")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EACCES, AccessDenied),
        (errno.EROFS, AccessDenied),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.ENAMETOOLONG, Unavailable),
    ],
)
@pytest.mark.parametrize("operation", [OPEN, WRITE, SYNC, CLOSE, PUBLISH])
def test_a_failing_operation_is_told_by_kind_and_leaves_nothing(
    operation: int, reason: int, kind: type[StoreError]
) -> None:
    """Whichever operation fails, the error says what, where and why, nothing is left, and the name is free."""
    disk = LossyDisk()
    store = ready(disk)
    disk.fail_at(disk.operations + operation, reason)
    with pytest.raises(kind, match=f"^{NAME}: could not .*{FOLDER}.*: {OSError(reason, '').strerror}") as raised:
        store.create(NAME, [b"x"])
    assert raised.value.name == NAME
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == reason
    assert files_below(disk, FOLDER) == {"model.neighbour"}
    store.create(NAME, [b"y"])
    assert store.read(NAME) == b"y"


def test_an_unlink_that_fails_after_publishing_is_no_failure() -> None:
    """The object is there and durable; the temporary is litter, and listed as such."""
    disk = LossyDisk()
    store = ready(disk)
    disk.fail_at(disk.operations + UNLINK, errno.EIO)
    store.create(NAME, [b"x"])
    assert LocalStore(ROOT, disk.after_crash(Survival.SYNCED_ONLY)).read(NAME) == b"x"
    litter = [name for name in store.list("") if name.endswith(".partial")]
    assert len(litter) == 1
    store.delete(litter[0])
    assert store.list("") == [NAME, NAME + ".neighbour"]


def test_a_folder_that_cannot_be_synced_is_a_failure() -> None:
    """An object whose name may not be durable is never acknowledged."""
    disk = LossyDisk()
    store = ready(disk)
    disk.fail_at(disk.operations + SYNC_FOLDER, errno.EIO)
    with pytest.raises(Unavailable, match="could not sync the folders"):
        store.create(NAME, [b"x"])


def test_a_full_disk_leaves_nothing_and_the_space_comes_back() -> None:
    """ENOSPC in the middle of an object is NoSpace; its bytes are given back, and a smaller object fits."""
    disk = LossyDisk(capacity_bytes=1000)
    store = LocalStore(ROOT, disk)
    store.create("older", [b"o" * 300])
    with pytest.raises(NoSpace, match="No space left"):
        store.create(NAME, [b"x" * 400, b"x" * 400])
    assert files_below(disk, ROOT) == {"older"}
    store.create(NAME, [b"y" * 700])
    assert store.read(NAME) == b"y" * 700


@pytest.mark.parametrize("reason", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_without_hard_links_the_file_is_renamed(reason: int) -> None:
    """A file system that refuses the link gets a rename, and a taken name is still refused, with nothing left over."""
    disk = LossyDisk()
    store = ready(disk)
    disk.fail_at(disk.operations + PUBLISH, reason)
    store.create(NAME, [b"first"])
    disk.fail_at(disk.operations + PUBLISH, reason)
    with pytest.raises(AlreadyExists):
        store.create(NAME, [b"second"])
    assert store.read(NAME) == b"first"
    assert files_below(disk, FOLDER) == {"model", "model.neighbour"}


class MeetingDisk:
    """A disk without hard links on which two threads that both look whether a name is free wait for each other."""

    def __init__(self) -> None:
        self._disk = LossyDisk(hard_links=False)
        self._meeting = threading.Barrier(2)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return cast("Callable[..., Any]", getattr(self._disk, operation))

    def size(self, path: Path) -> int:
        """Look; then wait a moment for a second thread to have looked as well, which must be impossible."""
        try:
            return self._disk.size(path)
        finally:
            with suppress(threading.BrokenBarrierError):
                self._meeting.wait(timeout=0.1)


def test_threads_exclude_each_other_even_without_hard_links() -> None:
    """Looking whether a name is free and renaming to it is one step for the threads of a store."""
    store = LocalStore(ROOT, cast("Disk", MeetingDisk()))
    with ThreadPoolExecutor(2) as pool:
        racers = [pool.submit(store.create, NAME, [content]) for content in (b"first", b"second")]
        errors = [racer.exception(timeout=60) for racer in racers]
    assert [type(error) for error in errors if error is not None] == [AlreadyExists]
    assert store.read(NAME) == (b"first" if errors[0] is None else b"second")


def test_remains_of_a_process_with_the_same_id_are_stepped_over() -> None:
    """A temporary left by a dead process that had our id neither stops a create nor is overwritten by it."""
    disk = LossyDisk()
    ready(disk)
    disk.crash_at(disk.operations + SYNC)
    with pytest.raises(BaseException, match="the power failed"):
        LocalStore(ROOT, disk).create(NAME, [b"half"])
    found = disk.after_crash(Survival.EVERYTHING)
    remains = [name for name in files_below(found, FOLDER) if name.endswith(".partial")]
    assert len(remains) == 1
    store = LocalStore(ROOT, found)
    store.create(NAME, [b"whole"])
    assert store.read(NAME) == b"whole"
    assert remains[0] in files_below(found, FOLDER)


def test_a_folder_that_vanishes_before_the_file_is_opened_is_made_again() -> None:
    """A delete that removes the empty folder under a create's feet costs one more try."""
    disk = LossyDisk()
    store = ready(disk)
    before = disk.operations
    disk.fail_at(before + 1, errno.ENOENT)  # open_new; then mkdir says "exists"; then open_new again
    disk.fail_at(before + 3, errno.ENOENT)
    store.create(NAME, [b"x"])
    assert [line.split()[0] for line in disk.history[before : before + 5]] == ["open_new", "mkdir"] * 2 + ["open_new"]
    assert store.read(NAME) == b"x"


def test_a_folder_that_vanishes_while_those_above_are_made_is_made_again() -> None:
    """A delete that removes the parent between two mkdirs costs one more try as well."""
    disk = LossyDisk()
    store = ready(disk)
    before = disk.operations
    for operation in (1, 2, 4):  # open_new, mkdir, (mkdir of the folder above: "exists",) mkdir
        disk.fail_at(before + operation, errno.ENOENT)
    store.create(NAME, [b"x"])
    assert [line.split()[0] for line in disk.history[before : before + 5]] == ["open_new", *["mkdir"] * 3, "open_new"]
    assert store.read(NAME) == b"x"


def test_a_folder_that_never_stays_is_unavailable() -> None:
    """Creating gives up after a bounded number of tries, and says so."""
    disk = LossyDisk()
    store = ready(disk)
    for attempt in range(1000):
        disk.fail_at(disk.operations + 1 + 2 * attempt, errno.ENOENT)  # every open; every mkdir says "exists"
    with pytest.raises(Unavailable, match="100 tries"):
        store.create(NAME, [b"x"])


def test_failing_chunks_leave_neither_files_nor_folders() -> None:
    """When the chunks fail, even the folders made for the object go."""

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    disk = LossyDisk()
    store = LocalStore(ROOT, disk)
    with pytest.raises(ZeroDivisionError):
        store.create(NAME, chunks())
    assert files_below(disk, ROOT) == set()


def test_delete_removes_the_folders_it_leaves_empty(tmp_path: Path) -> None:
    """Empty folders go, up to the root, which stays; a folder that holds anything stays too."""
    store = LocalStore(tmp_path / "run")
    store.create("a/b/c", [b""])
    store.create("a/d", [b""])
    store.delete("a/b/c")
    assert [path.name for path in (tmp_path / "run" / "a").iterdir()] == ["d"]
    store.delete("a/d")
    assert list((tmp_path / "run").iterdir()) == []


def test_remains_of_interrupted_writes_are_listed(tmp_path: Path) -> None:
    """A temporary that a killed process left is listed under its own name, and can be deleted."""
    store = LocalStore(tmp_path)
    store.create("folder/a", [b""])
    (tmp_path / "folder" / ".b.12-0.partial").write_bytes(b"half")
    assert store.list("folder/") == ["folder/.b.12-0.partial", "folder/a"]
    store.delete("folder/.b.12-0.partial")
    assert store.list("") == ["folder/a"]


def test_list_walks_only_folders_that_can_match(tmp_path: Path) -> None:
    """A folder whose name rules out every match is not looked into: that it cannot be walked does not matter."""
    store = LocalStore(tmp_path)
    store.create("attempts/1", [b""])
    store.create("checkpoints/1", [b""])
    (tmp_path / "checkpoints" / "loop").symlink_to(tmp_path / "checkpoints")
    with pytest.raises(Unavailable, match="Too many levels of symbolic links"):
        store.list("")
    assert store.list("attempts/") == store.list("att") == ["attempts/1"]


def test_a_linked_folder_is_followed(tmp_path: Path) -> None:
    """Checkpoints moved to another disk behind a symbolic link are still found."""
    store = LocalStore(tmp_path / "run")
    store.create("checkpoints/1/model", [b"m"])
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert store.list("") == ["checkpoints/1/model"]
    store.create("checkpoints/2/model", [b"m"])
    store.delete("checkpoints/1/model")
    assert store.list("") == ["checkpoints/2/model"]


@pytest.mark.parametrize("below", ["file", "file/below"])
@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.create("a/b", [b"x"]),
        lambda store: store.create("a", [b"x"]),
        lambda store: store.read("a"),
        lambda store: store.size("a/b"),
        lambda store: store.read_into("a", 0, memoryview(bytearray(1))),
        lambda store: store.list(""),
        lambda store: store.list("a/b"),
        lambda store: store.delete("a/b"),
    ],
)
def test_a_root_that_is_a_file_is_told(tmp_path: Path, below: str, act: Callable[[LocalStore], object]) -> None:
    """Where a file stands in the place of the root, nothing is "not found": every method says what is wrong."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(AccessDenied, match=f"{tmp_path / below} is not a folder; give the path of a folder"):
        act(LocalStore(tmp_path / below))
    assert (tmp_path / "file").read_text() == "not a folder"


def test_an_object_where_a_folder_should_be_is_told(tmp_path: Path) -> None:
    """A file system cannot hold both `a` and `a/b`: creating the second says why, and a folder is no object."""
    store = LocalStore(tmp_path)
    store.create("a", [b"x"])
    with pytest.raises(Unavailable, match=r"^a/b: could not create a file in .*/a: Not a directory"):
        store.create("a/b", [b"y"])
    store.create("folder/b", [b"z"])
    with pytest.raises(AlreadyExists):
        store.create("folder", [b"y"])
    with pytest.raises(NotFound):
        store.read("folder")
    assert store.list("") == ["a", "folder/b"]


def test_a_missing_object_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """NotFound names the object, the path, and the system's reason."""
    with pytest.raises(NotFound, match=f"^a/b: could not read {tmp_path}/a/b: No such file or directory; "):
        LocalStore(tmp_path).read("a/b")


def test_a_relative_root_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the working directory does not move the store."""
    monkeypatch.chdir(tmp_path)
    store = LocalStore(Path("run"))
    monkeypatch.chdir("/")
    store.create("a", [b"x"])
    assert (tmp_path / "run" / "a").read_bytes() == b"x"
    assert store.url == str(tmp_path / "run")


def test_existence_is_never_cached(tmp_path: Path) -> None:
    """What another process adds or removes is seen at once."""
    mine, other = LocalStore(tmp_path), LocalStore(tmp_path)
    mine.create("folder/a", [b"1"])
    other.delete("folder/a")
    assert mine.list("") == []
    mine.create("folder/a", [b"2"])
    assert other.read("folder/a") == b"2"


def test_a_link_that_was_made_twice_is_a_success(tmp_path: Path) -> None:
    """An NFS client may be told "exists" about the link it just made; another file of that name is still refused."""
    (tmp_path / "temporary").write_bytes(b"mine")
    disk = PosixDisk()
    disk.publish(tmp_path / "temporary", tmp_path / "final")
    disk.publish(tmp_path / "temporary", tmp_path / "final")
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        disk.publish(tmp_path / "other", tmp_path / "final")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that cannot sync directories")
def test_directories_that_cannot_be_synced_are_let_be() -> None:
    """A file system that has no fsync for directories does not fail a create."""
    PosixDisk().sync_directory(Path("/proc/self"))


def test_a_write_that_the_system_cuts_short_is_never_taken_for_whole(tmp_path: Path) -> None:
    """At a file size limit the kernel writes a part and says how much; going on, the store meets the refusal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(Unavailable, match="File too large"):
            LocalStore(tmp_path).create("a", [b"x" * 15_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert LocalStore(tmp_path).list("") == []


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs files that are read a page at a time")
def test_a_read_that_the_system_cuts_short_goes_on() -> None:
    """A file that gives at most a page per read still fills the memory."""
    memory = bytearray(20_000)
    assert PosixDisk().read_into(Path("/proc/self/smaps"), 0, memoryview(memory)) == 20_000
    assert 0 not in memory


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission_is_access_denied(tmp_path: Path) -> None:
    """A folder in which this user may not write gives AccessDenied, which names it."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(AccessDenied, match=f"{tmp_path}: Permission denied"):
            LocalStore(tmp_path).create("a", [b"x"])
    finally:
        tmp_path.chmod(0o700)
