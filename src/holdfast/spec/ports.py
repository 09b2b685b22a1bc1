"""The seams between the trunk and the world. The engine is handed implementations of these; it knows no others.

Nobody inherits from these protocols. `holdfast.testing.contracts` holds one suite per port that every implementation
passes, and anybody's own implementation can run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from .events import Event
from .leaves import Leaf

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""


class Store(Protocol):
    """Names to bytes, written once.

    Names are relative, separated by slashes, never empty, without `.` or `..` components. All failures are raised as
    subclasses of `holdfast.errors.StoreError`. Safe to use from several threads.
    """

    @property
    def url(self) -> str:
        """Where this is, for people."""
        ...

    def create(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write the chunks, in order, as one new object; when this returns, the object is durable.

        The object appears whole or not at all. The chunks are consumed once, one after the other.

        Raises: AlreadyExists (nothing was changed), NoSpace, AccessDenied, Unavailable.
        """
        ...

    def read(self, name: str) -> bytes:
        """Read a whole object. Raises: NotFound, AccessDenied, Unavailable."""
        ...

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Fill `into` from byte `start` of the object on; return the bytes read, fewer only at the object's end.

        Raises: NotFound, AccessDenied, Unavailable.
        """
        ...

    def size(self, name: str) -> int:
        """Tell the object's length in bytes. Raises: NotFound, AccessDenied, Unavailable."""
        ...

    def list(self, prefix: str, *, shallow: bool = False) -> list[str]:
        """List the names that begin with `prefix`, sorted; remains of interrupted writes are listed too.

        With `shallow`, all that lies deeper than the prefix's last slash is given once, as its folder with a slash.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an object durably; a missing one is no error. Raises: AccessDenied, Unavailable."""
        ...


Digest: TypeAlias = Callable[[Buffer], str]
"""Bytes to the hexadecimal xxh3-128 of them."""


class Capture(Protocol):
    """The state as it stood at one step boundary. Scalars, RNG and documents are already held by value."""

    @property
    def parts(self) -> Mapping[str, Sequence[Leaf]]:
        """The tensors and arrays of each part, in the order in which they are laid out."""
        ...

    def documents(self, progress: Mapping[str, Any]) -> bytes:
        """All that is no tensor, and how the tensors hang together, as typed JSON; `progress` is stored along."""
        ...

    def copy_into(self, targets: Mapping[str, Sequence[memoryview]]) -> bool:
        """Copy each part's leaves into the given memory, in the order of `parts`.

        Returns True when all is done, False when something was left for `copy_rest`.
        """
        ...

    def copy_rest(self) -> None:
        """Copy what only changes in an optimizer's step, in any thread, before the next such step."""
        ...

    def spoiled(self) -> str:
        """Tell what was changed since the boundary after all, which makes the copy worthless; nothing if it is good.

        To be asked once `copy_rest` is done, by the training thread: a write that it has begun counts only at its end.
        """
        ...


class Target(Protocol):
    """Where the bytes of one leaf go on restore."""

    def buffer(self) -> memoryview:
        """Writable memory of exactly the leaf's bytes."""
        ...

    def filled(self) -> None:
        """Say that `buffer` holds verified bytes; memory that is not the leaf's own is copied on and let go."""
        ...


class RestorePlan(Protocol):
    """A restore that has been checked against the run's state and waits for the bytes."""

    def target(self, part: str, leaf: Leaf) -> Target:
        """The place for one leaf."""
        ...

    def load(self) -> None:
        """Hand everything to its owners: load_state_dict, data position, RNG last. All targets have been filled."""
        ...


class State(Protocol):
    """Everything a training run is, by name."""

    def capture(self, *, overlap: bool = False) -> Capture:
        """Take hold of the state at a step boundary; with `overlap`, large copies may be left for `copy_rest`."""
        ...

    def before_step(self, wait: Callable[[], None]) -> None:
        """Have `wait` called ahead of every optimizer step from now on."""
        ...

    def plan(self, documents: Mapping[str, Any], leaves: Mapping[str, Sequence[Leaf]]) -> RestorePlan:
        """Compare stored documents and leaves with the run's own state.

        Raises: StateMismatch naming every part or tensor that is missing, extra, or of another shape or dtype.
        """
        ...


class Ranks(Protocol):
    """The processes that commit together."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes commit together."""
        ...


class Ledger(Protocol):
    """What happened, as events. Losing it never loses a checkpoint: no method raises for a failing store."""

    def record(self, event: Event) -> None:
        """Take one event."""
        ...

    def flush(self) -> None:
        """Make what was recorded so far durable, as far as the store allows."""
        ...


class Clock(Protocol):
    """The module `time` is one."""

    def time(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


class Processes(Protocol):
    """Which processes of this machine live."""

    def alive(self, holder: Mapping[str, Any]) -> bool | None:
        """Tell whether a process described by a claim lives; None when it ran elsewhere and nobody here can tell."""
        ...


class Child(Protocol):
    """A keeper process, as its trainer sees it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def poll(self) -> int | None:
        """Tell how it ended: an exit code, a negative signal number, or None while it lives."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Like `poll`, after waiting at most so long."""
        ...

    def kill(self) -> None:
        """End it, whatever it is doing; one that has ended already is let be."""
        ...

    def close(self) -> None:
        """Let go of what this process holds for it; it goes on if it still lives."""
        ...

    def last_words(self) -> str:
        """What it wrote to its standard error before it died, shortened, with a leading separator; or nothing."""
        ...
