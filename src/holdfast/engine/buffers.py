"""Staging buffers: memory that a trainer fills and its keeper reads, and that survives the trainer.

A buffer is a `memfd`: no name that could leak, no `/dev/shm` limit, freed by the kernel when the last process that
holds it is gone.
"""

import contextlib
import mmap
import os

from ..errors import Unavailable

_MADV_POPULATE_WRITE = 23
"""From linux/mman.h; not named in the mmap module."""
_PIECE_BYTES = 4 << 20


class StagingBuffer:
    """Shared memory of a fixed size, allocated and touched once, then reused for every save."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes)
        self.memory = memoryview(self._map)

    @classmethod
    def allocate(cls, nbytes: int) -> "StagingBuffer":
        """Reserve and touch `nbytes` of memory now, so that no later copy meets a page fault.

        Raises: Unavailable when the machine does not have that much.
        """
        fd = os.memfd_create("holdfast-staging", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            buffer = cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise Unavailable(f"a staging buffer of {nbytes >> 20} MiB", error.strerror or str(error)) from error
        buffer._touch()
        return buffer

    def _touch(self) -> None:
        """Map every page for writing now, a piece at a time: madvise holds the interpreter's lock meanwhile."""
        for start in range(0, self.nbytes, _PIECE_BYTES):
            try:
                self._map.madvise(_MADV_POPULATE_WRITE, start, min(_PIECE_BYTES, self.nbytes - start))
            except OSError:
                return  # a kernel before 5.14: the first copy meets the page faults instead

    def close(self) -> None:
        """Let go of the memory, as far as this process is concerned."""
        with contextlib.suppress(BufferError):  # a view handed out earlier keeps the mapping until it goes itself
            self.memory.release()
            self._map.close()
        os.close(self.fd)
