"""Every store keeps the whole `Store` port.

Rule 1: objects are written once, under their final unique name, and never changed.
"""

from pathlib import Path

from holdfast.spec.ports import Store
from holdfast.storage.local import LocalStore
from holdfast.storage.memory import MemoryStore
from holdfast.storage.retrying import Retrying
from holdfast.testing.clock import ToldClock
from holdfast.testing.contracts import StoreContract
from holdfast.testing.disk import LossyDisk


class TestLocalStore(StoreContract):
    """Files on the real file system."""

    def store(self, tmp_path: Path) -> Store:
        """Make a store whose folder does not exist yet."""
        return LocalStore(tmp_path / "runs" / "digits")


class TestLocalStoreOnLossyDisk(StoreContract):
    """The disk that crash tests use behaves like the real one as long as it does not crash."""

    def store(self, tmp_path: Path) -> Store:
        """Make a store on a new disk in memory."""
        return LocalStore(Path("/runs/digits"), LossyDisk())


class TestLocalStoreWithoutHardLinks(StoreContract):
    """Within one process, the fallback to rename keeps the port as well."""

    def store(self, tmp_path: Path) -> Store:
        """Make a store on a file system that has no hard links."""
        return LocalStore(Path("/runs/digits"), LossyDisk(hard_links=False))


class TestMemoryStore(StoreContract):
    """Objects in a dict."""

    def store(self, tmp_path: Path) -> Store:
        """Make an empty dict."""
        return MemoryStore()


class TestRetrying(StoreContract):
    """Patience changes nothing for a store that does not fail."""

    def store(self, tmp_path: Path) -> Store:
        """Make an empty dict, asked patiently."""
        return Retrying(MemoryStore(), ToldClock())
