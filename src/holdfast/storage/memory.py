"""Objects in memory, for tests of users and of Holdfast: the whole `Store` port, nothing durable."""

import threading
from collections.abc import Iterable
from typing import final

from ..errors import AlreadyExists, NotFound
from ..spec.ports import Buffer
from .naming import checked


@final
class MemoryStore:
    """Keep objects in a dict for as long as this object lives."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Always the same text: there is no place to name."""
        return "memory:"

    def create(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Take the chunks, then add the object in one step. Raises: AlreadyExists."""
        checked(name)
        content = bytearray()
        for chunk in chunks:
            content += chunk  # copied at once, so that a caller may use one buffer for all its chunks
        whole = bytes(content)
        with self._lock:
            if name in self._objects:
                raise AlreadyExists(
                    name, "an object of that name exists, and objects are written once; use another name"
                )
            self._objects[name] = whole

    def read(self, name: str) -> bytes:
        """Hand out the whole object. Raises: NotFound."""
        checked(name)
        with self._lock:
            if name not in self._objects:
                raise NotFound(name, "no such object in memory; see what there is with list('')")
            return self._objects[name]

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Copy a range of the object. Raises: NotFound."""
        part = memoryview(self.read(name))[start : start + into.nbytes]
        if part:
            into.cast("B")[: part.nbytes] = part
        return part.nbytes

    def size(self, name: str) -> int:
        """Tell the object's length in bytes. Raises: NotFound."""
        return len(self.read(name))

    def list(self, prefix: str, *, shallow: bool = False) -> list[str]:
        """List the names that begin with `prefix`, sorted; there are never remains."""
        with self._lock:
            found = [name for name in self._objects if name.startswith(prefix)]
        depth = prefix.rfind("/") + 1
        return sorted({name[:depth] + _first(name[depth:]) for name in found} if shallow else found)

    def delete(self, name: str) -> None:
        """Forget the object; a missing one is no error."""
        checked(name)
        with self._lock:
            self._objects.pop(name, None)


def _first(name: str) -> str:
    head, slash, _ = name.partition("/")
    return head + slash
