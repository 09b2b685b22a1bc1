"""The data loader goes on exactly where a checkpoint left it."""

import copy
import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, SequentialSampler, WeightedRandomSampler, default_collate, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from holdfast.errors import UsageError
from holdfast.state.loader import DataLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded:DeprecationWarning"
)

SAMPLES = 22


class Augmented:
    """Samples that carry their index and one draw of every global generator."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.offset = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(()).item()]
        return torch.tensor([index + self.offset, *draws], dtype=torch.float64)


class Seeded(Augmented):
    """Samples that carry the seed of the worker that fetched them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        return torch.tensor([index, info.seed])


class Announcing(Augmented):
    """Says through a semaphore that a sample was fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = multiprocessing.get_context("fork").Semaphore(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched.release()
        return super().__getitem__(index)


class Stream(IterableDataset):
    """A dataset without indices."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def loader(**options: Any) -> DataLoader:
    """A loader over random samples."""
    dataset = options.pop("dataset", None) or Augmented()
    return DataLoader(dataset, **{"batch_size": 4, "seed": 5, **options})


def go(source: DataLoader, *, epochs: int = 1) -> list[torch.Tensor]:
    """All batches of the rest of this epoch, and of the epochs after it."""
    return [batch for _ in range(epochs) for batch in source]


def saved_after(source: DataLoader, batches: int, *, epochs: int = 0) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Go through some epochs and some batches, and save in mid-loop, as a training would."""
    passed = go(source, epochs=epochs)
    for batch in source:
        passed.append(batch)
        batches -= 1
        if not batches:
            break
    return passed, copy.deepcopy(source.state_dict())


def resumed(source: DataLoader, state: dict[str, Any]) -> DataLoader:
    """The loader of the next attempt."""
    source.load_state_dict(state)
    return source


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bitwise equal, batch by batch."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def indices(batches: list[torch.Tensor]) -> list[int]:
    """The dataset indices in the batches."""
    return [int(index) for batch in batches for index in batch[:, 0]]


def generators() -> tuple[Any, ...]:
    """Where the global generators stand."""
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tobytes(), numpy[2:], torch.get_rng_state().numpy().tobytes()


class TestRestore:
    """A restored loader yields what the uninterrupted one would have."""

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("epochs", [0, 2])
    def test_at_every_batch(self, shuffle: bool, drop_last: bool, epochs: int) -> None:
        """Wherever the kill falls, in the first epoch or a later one, the stream goes on bit by bit."""
        how = {"shuffle": shuffle, "drop_last": drop_last}
        whole = go(loader(**how), epochs=epochs + 2)
        for batches in range(1, len(loader(**how)) + 1):
            passed, state = saved_after(loader(**how), batches, epochs=epochs)
            assert same(passed + go(resumed(loader(**how), state), epochs=2), whole)

    def test_twice_in_one_epoch(self) -> None:
        """A second kill in the same epoch is as harmless as the first."""
        passed, state = saved_after(loader(shuffle=True), 2)
        more, state = saved_after(resumed(loader(shuffle=True), state), 1)
        assert same(passed + more + go(resumed(loader(shuffle=True), state)), go(loader(shuffle=True)))

    def test_without_batches(self) -> None:
        """batch_size=None yields single samples, and has a position as well."""
        passed, state = saved_after(loader(batch_size=None, shuffle=True), 7)
        rest = go(resumed(loader(batch_size=None, shuffle=True), state))
        assert same(passed + rest, go(loader(batch_size=None, shuffle=True)))
        assert len(passed + rest) == len(loader(batch_size=None)) == SAMPLES

    @pytest.mark.parametrize(("before", "after"), [(4, 3), (4, 8), (3, None), (None, 5)])
    def test_with_another_batch_size(self, before: int | None, after: int | None) -> None:
        """The position counts samples: another batch size in mid-epoch leaves none out and repeats none."""
        passed, state = saved_after(loader(batch_size=before, shuffle=True), 2)
        rest = go(resumed(loader(batch_size=after, shuffle=True), state))
        both = torch.cat([batch.reshape(-1, 6) for batch in passed + rest])
        assert torch.equal(both, torch.cat(go(loader(shuffle=True))))

    def test_with_another_batch_size_and_drop_last(self) -> None:
        """What is left of the epoch is cut anew, and only its tail is dropped."""
        passed, state = saved_after(loader(drop_last=True), 2)
        second = resumed(loader(drop_last=True, batch_size=6), state)
        assert second.remaining_batches == 2
        assert indices(passed + go(second)) == list(range(20))

    def test_in_place(self) -> None:
        """A roll-back in the running process takes the loader back; the loop it was in cannot be gone on with."""
        source = loader(shuffle=True)
        passed, state = saved_after(source, 2)
        running = iter(source)
        next(running)
        source.load_state_dict(state)
        with pytest.raises(UsageError, match="begin a new loop"):
            next(running)
        assert same(passed + go(source), go(loader(shuffle=True)))

    def test_with_a_sampler(self) -> None:
        """A sampler that draws at random is brought back too, and samples it repeats are not alike."""
        how = {"sampler": WeightedRandomSampler([1.0] * SAMPLES, 40)}
        whole = go(loader(**how), epochs=2)
        passed, state = saved_after(loader(**how), 3)
        assert same(passed + go(resumed(loader(**how), state), epochs=2), whole)
        first_epoch = whole[: len(whole) // 2]
        rows = {tuple(row.tolist()) for row in torch.cat(first_epoch)}
        assert len(rows) == 40 > len(set(indices(first_epoch)))

    def test_with_ranks(self) -> None:
        """Ranks that share out an epoch by DistributedSampler each go on with their own part."""
        data = Augmented()
        parts = [{"dataset": data, "sampler": DistributedSampler(data, num_replicas=2, rank=rank)} for rank in range(2)]
        states = [saved_after(loader(**part), 1) for part in parts]
        both = [passed + go(resumed(loader(**p), state)) for p, (passed, state) in zip(parts, states, strict=True)]
        assert sorted(indices(both[0] + both[1])) == list(range(SAMPLES))
        assert same(both[1], go(loader(**parts[1])))


class TestPosition:
    """What the loader says about where it is."""

    def test_counts_what_the_loop_was_given(self) -> None:
        """Within the loop body, the batch at hand counts as consumed."""
        source = loader()
        for number, _ in enumerate(source, start=1):
            assert (source.epoch, source.batches, source.remaining_batches) == (0, number, 6 - number)
            assert source.cursor == source.seen == min(4 * number, SAMPLES)
        assert (source.epoch, source.batches, source.cursor, source.seen) == (1, 0, 0, SAMPLES)

    @pytest.mark.parametrize(("drop_last", "total", "batches"), [(False, 22, 6), (True, 20, 5)])
    def test_end_of_epoch(self, drop_last: bool, total: int, batches: int) -> None:
        """Saved at an epoch's last batch: the epoch is not over; iterating yields nothing and ends it once."""
        _, state = saved_after(loader(drop_last=drop_last), batches)
        assert (state["epoch"], state["cursor"]) == (0, total)
        source = resumed(loader(drop_last=drop_last), state)
        assert source.remaining_batches == 0
        assert go(source) == []
        assert (source.epoch, source.cursor, source.seen) == (1, 0, total)
        assert len(go(source)) == len(source) == batches

    def test_breaking_off_goes_on(self) -> None:
        """Breaking out of a loop and iterating again goes on with the next batch: position is all there is."""
        source = loader(shuffle=True)
        passed, _ = saved_after(source, 2)
        assert same(passed + go(source), go(loader(shuffle=True)))

    def test_state_is_plain(self) -> None:
        """The state is numbers and text."""
        _, state = saved_after(loader(shuffle=True), 2)
        assert {type(value) for value in state.values()} == {int, str}

    def test_dataset_is_the_callers(self) -> None:
        """loader.dataset and loader.sampler are what the caller gave."""
        data = Augmented()
        sampler = SequentialSampler(data)
        source = loader(dataset=data, sampler=sampler)
        assert source.dataset is data
        assert source.sampler is sampler

    def test_empty_epoch(self) -> None:
        """A dataset smaller than one batch, with drop_last, has epochs without batches."""
        source = loader(dataset=Augmented(3), drop_last=True)
        assert (len(source), go(source), source.epoch) == (0, [], 1)


class TestRandomness:
    """Training and data loading do not share randomness."""

    def test_global_generators_are_left_alone(self) -> None:
        """After every batch the global generators stand where they stood, although the dataset drew from them."""
        before = generators()
        for _ in loader(shuffle=True):
            assert generators() == before
        assert generators() == before

    def test_training_does_not_disturb_the_data(self) -> None:
        """What the training draws between batches does not show in them."""
        disturbed = []
        for batch in loader(shuffle=True):
            random.random()
            np.random.rand()
            torch.rand(3)
            disturbed.append(batch)
        assert same(disturbed, go(loader(shuffle=True)))

    def test_epochs_and_seeds_differ(self) -> None:
        """The same sample is augmented differently in another epoch, and with another seed."""
        source = loader()
        first, second, other = go(source)[0], go(source)[0], go(loader(seed=6))[0]
        assert torch.equal(first[:, 0], second[:, 0])
        assert len({first[0, 1].item(), second[0, 1].item(), other[0, 1].item()}) == 3

    def test_collate_may_draw(self) -> None:
        """Randomness in collate_fn belongs to its batch."""
        how: dict[str, Any] = {"collate_fn": lambda rows: default_collate(rows) + torch.rand(()) + np.random.rand()}
        before = generators()
        passed, state = saved_after(loader(**how), 3)
        assert same(passed + go(resumed(loader(**how), state)), go(loader(**how)))
        assert generators() == before


class TestRefusals:
    """What has no position is refused, with what to do instead."""

    @pytest.mark.parametrize(
        ("make", "remedy"),
        [
            (lambda: DataLoader(Stream()), "StatefulDataLoader"),
            (lambda: DataLoader(iter([1])), "__len__"),
            (lambda: loader(shuffle=True, sampler=[1, 2]), "let the sampler shuffle"),
            (lambda: loader(batch_sampler=[[1, 2]]), "let a `sampler` yield the indices"),
            (lambda: loader(generator=torch.Generator()), "follow from `seed`"),
            (lambda: loader(in_order=False), "leave it out"),
            (lambda: loader(seed=-1), "not negative"),
        ],
    )
    def test_options(self, make: Callable[[], DataLoader], remedy: str) -> None:
        """Options that leave no position to save are refused at once."""
        with pytest.raises(UsageError, match=remedy):
            make()

    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ({"dataset": Augmented(23)}, "the length of the dataset was 22, is 23"),
            ({"seed": 6}, "seed was 5, is 6"),
            ({"shuffle": False}, "the order of samples was shuffled, is in order"),
            ({"shuffle": False, "sampler": [1, 2]}, "was shuffled, is by list"),
        ],
    )
    def test_other_samples(self, how: dict[str, Any], words: str) -> None:
        """A position in one order means nothing in another: both values are named, and nothing is changed."""
        _, state = saved_after(loader(shuffle=True), 2)
        source = loader(**{"shuffle": True, **how})
        with pytest.raises(UsageError, match=words):
            source.load_state_dict(state)
        assert source.cursor == 0

    def test_another_share(self) -> None:
        """A sampler that yields another number of samples, as with another number of ranks, is refused."""
        data = Augmented()
        _, state = saved_after(loader(sampler=DistributedSampler(data, num_replicas=2, rank=0)), 1)
        with pytest.raises(UsageError, match="was 11, is 6"):
            loader(sampler=DistributedSampler(data, num_replicas=4, rank=0)).load_state_dict(state)

    def test_other_states(self) -> None:
        """The state of something else is refused by what it lacks."""
        with pytest.raises(UsageError, match="lacks batches, cursor"):
            loader().load_state_dict({"epoch": 0, "seed": 0})


def _shift(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100  # type: ignore[attr-defined]


class TestWorkers:
    """The same with processes that fetch ahead."""

    @pytest.mark.slow
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("persistent", [False, True])
    @pytest.mark.parametrize(("before", "after"), [*itertools.product((0, 1, 2), (0, 1, 3))])
    def test_any_number(self, before: int, after: int, persistent: bool, shuffle: bool) -> None:
        """Bit by bit the same stream with any number of workers, changed between attempts, persistent or not."""
        how = {"shuffle": shuffle, "drop_last": before + after != 2}
        first, second = (
            loader(**how, num_workers=workers, persistent_workers=persistent and workers > 0)
            for workers in (before, after)
        )
        passed, state = saved_after(first, 2, epochs=1)
        rest = go(resumed(second, state), epochs=2)
        assert same(passed + rest, go(loader(**how), epochs=3))

    def test_running_ahead(self) -> None:
        """What workers have fetched and the loop has not been given is fetched again after a resume."""
        data = Announcing()
        source = loader(dataset=data, num_workers=2, prefetch_factor=3, shuffle=True, multiprocessing_context="fork")
        batches = iter(source)
        first = next(batches)
        for _ in range(16):
            assert data.fetched.acquire(timeout=30), "the workers did not fetch ahead"
        state = source.state_dict()
        assert state["cursor"] == 4
        del batches
        assert same([first, *go(resumed(loader(shuffle=True), state))], go(loader(shuffle=True)))

    def test_in_place(self) -> None:
        """Persistent workers are taken back in mid-epoch, with batches of the abandoned loop still on their way."""
        source = loader(num_workers=2, persistent_workers=True, shuffle=True)
        passed, state = saved_after(source, 2)
        saved_after(source, 1)
        source.load_state_dict(state)
        assert same(passed + go(source, epochs=2), go(loader(shuffle=True), epochs=2))

    def test_global_generators_are_left_alone(self) -> None:
        """Starting workers and receiving batches draws nothing from the global generators."""
        before = generators()
        for _ in loader(num_workers=2):
            assert generators() == before
        assert generators() == before

    def test_worker_init_fn_finds_the_dataset(self) -> None:
        """What worker_init_fn does to the dataset of its worker is done to the dataset that samples come from."""
        assert indices(go(loader(num_workers=1, worker_init_fn=_shift))) == list(range(100, 100 + SAMPLES))

    def test_worker_seeds(self) -> None:
        """What worker_init_fn seeds from its worker is the same after a resume, and another in another epoch."""
        how = {"dataset": Seeded(), "num_workers": 1}
        whole = go(loader(**how), epochs=2)
        passed, state = saved_after(loader(**how), 1, epochs=1)
        assert same(passed + go(resumed(loader(**how), state)), whole)
        assert whole[0][0, 1] != whole[-1][0, 1]

    @pytest.mark.slow
    def test_spawned(self) -> None:
        """Workers that start from nothing but pickles fetch the same."""
        spawned = loader(shuffle=True, num_workers=1, multiprocessing_context="spawn")
        assert same(go(spawned), go(loader(shuffle=True)))
