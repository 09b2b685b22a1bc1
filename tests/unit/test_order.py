"""The order of an epoch and the randomness of a sample are frozen functions of the seed."""

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from holdfast.errors import UsageError
from holdfast.state.keyed import Key, KeyedDataset, digest, index_text, seed_global, untouched_rng
from holdfast.state.order import Shuffle, order_of, permutation


def global_draws() -> tuple[Any, ...]:
    """One number from each global generator, of each kind that keeps a second one back."""
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(()).item()


class Drawing:
    """A dataset whose samples are what the global generators yield."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (index, *global_draws())


class DrawingBatches(Drawing):
    """The same, fetched by the batch."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        return [self[index] for index in indices]


class TestPermutation:
    """The order of a shuffled epoch."""

    def test_is_frozen(self) -> None:
        """No upgrade of torch or numpy may reorder an epoch that a checkpoint stands in the middle of."""
        assert permutation(0, 0, 10).tolist() == [6, 1, 0, 5, 3, 8, 7, 9, 2, 4]
        assert permutation(7, 3, 10).tolist() == [5, 4, 9, 2, 7, 1, 0, 8, 3, 6]

    def test_differs_between_epochs_and_seeds(self) -> None:
        """Every seed and every epoch has an order of its own, of all samples."""
        orders = [permutation(seed, epoch, 50).tolist() for seed in range(3) for epoch in range(3)]
        assert len({tuple(order) for order in orders}) == 9
        assert all(sorted(order) == list(range(50)) for order in orders)

    def test_sampler_yields_it(self) -> None:
        """Who looks at DataLoader.sampler finds the order that the loader goes through."""
        sampler = Shuffle(10, seed=7)
        sampler.set_epoch(3)
        assert list(sampler) == permutation(7, 3, 10).tolist()
        assert len(sampler) == 10


class TestSamplerOrder:
    """The order that a caller's sampler has."""

    def test_sequential_is_a_range(self) -> None:
        """The plain order costs no memory."""
        assert order_of(SequentialSampler(range(5)), seed=0, epoch=0).indices == range(5)

    @pytest.mark.parametrize(
        "sampler",
        [
            RandomSampler(range(20)),
            WeightedRandomSampler([1.0] * 20, 20),
            RandomSampler(range(20), generator=torch.Generator()),
        ],
        ids=["global", "weighted", "own generator"],
    )
    def test_follows_from_seed_and_epoch(self, sampler: Any) -> None:
        """A sampler that draws at random yields the same order for the same epoch, and another for the next."""
        first, other, again = (order_of(sampler, seed=1, epoch=epoch).indices for epoch in (4, 5, 4))
        assert first == again
        assert first != other

    def test_epoch_is_told(self) -> None:
        """DistributedSampler shuffles by epoch only if it is told the epoch."""
        sampler = DistributedSampler(range(20), num_replicas=2, rank=1, shuffle=True)
        orders = [order_of(sampler, seed=0, epoch=epoch).indices for epoch in (0, 1, 0)]
        assert orders[0] == orders[2] != orders[1]

    def test_generators_are_put_back(self) -> None:
        """Working out an order takes nothing from the global generators, nor from the sampler's own."""
        own = torch.Generator()
        sampler = RandomSampler(range(20), generator=own)
        seed_global(bytes(16))
        before, expected = own.get_state(), global_draws()
        seed_global(bytes(16))
        order_of(sampler, seed=0, epoch=0)
        assert global_draws() == expected
        assert torch.equal(own.get_state(), before)

    def test_repeats_are_counted(self) -> None:
        """An index that stands in an epoch several times has a key of its own each time."""
        order = order_of([4, 2, 4, 4], seed=0, epoch=1)
        assert order.keys(0, 4) == [Key(1, 4, 0), Key(1, 2, 0), Key(1, 4, 1), Key(1, 4, 2)]
        assert order.keys(2, 9) == [Key(1, 4, 1), Key(1, 4, 2)]


class TestKeyed:
    """The randomness of a sample."""

    def test_is_frozen(self) -> None:
        """The bits that a sample is seeded with never change between versions of Holdfast."""
        assert digest(7, Key(3, 5, 0)).hex() == "4a8f68e39f01a4f062eb1b54a116d516"
        seed_global(digest(7, Key(3, 5, 0)))
        drawn = random.random(), np.random.rand(), torch.rand(()).item()
        assert drawn == pytest.approx((0.09897197172795225, 0.8065916291551535, 0.5885967016220093), rel=1e-15)

    @pytest.mark.parametrize("other", [Key(2, 5, 0), Key(3, 6, 0), Key(3, 5, 1)])
    def test_depends_on_every_part_of_the_key(self, other: Key) -> None:
        """Epoch, index and repeat each change the randomness; so does the seed."""
        assert digest(7, other) != digest(7, Key(3, 5, 0)) != digest(8, Key(3, 5, 0))

    def test_index_types_do_not_matter(self) -> None:
        """An index is the same whether the sampler yields it as int, numpy integer or tensor."""
        assert {index_text(5), index_text(np.int64(5)), index_text(torch.tensor(5))} == {"5"}
        assert index_text((np.int64(1), "a")) == index_text((1, "a"))
        assert len({index_text(index) for index in ("5", 5, (5,), b"5", 5.0)}) == 5

    def test_index_without_a_text_is_refused(self) -> None:
        """An object whose text changes from process to process cannot key anything."""
        with pytest.raises(UsageError, match="sampler yields a object"):
            index_text(object())

    @pytest.mark.parametrize("dataset", [Drawing(), DrawingBatches()])
    def test_a_batch_is_the_same_wherever_it_is_fetched(self, dataset: Drawing) -> None:
        """Nothing that happened before in the process shows in a batch, or in what collating it draws."""
        keyed, keys = KeyedDataset(dataset, seed=3), [Key(0, 4, 0), Key(0, 2, 0)]
        first = keyed.__getitems__(keys), global_draws()
        assert (keyed.__getitems__(keys), global_draws()) == first
        assert keyed.__getitems__(keys[::-1])[0][1:] != first[0][0][1:]

    def test_collating_does_not_know_what_samples_drew(self) -> None:
        """A dataset that draws only for samples it has not cached leaves the same randomness to collate_fn."""

        class Cached(Drawing):
            cached = False

            def __getitem__(self, index: int) -> tuple[Any, ...]:
                return (index,) if self.cached else super().__getitem__(index)

        dataset = Cached()
        keyed, keys = KeyedDataset(dataset, seed=3), [Key(0, 4, 0), Key(0, 2, 0)]
        keyed.__getitems__(keys)
        expected = global_draws()
        dataset.cached = True
        keyed.__getitems__(keys)
        assert global_draws() == expected

    def test_samples_do_not_know_their_batch(self) -> None:
        """A sample is the same alone, in another batch, and in another place of it."""
        keyed = KeyedDataset(Drawing(), seed=3)
        alone = [keyed[Key(0, index, 0)] for index in (4, 2, 7)]
        assert keyed.__getitems__([Key(0, index, 0) for index in (4, 2, 7)]) == alone

    def test_stands_in_for_the_dataset(self) -> None:
        """worker_init_fn reads and writes the dataset's attributes, also after a trip to another process."""
        keyed = pickle.loads(pickle.dumps(KeyedDataset(Drawing(), seed=3)))
        keyed.file = "opened"
        assert keyed.file == "opened"
        assert vars(keyed._dataset) == {"file": "opened"}
        assert len(keyed) == 10
        with pytest.raises(AttributeError, match="Drawing"):
            _ = keyed.missing

    def test_generators_are_put_back_after_an_error(self) -> None:
        """A dataset that raises leaves the training's generators as they were."""
        seed_global(bytes(16))
        expected = global_draws()
        seed_global(bytes(16))
        with pytest.raises(UsageError), untouched_rng():
            index_text((global_draws(), object()))
        assert global_draws() == expected
