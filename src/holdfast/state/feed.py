"""One view of every source of batches that a training loop may go over: epochs, a position, and how exact that is.

Rules:
1. Iterating a feed is the rest of the current epoch; exhausting it begins the next one.
2. A position saved after the last batch of an epoch, restored, yields nothing and then begins the next epoch: whatever
   a training loop does at the end of an epoch happens exactly once.
3. Resuming leaves the global generators of python, numpy and torch's CPU as it found them, whatever the source draws on
   the way. They are to be restored once, before iterating.
4. A source that cannot be brought back to its position says so when it is handed over, not at the first resume.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from ..decide.exactness import Level
from ..errors import UsageError
from .foreign import ForeignFeed, check_same, judge, over_iterable
from .loader import DataLoader


class Feed(Protocol):
    """An epoch-structured source of batches with a position that can be saved."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        ...

    @property
    def consumed(self) -> int:
        """Batches of the current epoch that the loop was given."""
        ...

    @property
    def samples(self) -> int:
        """Samples that the loop was given in all epochs together; batches, where nobody knows their size."""
        ...

    @property
    def last(self) -> bool | None:
        """Whether the batch yielded last ends its epoch; None when that shows only on asking for another."""
        ...

    @property
    def level(self) -> Level:
        """How exactly this source can be brought back to a position."""
        ...

    @property
    def why(self) -> str:
        """What keeps `level` from being bit-exact; empty when nothing does."""
        ...

    @property
    def note(self) -> str:
        """What a person should know about the last resume; empty when nothing."""
        ...

    @property
    def draws_from_global_rng(self) -> bool:
        """Whether beginning an epoch, or fetching, may draw from the training process's global generators."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last: plain data, and tensors if the source's state has any."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a saved position; iterators begun earlier become unusable. Raises: UsageError if it cannot."""
        ...

    def give_back(self) -> bool:
        """Take back the batch that was yielded last, so that the next iteration begins with it; False if it cannot."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Go on with the current epoch; when exhausted, the next one has begun."""
        ...


def feed_for(source: Any) -> Feed:
    """Choose the feed for a loader, and warn if it cannot be resumed exactly.

    Raises: UsageError for what can be gone over only once, or not at all.
    """
    if isinstance(source, DataLoader):
        return KeyedFeed(source)
    if isinstance(source, Iterator):
        raise UsageError(
            f"a {type(source).__name__} can be gone over only once, so no epoch of it can be resumed or repeated; "
            "give the loader or list that it iterates"
        )
    if not isinstance(source, Iterable):
        raise UsageError(f"a {type(source).__name__} cannot be iterated; give a loader, or a list of batches")
    way, level, why = judge(source)
    if level < Level.EXACT_SAMPLES:
        warnings.warn(f"after an interruption {why}; {_remedy(source)}", UserWarning, stacklevel=3)
    return ForeignFeed(source, way, level, why)


def _remedy(source: Any) -> str:
    if over_iterable(source):
        return "use torchdata's StatefulDataLoader, and give the dataset state_dict and load_state_dict"
    return "use holdfast.DataLoader, which takes torch's arguments by name and can be brought back exactly"


class KeyedFeed:
    """Goes over a holdfast.DataLoader, which is the position."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.level = Level.BIT_EXACT
        self.why = ""
        self.note = ""
        self.draws_from_global_rng = False

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return int(self._loader.epoch)

    @property
    def consumed(self) -> int:
        """Batches of the current epoch that the loop was given."""
        return int(self._loader.batches)

    @property
    def samples(self) -> int:
        """Samples that the loop was given in all epochs together."""
        return int(self._loader.seen)

    @property
    def last(self) -> bool | None:
        """Whether the batch yielded last ends its epoch."""
        return self.consumed > 0 and not self._loader.remaining_batches

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last, as plain data."""
        return {"way": "keyed", "loader": self._loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a saved position. Raises: UsageError if another kind of source saved it, or the data changed."""
        check_same(self._loader, {"way": "keyed"}, state)
        self._loader.load_state_dict(state["loader"])

    def give_back(self) -> bool:
        """Take back the batch that was yielded last."""
        self._loader.give_back()
        return True

    def __iter__(self) -> Iterator[Any]:
        """Go on with the current epoch; when exhausted, the next one has begun."""
        return iter(self._loader)
