"""Patience with storage that fails for a moment: a server that restarts, a mount that has gone stale.

Without it, one failed read during a resume would make the newest sound checkpoint look unusable, and training would go
on from an older one. Only questions are asked again. `create` is not: its chunks can be consumed only once, and the
next save tries again anyway. `delete` is not: what stays is deleted by the next pruning.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar, final

from ..errors import StoreError
from ..spec.ports import Buffer, Clock, Store

WAITS_S = (0.2, 1.0, 3.0)
"""How long to wait before each further try, in seconds."""

_Answer = TypeVar("_Answer")


@final
class Retrying:
    """Ask another store again where its error says that this may help. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def url(self) -> str:
        """That of the store behind."""
        return self._store.url

    def create(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write one new object, with a single try.

        Raises: AlreadyExists (nothing was changed), NoSpace, AccessDenied, Unavailable.
        """
        self._store.create(name, chunks)

    def read(self, name: str) -> bytes:
        """Read a whole object, patiently. Raises: NotFound, AccessDenied, Unavailable after the last try."""
        return self._patiently(lambda: self._store.read(name))

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Fill `into`, all of it anew at each try. Raises: NotFound, AccessDenied, Unavailable after the last try."""
        return self._patiently(lambda: self._store.read_into(name, start, into))

    def size(self, name: str) -> int:
        """Tell the length in bytes, patiently. Raises: NotFound, AccessDenied, Unavailable after the last try."""
        return self._patiently(lambda: self._store.size(name))

    def list(self, prefix: str, *, shallow: bool = False) -> list[str]:
        """List names, all of them anew at each try. Raises: AccessDenied, Unavailable after the last try."""
        return self._patiently(lambda: self._store.list(prefix, shallow=shallow))

    def delete(self, name: str) -> None:
        """Remove an object, with a single try. Raises: AccessDenied, Unavailable."""
        self._store.delete(name)

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        for wait_s in WAITS_S:
            try:
                return ask()
            except StoreError as error:
                if not error.retryable:
                    raise
            self._clock.sleep(wait_s)
        return ask()
