"""torch.distributed.checkpoint, as one process uses it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from .contestants import Contestant, Pending, finished, remove
from .state import Trained


class Blocking:
    """`dcp.save`."""

    def __init__(self, state: Trained, folder: Path) -> None:
        self._state = state
        self._folder = folder

    def prepare(self) -> None:
        """Nothing to get ready."""

    def save(self, number: int) -> Pending:
        """Write everything."""
        dcp.save(self._state.state_dicts(), checkpoint_id=self.place(number), no_dist=True)
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
        """Load into the state's own tensors, then hand the rest to its owners."""
        own = self._state.state_dicts()
        dcp.load(own, checkpoint_id=self.place(number), no_dist=True)
        self._state.load(own)


class Threaded(Blocking):
    """`dcp.async_save`, which writes on a thread of the trainer."""

    def save(self, number: int) -> Pending:
        """Copy everything, then write it on the thread."""
        future = dcp.async_save(self._state.state_dicts(), checkpoint_id=self.place(number), no_dist=True)
        return Pending(done=future.done, wait=future.result)


class Detached(Blocking):
    """`dcp.async_save`, which writes in a process of its own; the first save starts it."""

    def prepare(self) -> None:
        """Make the process group that it asks for."""
        store = dist.FileStore(str(self._folder / "rendezvous"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def save(self, number: int) -> Pending:
        """Copy everything, then have it written."""
        future = dcp.async_save(
            self._state.state_dicts(),
            checkpoint_id=self.place(number),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        return Pending(done=future.done, wait=future.result)


MAKERS: dict[str, Callable[[Trained, Path], Contestant]] = {
    "DCP save": Blocking,
    "DCP async_save (thread)": Threaded,
    "DCP async_save (process)": Detached,
}
