"""A torch DataLoader whose position is three numbers: (seed, epoch, cursor in samples).

Rules:
1. The order of an epoch is a function of (seed, epoch); a restore replays nothing. (`order`)
2. The randomness of a sample is a function of (seed, epoch, index). (`keyed`)
3. The cursor counts what the loop was given, never what workers fetched ahead.
4. Loading data draws nothing from the training process's global generators.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.utils.data

from ..errors import UsageError
from .keyed import Key, KeyedDataset, seed_number, untouched_rng
from .order import Order, Shuffle, order_of

_END = object()

_REFUSED = {
    "batch_sampler": "let a `sampler` yield the indices in that order, and give batch_size and drop_last",
    "generator": "the order and all randomness follow from `seed`: give that",
}


class DataLoader(torch.utils.data.DataLoader):
    """A torch DataLoader that continues exactly where a checkpoint left it, in mid-epoch and with any workers.

    `iter(loader)` is the rest of the current epoch; when it is exhausted, the next epoch has begun. Breaking out of a
    loop and iterating again therefore goes on with the next batch. At the end of an epoch, before the exhausted
    iterator has moved on to the next one, iterating yields nothing.

    What the dataset, or `collate_fn`, draws from the global generators of python, numpy and torch's CPU is keyed by
    (seed, epoch, index): the same with any number of workers, and after any number of resumes. See `keyed` for what
    is not covered. An index that a sampler repeats within an epoch gets other randomness each time.

    Args:
        dataset: a map-style dataset with a length; the length must not change during the run.
        batch_size: samples per batch; None yields single samples. May change between attempts, even in mid-epoch.
        shuffle: a new permutation each epoch; otherwise 0, 1, 2 …
        sampler: the order instead, e.g. DistributedSampler. Must follow from the epoch (`set_epoch`), the global
            generators and the `generator` attribute alone.
        drop_last: leave out the last, smaller batch of an epoch.
        seed: source of order and randomness; not negative.
        options: every other option of torch's DataLoader, unchanged.

    Raises: UsageError for options that leave no position to save, saying what to use instead.
    """

    # `**options` is the one pass-through outside integrations: torch's options are torch's, and it adds new ones.
    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        _check(dataset, shuffle, sampler, seed, options)
        self.seed = seed
        self._kind = "shuffled" if shuffle else f"by {type(sampler).__name__}" if sampler is not None else "in order"
        self._epoch = self._cursor = self._batches = self._seen_before = 0
        self._turn = object()
        self._before: tuple[int, int] | None = None  # cursor and batches before the batch that was yielded last
        self._order: Order | None = None
        torch_options = {name: value for name, value in options.items() if name not in _REFUSED}
        # Torch draws a seed for its workers at every iter(): from a generator of our own, not from the global one.
        torch_options["generator"] = torch.Generator()
        super().__init__(
            dataset,
            batch_size=batch_size,
            sampler=Shuffle(len(dataset), seed) if shuffle else sampler,
            drop_last=drop_last,
            **torch_options,
        )
        # Fetching is left to a second torch DataLoader over the keyed dataset; `dataset` stays the caller's.
        self._plan = _Plan(single=batch_size is None)
        cut = {"batch_size": None, "sampler": self._plan} if batch_size is None else {"batch_sampler": self._plan}
        self._fetching = torch.utils.data.DataLoader(KeyedDataset(dataset, seed), **cut, **torch_options)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def cursor(self) -> int:
        """Samples of this epoch that the loop was given."""
        return self._cursor

    @property
    def batches(self) -> int:
        """Batches of this epoch that the loop was given."""
        return self._batches

    @property
    def seen(self) -> int:
        """Samples that the loop was given in all epochs together."""
        return self._seen_before + self._cursor

    @property
    def remaining_batches(self) -> int:
        """Batches still to come in this epoch."""
        return self._count(self._length() - self._cursor)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._count(self._length())

    def __iter__(self) -> Iterator[Any]:
        """Begin the rest of the epoch. An iterator begun earlier becomes unusable."""
        turn = self._turn = object()
        if not (batches := self.remaining_batches):
            return self._rest(iter(()), turn)
        self._plan.begin(self._order_of(self._epoch), self._cursor, self.batch_size or 1, batches)
        self.generator.manual_seed(seed_number(self.seed, self._epoch, "workers"))
        return self._rest(iter(self._fetching), turn)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last, as plain data."""
        return {
            "seed": self.seed,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "batches": self._batches,
            "seen": self.seen,
            "samples": len(self.dataset),
            "length": self._length(),
            "order": self._kind,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a saved position; the next `iter` goes on from there.

        Raises: UsageError if the loader would not go through the same samples in the same order; it is then unchanged.
        """
        if missing := sorted(self.state_dict().keys() - state.keys()):
            raise UsageError(f"this is not the state of a holdfast.DataLoader: it lacks {', '.join(missing)}")
        compared = (
            ("the length of the dataset", state["samples"], len(self.dataset)),
            ("seed", state["seed"], self.seed),
            ("the order of samples", state["order"], self._kind),
        )
        problems = [f"{what} was {before}, is {now}" for what, before, now in compared if before != now]
        if not problems and (length := self._length(state["epoch"])) != state["length"]:
            problems = [f"the number of samples that the sampler yields was {state['length']}, is {length}"]
        if problems:
            raise UsageError(
                f"the data loader cannot go on from its saved position: {'; '.join(problems)}. Give it the same "
                "dataset, seed, shuffle and sampler as before (batch_size and workers may differ), "
                "or start a new run at another path."
            )
        self._epoch, self._cursor, self._batches = state["epoch"], state["cursor"], state["batches"]
        self._seen_before = state["seen"] - state["cursor"]
        self._before, self._turn = None, object()

    def give_back(self) -> None:
        """Take back the batch that was yielded last: the next `iter` begins with it. Once per batch."""
        if self._before is not None:
            self._cursor, self._batches = self._before
            self._before, self._turn = None, object()

    def _rest(self, fetched: Iterator[Any], turn: object) -> Iterator[Any]:
        """Yield the fetched batches, counting each just before it is handed out; then begin the next epoch."""
        while True:
            if turn is not self._turn:
                raise UsageError(
                    "the data loader was moved (by load_state_dict or another iter) while this loop went over it; "
                    "begin a new loop over the loader"
                )
            # Without workers, the dataset runs here and seeds the global generators of the training process.
            with nullcontext() if self.num_workers else untouched_rng():
                batch = next(fetched, _END)
            if batch is _END:
                break
            self._before = self._cursor, self._batches
            self._cursor = min(self._cursor + (self.batch_size or 1), self._length())
            self._batches += 1
            yield batch
        self._before = None
        self._seen_before += self._cursor
        self._epoch += 1
        self._cursor = self._batches = 0

    def _order_of(self, epoch: int) -> Order:
        if self._order is None or self._order.epoch != epoch:
            self._order = order_of(self.sampler, self.seed, epoch)
        return self._order

    def _length(self, epoch: int | None = None) -> int:
        """Samples of an epoch, by default the current one; only a caller's sampler has to be run to tell."""
        if self._kind in ("shuffled", "in order"):
            return len(self.sampler)
        return len(self._order_of(self._epoch if epoch is None else epoch))

    def _count(self, samples: int) -> int:
        size = self.batch_size or 1
        return samples // size if self.drop_last else -(-samples // size)


class _Plan:
    """What is left of the epoch, cut into batches: the sampler of the loader that fetches."""

    def __init__(self, *, single: bool) -> None:
        self._single = single
        self._order = Order(0, ())
        self._starts = range(0)

    def begin(self, order: Order, start: int, size: int, batches: int) -> None:
        self._order = order
        self._starts = range(start, start + batches * size, size)

    def __iter__(self) -> Iterator[list[Key] | Key]:
        # Torch calls this more than once per epoch, and pulls from it while workers run ahead.
        order, size = self._order, self._starts.step
        batches = (order.keys(start, start + size) for start in self._starts)
        return (keys[0] for keys in batches) if self._single else batches


def _check(dataset: Any, shuffle: bool, sampler: object, seed: int, options: Mapping[str, Any]) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise UsageError(
            "holdfast.DataLoader needs a dataset with dataset[index] and a length; for an IterableDataset use "
            "torchdata.stateful_dataloader.StatefulDataLoader, which Run accepts as well"
        )
    if not hasattr(dataset, "__len__"):
        raise UsageError(
            f"{type(dataset).__name__} has no __len__, without which an epoch has no end and no position; add it"
        )
    if shuffle and sampler is not None:
        raise UsageError("shuffle=True and sampler= exclude each other: let the sampler shuffle, or leave it out")
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed={seed!r} must be an integer that is not negative")
    for name, remedy in _REFUSED.items():
        if options.get(name) is not None:
            raise UsageError(f"holdfast.DataLoader takes no {name}: {remedy}")
    if not options.get("in_order", True):
        raise UsageError("in_order=False leaves no position to save: batches come in any order; leave it out")
