"""The order of an epoch: a function of (seed, epoch), so that no position in it needs to be replayed to.

Numpy promises not to change the streams of `RandomState` and `SeedSequence` (NEP 19), which torch does not promise of
`randperm`: an upgrade of either library in mid-run does not reorder an epoch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data

from .keyed import Key, digest, index_text, seed_global, seed_number, untouched_rng


def permutation(seed: int, epoch: int, samples: int) -> Any:
    """Shuffle 0 … samples-1 as an array. Frozen: tests hold literal results."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, epoch]))).permutation(samples)


class Shuffle(torch.utils.data.Sampler):
    """Yields the permutation of an epoch; what `DataLoader.sampler` is when `shuffle=True`."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self.seed, self.epoch, self.samples).tolist())

    def __len__(self) -> int:
        return self.samples


@dataclass(frozen=True, slots=True)
class Order:
    """The samples of one epoch, in order."""

    epoch: int
    indices: Any
    """A range, an array or a list."""
    repeats: Sequence[int] | None = None
    """Per place, how often its index stood further ahead; None when every index stands once."""

    def __len__(self) -> int:
        return len(self.indices)

    def keys(self, start: int, stop: int) -> list[Key]:
        """The keys of the places from `start` to before `stop`."""
        indices = self.indices[start:stop]
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        repeats = self.repeats[start:stop] if self.repeats is not None else [0] * len(indices)
        return [Key(self.epoch, index, repeat) for index, repeat in zip(indices, repeats, strict=True)]


def order_of(sampler: Any, seed: int, epoch: int) -> Order:
    """Work out the order that a sampler has in one epoch.

    A sampler that is neither `Shuffle` nor torch's SequentialSampler is told the epoch if it has `set_epoch`, and
    iterated to its end under generators seeded by (seed, epoch): the global ones, and its own `generator`. All of them
    are put back afterwards. A sampler that draws from anything else has no fixed order.
    """
    if type(sampler) is torch.utils.data.SequentialSampler:
        return Order(epoch, range(len(sampler)))
    if isinstance(sampler, Shuffle):
        return Order(epoch, permutation(seed, epoch, len(sampler)))
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    with untouched_rng(), _seeded(getattr(sampler, "generator", None), seed, epoch):
        indices = list(sampler)
    return Order(epoch, indices, _repeats(indices))


@contextmanager
def _seeded(generator: object, seed: int, epoch: int) -> Iterator[None]:
    seed_global(digest(seed, Key(epoch, "order", 0)))
    if not isinstance(generator, torch.Generator):
        yield
        return
    before = generator.get_state()
    generator.manual_seed(seed_number(seed, epoch, "order"))
    try:
        yield
    finally:
        generator.set_state(before)


def _repeats(indices: Sequence[Any]) -> list[int] | None:
    texts = [index_text(index) for index in indices]
    if len(set(texts)) == len(texts):
        return None
    seen: Counter[str] = Counter()
    repeats = []
    for text in texts:
        repeats.append(seen[text])
        seen[text] += 1
    return repeats
