"""A real training loop on the CPU, and what saving all the time takes from it."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch script uses

from holdfast.cli.demo.corpus import standard_library
from holdfast.cli.demo.gpt import VOCABULARY

from .contestants import Contestant, Pending
from .holdfast_runs import Holdfast
from .state import CONTEXT, Trained

_BATCH = 8
_WARM_UP_STEPS = 3
_KEPT = 2


class Saver(Protocol):
    """What stands at the end of every step."""

    saves: int

    def prepare(self) -> None:
        """Get ready, with a first save that is not counted."""
        ...

    def step_over(self, step: int) -> None:
        """Save or not, at the end of the `step`-th timed step, from 1."""
        ...

    def updating(self) -> AbstractContextManager[object]:
        """Enclose the optimizer's step."""
        ...

    def close(self) -> None:
        """Wait for what is in flight."""
        ...


class Never:
    """Trains undisturbed."""

    saves = 0

    def prepare(self) -> None:
        """Nothing to get ready."""

    def step_over(self, step: int) -> None:
        """Go on."""

    def updating(self) -> AbstractContextManager[object]:
        """Nothing is in flight."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is open."""


class Always:
    """Holdfast, asked for a save at every step: it makes one whenever a staging buffer is free."""

    def __init__(self, contestant: Holdfast) -> None:
        self._contestant = contestant
        self._before = 0
        self.saves = 0

    def prepare(self) -> None:
        """Enter the run, and make one save."""
        self._contestant.prepare()
        self._contestant.save(0).wait()
        self._before = 1

    def step_over(self, step: int) -> None:
        """Stand at a boundary."""
        self._contestant.pass_boundary(save=True)

    def updating(self) -> AbstractContextManager[object]:
        """Nothing to wait for."""
        return self._contestant.updating()

    def close(self) -> None:
        """Leave the run; its ledger says how many saves were made."""
        self._contestant.close()
        self.saves = len(self._contestant.stalls()) - self._before


class Paced:
    """A peer that saves `pace` times a step, one save at a time, and catches up when it falls behind."""

    def __init__(self, contestant: Contestant, pace: float) -> None:
        self._contestant = contestant
        self._pace = pace
        self._pending: Pending | None = None
        self._made: deque[int] = deque()
        self._janitor = ThreadPoolExecutor(1)
        self.saves = 0

    def prepare(self) -> None:
        """Make one save."""
        self._contestant.prepare()
        self._contestant.save(0).wait()
        self._made.append(0)

    def step_over(self, step: int) -> None:
        """Begin a save if one is owed and the last one is over; older ones are removed on a thread."""
        if int(step * self._pace) <= self.saves or (self._pending is not None and not self._pending.done()):
            return
        if self._pending is not None:
            self._pending.wait()
        while len(self._made) > _KEPT:
            self._janitor.submit(self._contestant.discard, self._made.popleft())
        self.saves += 1
        self._pending = self._contestant.save(self.saves)
        self._made.append(self.saves)

    def updating(self) -> AbstractContextManager[object]:
        """Wait as long as the peer asks for."""
        return self._contestant.updating()

    def close(self) -> None:
        """Wait for the save in flight."""
        if self._pending is not None:
            self._pending.wait()
        self._contestant.close()
        self._janitor.shutdown()


def train(state: Trained, saver: Saver, steps: int) -> dict[str, float]:
    """Train for so many steps on two threads; the time of the steps, from the end of warming up to the last one."""
    _initialize(state.model)
    text = torch.frombuffer(bytearray(standard_library()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    took: list[float] = []
    for step in range(1 - _WARM_UP_STEPS, steps + 1):
        if step == 1:
            saver.prepare()
        began = time.perf_counter()
        starts = torch.randint(len(text) - CONTEXT - 1, (_BATCH,), generator=generator)
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
        loss = F.cross_entropy(state.model(windows[:, :-1]).view(-1, VOCABULARY), windows[:, 1:].reshape(-1))
        loss.backward()
        with saver.updating():
            state.optimizer.step()
        state.optimizer.zero_grad()
        if step > 0:
            saver.step_over(step)
        took.append(time.perf_counter() - began)
    final = loss.item()
    saver.close()
    return {"train_s": sum(took[_WARM_UP_STEPS:]), "steps": float(steps), "saves": float(saver.saves), "loss": final}


def saver_for(contestant: Contestant | None, pace: float) -> Saver:
    """Choose how a contestant saves."""
    if contestant is None:
        return Never()
    return Always(contestant) if isinstance(contestant, Holdfast) else Paced(contestant, pace)


def _initialize(model: torch.nn.Module) -> None:
    """Give the parameters values that training can begin from."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
