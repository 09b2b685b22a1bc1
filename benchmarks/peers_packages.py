"""torch_checkpointing and torchsnapshot."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch_checkpointing import CheckpointManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from torchsnapshot import Snapshot

from .contestants import Contestant, Pending, finished, remove
from .state import Trained


class TorchCheckpointing:
    """Stages on a thread, writes in a process. Direct I/O is its default, and fails on ext4; it is switched off."""

    def __init__(self, state: Trained, folder: Path) -> None:
        self._state = state
        self._folder = folder
        self._storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = CheckpointManager(CheckpointManager.Config(storage_config=self._storage))

    def prepare(self) -> None:
        """Allocate its staging buffers."""
        self._manager.prewarm_staging(self._state.state_dicts())
        warming: Any = self._manager._prewarm_staging_future  # it has no public way to wait
        warming.result()

    def save(self, number: int) -> Pending:
        """Begin to stage; `updating` waits until that is over."""
        future: Any = self._manager.save(str(self.place(number)), self._state.state_dicts())
        return Pending(done=future.done, wait=future.result)

    def updating(self) -> AbstractContextManager[object]:
        """Its own lock, held around what changes the state."""
        lock: AbstractContextManager[object] = self._manager.lock()
        return lock

    def place(self, number: int) -> Path:
        """A folder of its own for each save."""
        return self._folder / str(number)

    def discard(self, number: int) -> None:
        """Remove it."""
        remove(self.place(number))

    def close(self) -> None:
        """Stop its process."""
        self._manager.close()

    def load(self, number: int) -> None:
        """Load into the state's own tensors, then hand the rest to its owners."""
        config = CheckpointManager.Config.with_sync_save()
        config.storage_config = self._storage
        manager = CheckpointManager(config)
        self._state.load(dict(manager.load(self.place(number), into=self._state.state_dicts(), strict=True)))
        manager.close()


class TorchSnapshot:
    """`Snapshot.take`."""

    def __init__(self, state: Trained, folder: Path) -> None:
        self._state = state
        self._folder = folder

    def prepare(self) -> None:
        """Nothing to get ready."""

    def save(self, number: int) -> Pending:
        """Write everything."""
        Snapshot.take(str(self.place(number)), self._state.parts)
        return finished()

    def updating(self) -> AbstractContextManager[object]:
        """What is staged was copied before `save` returned."""
        return nullcontext()

    def place(self, number: int) -> Path:
        """A folder of its own for each save."""
        return self._folder / str(number)

    def discard(self, number: int) -> None:
        """Remove it."""
        remove(self.place(number))

    def close(self) -> None:
        """Nothing is open."""

    def load(self, number: int) -> None:
        """Restore in place."""
        Snapshot(str(self.place(number))).restore(self._state.parts)


class TorchSnapshotAsync(TorchSnapshot):
    """`Snapshot.async_take`, which writes on a thread of the trainer."""

    def save(self, number: int) -> Pending:
        """Stage as much as its memory budget allows, then write on the thread."""
        pending = Snapshot.async_take(str(self.place(number)), self._state.parts)
        return Pending(done=pending.done, wait=pending.wait)


MAKERS: dict[str, Callable[[Trained, Path], Contestant]] = {
    "torch_checkpointing": TorchCheckpointing,
    "torchsnapshot take": TorchSnapshot,
    "torchsnapshot async_take": TorchSnapshotAsync,
}
