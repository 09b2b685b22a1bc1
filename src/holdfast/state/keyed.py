"""Random numbers of data loading, keyed by sample.

What `dataset[index]` draws from the global generators of python, numpy and torch (CPU) is a function of
(seed, epoch, index) and of nothing else: not of the worker that runs it, not of what ran there before, and not of how
often the training was interrupted. Torch's own scheme seeds each worker once, which no checkpoint can put back.

Not keyed: generators that a dataset keeps for itself (`numpy.random.default_rng()` in an attribute), and those of
accelerators. Let such a dataset draw its seeds from the global generators.
"""

import hashlib
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import UsageError


class Key(NamedTuple):
    """What the randomness of one sample hangs on, besides the seed."""

    epoch: int
    index: Any
    repeat: int
    """How often the epoch's order named this index before: repeats of a sampler get randomness of their own."""


def digest(seed: int, key: Key) -> bytes:
    """Hash what identifies a sample to the 128 bits that its generators are seeded with.

    Frozen: BLAKE2b of "seed/epoch/index/repeat" in decimal. A change here changes every augmentation.
    """
    text = f"{seed}/{key.epoch}/{index_text(key.index)}/{key.repeat}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def index_text(index: Any) -> str:
    """Write an index so that equal indices of any integer type, and of any process, read the same.

    Raises: UsageError for what has no such form.
    """
    if isinstance(index, str | bytes | float):
        return repr(index)
    if isinstance(index, tuple | list):
        return "(" + ",".join(index_text(part) for part in index) + ")"
    try:
        return str(operator.index(index))  # numpy integers and tensors of one integer too
    except TypeError:
        raise UsageError(
            f"the sampler yields a {type(index).__name__}, which cannot key the randomness of a sample; "
            "let it yield integers, strings, or tuples of them"
        ) from None


def seed_number(seed: int, epoch: int, purpose: str) -> int:
    """Derive a seed for a generator that serves a whole epoch."""
    return int.from_bytes(digest(seed, Key(epoch, purpose, 0))[8:], "little") >> 1


def seed_global(bits: bytes) -> None:
    """Seed the global generators of python, numpy and torch's CPU from 16 bytes. Accelerators are left alone."""
    random.seed(int.from_bytes(bits, "little"))
    np.random.seed(int.from_bytes(bits[8:12], "little"))  # 32 bits: an array of them takes five times as long
    # Not torch.manual_seed: that would seed the accelerators, which belong to the training.
    torch.default_generator.manual_seed(int.from_bytes(bits[:8], "little") >> 1)


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Put the global generators of python, numpy and torch's CPU back to where they stood, whatever happens inside."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(cpu)


class KeyedDataset:
    """Fetches samples of a dataset by key, seeding the global generators first.

    A batch leaves the generators seeded from all its keys, so that `collate_fn`, which runs next in the same process,
    may draw too, however much each sample drew. A dataset with `__getitems__` fetches a whole batch from that one seed:
    it decides itself in which order it draws, so its randomness depends on how the epoch is cut into batches.

    To worker_init_fn, which finds this object as `get_worker_info().dataset`, it looks like the dataset: attributes
    are read from it and written to it.
    """

    _dataset: Any
    _seed: int

    def __init__(self, dataset: Any, seed: int) -> None:
        # __setattr__ writes to the dataset; these two are this object's own.
        self.__dict__.update(_dataset=dataset, _seed=seed)

    def __getitem__(self, key: Key) -> Any:
        """Fetch one sample."""
        seed_global(digest(self._seed, key))
        return self._dataset[key.index]

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        """Fetch the samples of one batch."""
        digests = [digest(self._seed, key) for key in keys]
        whole = hashlib.blake2b(b"".join(digests), digest_size=16).digest()
        if fetch := getattr(self._dataset, "__getitems__", None):
            seed_global(whole)
            return fetch([key.index for key in keys])
        samples = []
        for key, bits in zip(keys, digests, strict=True):
            seed_global(bits)
            samples.append(self._dataset[key.index])
        seed_global(whole)
        return samples

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Callable[..., "KeyedDataset"], tuple[Any, int]]:
        return KeyedDataset, (self._dataset, self._seed)
