"""A source of batches that is not Holdfast's: which way it gets back to a position, and how exact that is."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

import torch
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler

from ..decide.exactness import Level
from ..errors import UsageError
from .keyed import untouched_rng

_END = object()


class Way(Enum):
    """How a foreign source gets back to a position."""

    STATE = "own state"
    """It has state_dict and load_state_dict."""
    REPLAY = "replay"
    """Its first batches are fetched again and thrown away."""
    RESHUFFLE = "reshuffle"
    """It does not: the epoch goes on with as many batches of a new order as were left."""


class ForeignFeed:
    """Goes over a loader that is not Holdfast's, and counts the epochs and batches for it.

    A sampler with `set_epoch` is told the epoch, because nobody else knows it.
    """

    def __init__(self, source: Any, way: Way, level: Level, why: str) -> None:
        self._source = source
        self._way = way
        self.level = level
        self.why = why
        self.note = ""
        self.draws_from_global_rng = not isinstance(source, Sequence)
        self.epoch = 0
        self.consumed = 0
        self._samples_before = 0
        self._live: Iterator[Any] | None = None
        self._loaded: Any = None
        self._restored = False  # the source was given back the state `_loaded`, and has not yielded since
        self._ended = False  # ... and that state is the end of an epoch

    @property
    def samples(self) -> int:
        """Samples that the loop was given in all epochs together; batches, where nobody knows their size."""
        return self._samples_before + _samples_in(self._source, self.consumed)

    @property
    def last(self) -> bool | None:
        """Whether the batch yielded last ends its epoch; None when that shows only on asking for another."""
        length = _length(self._source)
        return None if length is None else 0 < length <= self.consumed

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last: plain data, and tensors if the source's state has any."""
        return {
            **self._shape(),
            "epoch": self.epoch,
            "consumed": self.consumed,
            "samples": self.samples,
            "ended": bool(self.last),
            "loader": self._source_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a saved position.

        Raises: UsageError if another kind of source saved it, or one that cuts or fetches its batches differently.
        """
        check_same(self._source, self._shape(), state)
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self._samples_before = state["samples"] - _samples_in(self._source, self.consumed)
        self._live, self._restored, self._ended = None, self._way is Way.STATE, state["ended"]
        self.note = ""
        self._loaded = state["loader"]
        if self._way is Way.STATE:
            self._source.load_state_dict(self._loaded)

    def give_back(self) -> bool:
        """Take back the batch that was yielded last; only where batches are found by their number."""
        if self._way is not Way.REPLAY or not self.consumed:
            return False
        self.consumed -= 1
        self._live, self._restored, self._ended = None, True, False
        return True

    def __iter__(self) -> Iterator[Any]:
        """Go on with the current epoch; when exhausted, the next one has begun."""
        if self._live is None:
            self._live = self._begin()
        return self._rest(self._live)

    def _source_state(self) -> Any:
        if self._way is not Way.STATE:
            return None
        # Not every source can tell a position that it was given and has not begun to use.
        return self._loaded if self._restored else self._source.state_dict()

    def _shape(self) -> dict[str, Any]:
        """What must not change between saving and restoring, because positions are counted in batches."""
        keep = ("batch_size", "num_workers") if self._way is Way.STATE else ("batch_size",)
        shape = {name: getattr(self._source, name, None) for name in keep}
        return {"way": self._way.value, "samples_per_epoch": _samples_per_epoch(self._source), **shape}

    def _begin(self) -> Iterator[Any]:
        if self._ended:
            return iter(())  # nothing is left of this epoch; the source itself is asked when the next one begins
        self._tell_epoch()
        with untouched_rng():
            if self._restored:
                # Torchdata builds its restored iterator when asked for its state, or by `iter`, and draws a seed for
                # it. That draw does not belong to the training; `iter` then finds the iterator ready.
                self._source.state_dict()
            if self.consumed:
                return self._return()
        return iter(self._source)

    def _return(self) -> Iterator[Any]:
        """Begin in the middle of an epoch."""
        live: Iterator[Any] = iter(self._source)
        length = _length(self._source)
        if self._way is Way.STATE:
            return live
        if self._way is Way.RESHUFFLE and length is not None:
            self.note = f"{length - self.consumed} batches of a new shuffle finish epoch {self.epoch}"
            return islice(live, length - self.consumed)
        skipped = sum(1 for _ in islice(live, self.consumed))
        if skipped < self.consumed:
            raise UsageError(
                f"the position was saved after batch {self.consumed} of an epoch, which now ends after {skipped}; "
                "give the same data as before, or start a new run at another path"
            )
        self.note = f"{skipped} batches were fetched again and thrown away to get back to the position in the epoch"
        return live

    def _rest(self, live: Iterator[Any]) -> Iterator[Any]:
        while True:
            if live is not self._live:
                raise UsageError(
                    "the position was moved by load_state_dict while this loop went over the batches; begin a new loop"
                )
            batch = next(live, _END)
            if batch is _END and self._restored and not self.consumed:
                # The restored state was the end of the epoch before; the source begins the next one when asked again.
                self._restored = False
                live = self._live = iter(self._source)
                continue
            if batch is _END:
                break
            self._restored, self._loaded = False, None
            self.consumed += 1
            yield batch
        self._samples_before = self.samples
        self.epoch += 1
        self.consumed = 0
        # A source restored to the end of an epoch has not been asked yet, and still stands there.
        self._restored, self._ended = self._restored and self._ended, False
        self._live = None

    def _tell_epoch(self) -> None:
        cutting = getattr(self._source, "batch_sampler", None)
        for sampler in (getattr(self._source, "sampler", None), cutting, getattr(cutting, "sampler", None)):
            if tell := getattr(sampler, "set_epoch", None):
                tell(self.epoch)


def judge(source: Any) -> tuple[Way, Level, str]:
    """Tell how a foreign source gets back to a position, how exact that is, and what keeps it from being bit-exact."""
    name = type(source).__name__
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return _judge_stateful(source)
    if isinstance(source, torch.utils.data.DataLoader) and not over_iterable(source):
        in_order = not source.num_workers or source.in_order
        if in_order and type(_ordering(source)) in (torch.utils.data.SequentialSampler, DistributedSampler):
            # The order of these two follows from the epoch alone.
            why = f"{name} has no position: its batches are fetched again, and what they draw at random differs"
            return Way.REPLAY, Level.EXACT_SAMPLES, why
        why = f"the rest of an epoch of this {name} is another shuffle: samples repeat and others are left out"
        return Way.RESHUFFLE, Level.FULL_STATE, why
    if type(source) in (list, tuple, range):
        return Way.REPLAY, Level.BIT_EXACT, ""
    if isinstance(source, Sequence):
        return Way.REPLAY, Level.EXACT_SAMPLES, f"{name} has no position, and what its batches draw at random differs"
    why = f"nobody knows whether {name} yields the same batches again: its first ones are fetched again and thrown away"
    return Way.REPLAY, Level.FULL_STATE, why


def _judge_stateful(source: Any) -> tuple[Way, Level, str]:
    name = type(source).__name__
    if getattr(source, "restart_on_stop_iteration", False):
        raise UsageError(
            f"{name} begins a new epoch by itself when it is restored at the end of one, which would repeat an epoch; "
            f"build it with {name}(…, restart_on_stop_iteration=False)"
        )
    if over_iterable(source) and not _has_state(source.dataset) and not _has_state(iter(source.dataset)):
        # Torchdata 0.11 replays such a dataset too, but counts the replayed batches twice: the second resume in one
        # epoch ends up elsewhere.
        why = f"{type(source.dataset).__name__} has no state_dict: its batches are fetched again"
        return Way.REPLAY, Level.EXACT_SAMPLES, why
    if getattr(source, "num_workers", 0):
        why = f"the workers of {name} begin their random numbers anew after a resume; holdfast.DataLoader keys them"
        return Way.STATE, Level.EXACT_SAMPLES, why
    return Way.STATE, Level.BIT_EXACT, ""


def _has_state(thing: object) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def over_iterable(source: Any) -> bool:
    """Tell whether a loader goes over a dataset that has no index."""
    return isinstance(getattr(source, "dataset", None), torch.utils.data.IterableDataset)


def _ordering(source: Any) -> Any:
    """What decides the order of samples: the sampler, the one within a plain batch sampler, or the batch sampler."""
    cutting = getattr(source, "batch_sampler", None)
    if cutting is None:
        return source.sampler
    return cutting.sampler if type(cutting) is torch.utils.data.BatchSampler else cutting


def _length(source: Any) -> int | None:
    """Batches of an epoch; None when unknown. What torch says about an iterable dataset is an estimate."""
    return None if over_iterable(source) else _len(source)


def _samples_per_epoch(source: Any) -> int | None:
    """Samples of an epoch, or items of a plain sequence; None when unknown."""
    return _len(source if isinstance(source, Sequence) else getattr(source, "sampler", None))


def _samples_in(source: Any, batches: int) -> int:
    """Samples in the first batches of an epoch; their number when the size of a batch is unknown."""
    size, samples = getattr(source, "batch_size", None), _samples_per_epoch(source)
    return batches if size is None or samples is None else min(size * batches, samples)


def _len(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):  # a loader has a __len__ that raises if its sampler has none
        return None


def check_same(source: Any, now: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise UsageError unless the saved position was counted the way this source counts."""
    problems = [f"{name} was {state.get(name)}, is {value}" for name, value in now.items() if state.get(name) != value]
    if problems:
        raise UsageError(
            f"the position saved for the training data does not fit this {type(source).__name__}: "
            f"{'; '.join(problems)}. Go back to the loader that saved it, or start a new run at another path; "
            "a holdfast.DataLoader may change batch_size and num_workers at any time."
        )
