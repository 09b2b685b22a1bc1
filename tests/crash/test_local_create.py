"""The power fails at every single operation of `create` and `delete`, under every idea of what a disk may keep.

Proves, for files: what `create` acknowledged is durable, what it did not acknowledge is there whole or not at all, and
nothing else is touched (Rule 1: objects are written once, under their final unique name, and never changed).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import NotFound
from holdfast.spec.ports import Buffer
from holdfast.storage.local import LocalStore
from holdfast.testing.disk import Crash, LossyDisk, Survival

ROOT = Path("/data/runs/digits")
OLDER, OLDER_BYTES = "checkpoints/0000000100-a000001/model", b"older " * 50
NEWER_BYTES: list[Buffer] = [b"newer " * 40, b"", memoryview(b"and its second chunk " * 10)]
NEWER_WHOLE = b"".join(NEWER_BYTES)

SAME_FOLDER = "checkpoints/0000000100-a000001/optimizer"
NEW_FOLDER = "checkpoints/0000000200-a000001/model"
NEW_TREE = "ledger/a000001/deep/00000001.jsonl"


def older_store(*, hard_links: bool = True) -> LossyDisk:
    """Make a disk whose store holds one object, which `create` has acknowledged."""
    disk = LossyDisk(hard_links=hard_links)
    LocalStore(ROOT, disk).create(OLDER, [OLDER_BYTES])
    return disk


def crashes(make: Callable[[], LossyDisk], act: Callable[[LocalStore], None]) -> Iterator[LossyDisk]:
    """Yield the crashed disk for each operation of the action that can be the one at which the power fails."""
    disk = make()
    before = disk.operations
    act(LocalStore(ROOT, disk))
    after = disk.operations
    assert after > before
    for operation in range(before + 1, after + 1):
        disk = make()
        disk.crash_at(operation)
        with pytest.raises(Crash):
            act(LocalStore(ROOT, disk))
        assert disk.operations == operation
        yield disk


def whole_or_none(store: LocalStore, name: str) -> bytes | None:
    """Read an object; None when there is none."""
    try:
        return store.read(name)
    except NotFound:
        return None


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("name", [SAME_FOLDER, NEW_FOLDER, NEW_TREE])
@pytest.mark.parametrize("hard_links", [True, False])
def test_a_crash_in_create_leaves_the_new_object_whole_or_absent(
    survival: Survival, name: str, hard_links: bool
) -> None:
    """Whatever operation the crash hits: the older object is whole, the new one whole or absent, the rest remains."""

    def make() -> LossyDisk:
        return older_store(hard_links=hard_links)

    for disk in crashes(make, lambda store: store.create(name, NEWER_BYTES)):
        where = disk.history[-1]
        store = LocalStore(ROOT, disk.after_crash(survival))
        assert store.read(OLDER) == OLDER_BYTES, where
        found = whole_or_none(store, name)
        assert found in (None, NEWER_WHOLE), where
        assert (name in store.list("")) == (found is not None), where
        assert all(other in (OLDER, name) or other.endswith(".partial") for other in store.list("")), where


@pytest.mark.parametrize("survival", Survival)
def test_after_a_crash_in_create_the_store_works_on(survival: Survival) -> None:
    """A name that a crash left free can be created, remains can be deleted, and then nothing else is left."""
    for disk in crashes(older_store, lambda store: store.create(NEW_FOLDER, NEWER_BYTES)):
        store = LocalStore(ROOT, disk.after_crash(survival))
        if whole_or_none(store, NEW_FOLDER) is None:
            store.create(NEW_FOLDER, NEWER_BYTES)
        for name in store.list(""):
            if name.endswith(".partial"):
                store.delete(name)
        assert store.list("") == [OLDER, NEW_FOLDER], disk.history[-1]
        assert store.read(NEW_FOLDER) == NEWER_WHOLE, disk.history[-1]


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("hard_links", [True, False])
def test_what_create_acknowledged_survives(survival: Survival, hard_links: bool) -> None:
    """When create has returned, the object is there after a power loss, the first one of a new store included."""
    disk = LossyDisk(hard_links=hard_links)
    names = [OLDER, SAME_FOLDER, NEW_FOLDER, NEW_TREE]
    for count, name in enumerate(names, start=1):
        LocalStore(ROOT, disk).create(name, NEWER_BYTES)
        found = LocalStore(ROOT, disk.after_crash(survival))
        assert [found.read(kept) for kept in names[:count]] == [NEWER_WHOLE] * count


@pytest.mark.parametrize("survival", Survival)
def test_create_vouches_for_folders_that_others_made(survival: Survival) -> None:
    """A folder found in place may not be synced by its maker yet: create makes it durable along with the object."""
    disk = older_store()
    disk.mkdir(ROOT / "checkpoints" / "0000000200-a000001")  # another process, between its mkdir and its sync
    LocalStore(ROOT, disk).create(NEW_FOLDER, NEWER_BYTES)
    assert LocalStore(ROOT, disk.after_crash(survival)).read(NEW_FOLDER) == NEWER_WHOLE


@pytest.mark.parametrize("survival", Survival)
def test_a_crash_in_delete_leaves_the_object_whole_or_absent(survival: Survival) -> None:
    """Whatever operation of delete the crash hits: the object is whole or gone, the older one untouched."""

    def two_objects() -> LossyDisk:
        disk = older_store()
        LocalStore(ROOT, disk).create(NEW_TREE, NEWER_BYTES)
        return disk

    for disk in crashes(two_objects, lambda store: store.delete(NEW_TREE)):
        store = LocalStore(ROOT, disk.after_crash(survival))
        assert store.read(OLDER) == OLDER_BYTES, disk.history[-1]
        assert whole_or_none(store, NEW_TREE) in (None, NEWER_WHOLE), disk.history[-1]


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("name", [SAME_FOLDER, NEW_TREE])
def test_what_delete_acknowledged_stays_deleted(survival: Survival, name: str) -> None:
    """When delete has returned, the object does not come back after a power loss, and its neighbour is whole."""
    disk = older_store()
    store = LocalStore(ROOT, disk)
    store.create(name, NEWER_BYTES)
    store.delete(name)
    found = LocalStore(ROOT, disk.after_crash(survival))
    assert found.list("") == [OLDER]
    assert found.read(OLDER) == OLDER_BYTES


@pytest.mark.parametrize("survival", Survival)
def test_delete_vouches_for_a_removal_that_another_began(survival: Survival) -> None:
    """A process that died between unlink and sync leaves a removal undone: deleting again makes it durable."""
    disk = older_store()
    LocalStore(ROOT, disk).create(SAME_FOLDER, NEWER_BYTES)
    disk.unlink(ROOT / SAME_FOLDER)
    LocalStore(ROOT, disk).delete(SAME_FOLDER)
    assert LocalStore(ROOT, disk.after_crash(survival)).list("") == [OLDER]
