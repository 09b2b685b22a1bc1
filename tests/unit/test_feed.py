"""Whatever a training goes over, an interruption in any place changes what the source can be held to, and no more."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data.distributed import DistributedSampler
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from holdfast.decide.exactness import Level
from holdfast.errors import UsageError
from holdfast.state.feed import Feed, feed_for
from holdfast.state.loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it

EPOCHS = 3

Log = list[tuple[Any, ...]]


class Numbers:
    """Ten numbers, without randomness."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)], dtype=torch.float64)


class Noisy(Numbers):
    """Ten numbers with noise from every global generator."""

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + np.random.rand() + torch.rand(()).item()
        return torch.tensor([index, noise], dtype=torch.float64)


class Stream(IterableDataset):
    """Ten numbers without indices or state."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


class Restarting:
    """A stateful loader that, restored to the end of an epoch, begins the next one by itself."""

    def __init__(self) -> None:
        self.at = 0
        self.restored = False

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        if not self.restored or self.at == 3:
            self.at = 0
        self.restored = False
        while self.at < 3:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
        self.restored = True


class Training:
    """A loop over a feed that draws random numbers itself, keeps books, and can be killed after any batch."""

    def __init__(self, make: Callable[[], Any], seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.feed: Feed = feed_for(make())

    def go(self, batches: int = 10_000) -> Log:
        """Train on, for so many batches at most; the log also has what is done at the end of each epoch."""
        log: Log = []
        while self.feed.epoch < EPOCHS and batches:
            epoch = self.feed.epoch
            for batch in self.feed:
                rows = batch.tolist() if isinstance(batch, torch.Tensor) else batch
                log.append((epoch, self.feed.consumed, self.feed.samples, rows, torch.rand(()).item()))
                batches -= 1
                if not batches:
                    return log
            log.append((epoch, "ended", random.random()))
        return log

    def saved(self) -> Any:
        """What a checkpoint at this boundary holds."""
        state = copy.deepcopy(self.feed.state_dict())
        return state, (torch.get_rng_state(), random.getstate(), np.random.get_state())

    def restored(self, saved: Any) -> "Training":
        """Take over from a checkpoint: the feed, then the generators."""
        state, (cpu, python, numpy) = saved
        self.feed.load_state_dict(state)
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)
        return self


def killed(make: Callable[[], Any], *after: int) -> Log:
    """The joined logs of attempts that were killed after so many batches each, and of a last one that was not."""
    training, log = Training(make), []
    for batches in after:
        log += training.go(batches)
        training = resumed(make, training.saved())
    return log + training.go()


def resumed(make: Callable[[], Any], saved: Any) -> Training:
    """The next attempt, in a process whose generators stand anywhere."""
    return Training(make, seed=99).restored(saved)


def batches_of(log: Log) -> list[Any]:
    """The batches in a log, with their places."""
    return [entry[:4] for entry in log if entry[1] != "ended"]


def sequential() -> Any:
    return TorchLoader(Numbers(), batch_size=4)


def shuffling() -> Any:
    return TorchLoader(Numbers(), batch_size=4, shuffle=True)


def stateful(**options: Any) -> Any:
    return StatefulDataLoader(Noisy(), **{"batch_size": 4, "shuffle": True, **options})


def node() -> Any:
    return nodes.Loader(
        nodes.Batcher(nodes.IterableWrapper(range(10)), 4, drop_last=False), restart_on_stop_iteration=False
    )


EXACT = {
    "holdfast": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True),
    "stateful": stateful,
    "stateful with ranks": lambda: stateful(
        shuffle=False, sampler=StatefulDistributedSampler(Numbers(), num_replicas=2, rank=0), batch_size=2
    ),
    "stateful stream": lambda: StatefulDataLoader(Stream(), batch_size=4),
    "nodes": node,
    "restarting": Restarting,
    "list": lambda: [[1], [2], [3]],
    "sequential": sequential,
    "ranks": lambda: TorchLoader(Numbers(), 2, sampler=DistributedSampler(Numbers(), num_replicas=2, rank=0)),
}


@pytest.mark.filterwarnings("ignore:after an interruption")
class TestResume:
    """Kill a training after any batch and let another go on."""

    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_after_any_batch(self, make: Callable[[], Any]) -> None:
        """Batches, counts, random numbers and the ends of epochs are those of the uninterrupted run, each once."""
        whole = killed(make)
        assert [entry[0] for entry in whole if entry[1] == "ended"] == [0, 1, 2]
        for batches in range(1, len(batches_of(whole)) + 1):
            assert killed(make, batches) == whole, f"killed after batch {batches}"

    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_twice(self, make: Callable[[], Any]) -> None:
        """A second kill, in the same epoch or right at its end, is as harmless as the first."""
        whole = killed(make)
        for first in range(1, 5):
            assert killed(make, first, 1) == whole, f"killed after batch {first} and the next"

    # Torchdata's sampler for ranks needs one draw more to begin an epoch from there.
    @pytest.mark.parametrize("name", sorted(EXACT.keys() - {"stateful with ranks"}))
    def test_between_epochs(self, name: str) -> None:
        """A position saved after an epoch was left is the start of the next."""
        make = EXACT[name]
        whole, training = killed(make), Training(make)
        log = training.go(1)
        rest = [
            (0, training.feed.consumed, training.feed.samples, _rows(b), torch.rand(()).item()) for b in training.feed
        ]
        log += [*rest, (0, "ended", random.random())]
        assert (training.feed.epoch, training.feed.consumed) == (1, 0)
        assert log + resumed(make, training.saved()).go() == whole

    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_saved_again_at_once(self, make: Callable[[], Any]) -> None:
        """A position that is restored and saved again, before any batch, is the same position."""
        whole = killed(make)
        for batches in (2, 3):
            training = Training(make)
            log = training.go(batches)
            again = resumed(make, training.saved())
            assert log + resumed(make, again.saved()).go() == whole

    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_rolled_back(self, make: Callable[[], Any]) -> None:
        """A position restored into the running process is as good; the loop it interrupts cannot be gone on with."""
        whole, training = killed(make), Training(make)
        log = training.go(2)
        saved = training.saved()
        training.go(1)
        running = iter(training.feed)
        training.restored(saved)
        with pytest.raises(UsageError, match="begin a new loop"):
            next(running)
        assert log + training.go() == whole

    def test_shuffling_loader(self) -> None:
        """A torch DataLoader that shuffles goes on with as many batches of another shuffle as were left."""
        whole = batches_of(killed(shuffling))
        for batches in range(1, len(whole) + 1):
            log = killed(shuffling, batches)
            assert [entry[:3] for entry in batches_of(log)] == [entry[:3] for entry in whole]
            assert batches_of(log)[:batches] == whole[:batches]
            assert [entry[0] for entry in log if entry[1] == "ended"] == [0, 1, 2]

    @pytest.mark.parametrize("make", [lambda: map_of(Numbers()), lambda: TorchLoader(Stream(), 4)])
    def test_unknown_iterable(self, make: Callable[[], Any]) -> None:
        """What can be gone over again is brought back by going over it again."""
        whole = killed(make)
        assert all(killed(make, batches) == whole for batches in range(1, len(batches_of(whole))))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    @pytest.mark.parametrize("persistent", [False, True])
    def test_stateful_workers(self, persistent: bool) -> None:
        """Torchdata with workers keeps the order of samples; what happens at the end of an epoch happens once."""

        def make() -> Any:
            return StatefulDataLoader(
                Numbers(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent
            )

        whole = killed(make)
        for after in ((1,), (2,), (3,), (2, 1), (4,)):
            log = killed(make, *after)
            assert batches_of(log) == batches_of(whole)
            assert [entry[0] for entry in log if entry[1] == "ended"] == [0, 1, 2]


class TestBooks:
    """What a feed says about itself."""

    @pytest.mark.parametrize(
        ("make", "level", "word"),
        [
            (EXACT["holdfast"], Level.BIT_EXACT, ""),
            (EXACT["stateful"], Level.BIT_EXACT, ""),
            (EXACT["list"], Level.BIT_EXACT, ""),
            (lambda: stateful(num_workers=2), Level.EXACT_SAMPLES, "workers"),
            (EXACT["stateful stream"], Level.EXACT_SAMPLES, "Stream has no state_dict"),
            (EXACT["sequential"], Level.EXACT_SAMPLES, "fetched again"),
            (EXACT["ranks"], Level.EXACT_SAMPLES, "fetched again"),
        ],
    )
    def test_level(self, make: Callable[[], Any], level: Level, word: str) -> None:
        """Each kind of source has its level, and says what lowers it."""
        feed = feed_for(make())
        assert feed.level is level
        assert bool(feed.why) == bool(word)
        assert word in feed.why

    @pytest.mark.parametrize(
        ("make", "remedy"),
        [
            (shuffling, "use holdfast.DataLoader"),
            (lambda: TorchLoader(Numbers(), batch_sampler=[[1, 2], [3]]), "use holdfast.DataLoader"),
            (
                lambda: TorchLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), 4, False)),
                "use holdfast.DataLoader",
            ),
            (lambda: TorchLoader(Stream()), "StatefulDataLoader"),
            (lambda: map_of(Numbers()), "use holdfast.DataLoader"),
        ],
        ids=["shuffling", "batch sampler", "shuffling in a batch sampler", "stream", "unknown"],
    )
    def test_warning(self, make: Callable[[], Any], remedy: str) -> None:
        """A source that cannot be brought back exactly says so when it is handed over, with what to use instead."""
        with pytest.warns(UserWarning, match=remedy):
            feed = feed_for(make())
        assert feed.level is Level.FULL_STATE

    @pytest.mark.parametrize("source", [iter([1]), (i for i in "ab"), map(str, "ab"), 7, None])
    def test_refusal(self, source: Any) -> None:
        """What can be gone over once only, or not at all, is refused."""
        with pytest.raises(UsageError, match="give"):
            feed_for(source)

    def test_restarting_nodes_are_refused(self) -> None:
        """A loader that repeats an epoch after a resume at its end is refused, with the option that prevents it."""
        with pytest.raises(UsageError, match="restart_on_stop_iteration=False"):
            feed_for(nodes.Loader(nodes.IterableWrapper(range(3))))

    @pytest.mark.parametrize("name", ["holdfast", "stateful", "sequential", "list"])
    def test_last(self, name: str) -> None:
        """Where the length of an epoch is known, its last batch is known as such when it is at hand."""
        feed = feed_for(EXACT[name]())
        assert [feed.last for _ in feed] == [False, False, True]
        assert feed.last is False

    def test_last_unknown(self) -> None:
        """Where the length is unknown, nothing is claimed."""
        feed = feed_for(EXACT["stateful stream"]())
        assert {feed.last for _ in feed} == {None}

    def test_tells_the_epoch(self) -> None:
        """A sampler that shuffles by epoch is told the epoch, since the training has no epoch loop of its own."""
        for make in (EXACT["ranks"], EXACT["stateful with ranks"]):
            feed = feed_for(make())
            first, second = ([batch[:, 0].tolist() for batch in feed] for _ in range(2))
            assert first != second

    def test_note(self) -> None:
        """A resume that fetches batches again says how many."""
        training = Training(sequential)
        training.go(2)
        again = resumed(sequential, training.saved())
        again.go(1)
        assert again.feed.note.startswith("2 batches were fetched again")

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            (stateful, lambda: stateful(num_workers=2), "num_workers was 0, is 2"),
            (stateful, lambda: stateful(batch_size=2), "batch_size was 4, is 2"),
            (sequential, lambda: TorchLoader(Numbers(), batch_size=5), "batch_size was 4, is 5"),
            (sequential, EXACT["holdfast"], "way was replay, is keyed"),
            (lambda: [[1], [2]], lambda: [[1]], "samples_per_epoch was 2, is 1"),
        ],
    )
    def test_other_source(self, before: Callable[[], Any], after: Callable[[], Any], words: str) -> None:
        """A position counted in one way is not used by a source that counts in another."""
        training = Training(before)
        training.go(1)
        with pytest.raises(UsageError, match=words):
            feed_for(after()).load_state_dict(training.saved()[0])


class map_of:  # noqa: N801  # reads like the function it stands for
    """Something that can be iterated again and again, and nothing more."""

    def __init__(self, data: Numbers) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in range(3))


def _rows(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch
