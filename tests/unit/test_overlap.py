"""Overlap: large copies are made under the next forward and backward, and are right or are thrown away."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from holdfast.engine.stage import Stager
from holdfast.spec.names import CheckpointId
from holdfast.state.training import Captured, TrainingState
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import AtOnce, PlainCapture, Rank, some_state

Memories = dict[str, list[memoryview]]


class Trained:
    """A model with buffers, its optimizer, an average of it, and a frozen layer."""

    def __init__(self, make: Any = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        self.model[2].requires_grad_(False)
        self.optimizer = make([p for p in self.model.parameters() if p.requires_grad], lr=0.1)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.state = TrainingState({"model": self.model, "optimizer": self.optimizer, "average": self.average})
        self.step()

    def forward(self) -> torch.Tensor:
        """Run forward; this changes the buffers."""
        loss: torch.Tensor = self.model(torch.randn(16, 4)).square().sum()
        return loss

    def step(self) -> None:
        """Take an optimizer step."""
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()


def begin(capture: Captured) -> tuple[Memories, bool]:
    """Make memory for a capture, and copy what is copied at once."""
    memory = {part: [memoryview(bytearray(leaf.nbytes)) for leaf in leaves] for part, leaves in capture.parts.items()}
    return memory, capture.copy_into(memory)


def everything(capture: Captured, memory: Mapping[str, Sequence[memoryview]]) -> dict[str, bytes]:
    """Name the bytes of every leaf."""
    return {
        f"{part}/{leaf.name}": bytes(m)
        for part, leaves in capture.parts.items()
        for leaf, m in zip(leaves, memory[part], strict=True)
    }


def test_what_changes_as_early_as_it_may_is_captured_as_it_was() -> None:
    """Buffers, averages, frozen parameters, scalars and learning rates may change right after the boundary."""
    trained = Trained()
    whole = trained.state.capture()
    before, _ = begin(whole)
    overlapped = trained.state.capture(overlap=True)
    documents = json.loads(overlapped.documents({}))
    after, done = begin(overlapped)
    assert not done

    trained.forward()  # BatchNorm's buffers
    with torch.no_grad():
        trained.model[2].weight.add_(1)  # a frozen parameter
        for parameter in trained.average.parameters():
            parameter.mul_(2)
    trained.optimizer.param_groups[0]["lr"] = 7.0

    overlapped.copy_rest()
    assert overlapped.spoiled() == ""
    assert everything(overlapped, after) == everything(whole, before)
    assert documents["parts"]["optimizer"]["tree"]["param_groups"][0]["lr"] == 0.1


def test_only_what_an_optimizer_steps_is_left_for_later() -> None:
    """The parameters of the optimizer and its moments; nothing else."""
    trained = Trained()
    whole, overlapped = trained.state.capture(), trained.state.capture(overlap=True)
    copied, at_once = everything(whole, begin(whole)[0]), everything(overlapped, begin(overlapped)[0])
    late = {name for name in copied if copied[name] != at_once[name]}
    moments = {f"optimizer/state.{i}.{name}" for i in range(4) for name in ("exp_avg", "exp_avg_sq")}
    assert late == {"model/0.weight", "model/0.bias", "model/1.weight", "model/1.bias"} | moments


def test_a_write_in_between_makes_the_copy_worthless() -> None:
    """Weight clipping, or an average written into the model, ahead of the step is noticed and named."""
    trained = Trained()
    capture = trained.state.capture(overlap=True)
    begin(capture)
    with torch.no_grad():
        trained.model[0].weight.clamp_(-0.1, 0.1)
    capture.copy_rest()
    assert capture.spoiled() == "model/0.weight was changed outside of an optimizer's step while it was copied"


def test_parameters_of_an_optimizer_that_cannot_be_fenced_are_copied_at_once() -> None:
    """An optimizer that is not torch's has no hook ahead of its step, so nothing waits for it."""

    class Own:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    state = TrainingState({"model": torch.nn.Linear(2, 2), "optimizer": Own()})
    assert begin(state.capture(overlap=True))[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda p, lr: torch.optim.AdamW(p, lr, fused=True),
        lambda p, lr: torch.optim.AdamW(p, lr, foreach=True),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
        torch.optim.Adagrad,
    ],
    ids=["fused", "foreach", "sgd", "adagrad"],
)
def test_the_fence_stands_ahead_of_every_step(make: Any) -> None:
    """Whatever the optimizer's implementation: when the fence is reached, no parameter has changed yet."""
    trained = Trained(make)
    seen: list[bool] = []
    weight = trained.model[0].weight.detach().clone()
    trained.state.before_step(lambda: seen.append(torch.equal(weight, trained.model[0].weight)))
    trained.step()
    assert seen == [True]
    assert not torch.equal(weight, trained.model[0].weight)


class LateCapture(PlainCapture):
    """Copies nothing until it is let go; then all of it, or it finds that something was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(some_state(1).values)
        self.go = threading.Event()
        self._why = why
        self._targets: Mapping[str, Sequence[memoryview]] = {}

    def copy_into(self, targets: Mapping[str, Sequence[memoryview]]) -> bool:
        """Leave everything for later."""
        self._targets = targets
        return False

    def copy_rest(self) -> None:
        """Wait, then copy."""
        assert self.go.wait(30)
        super().copy_into(self._targets)

    def spoiled(self) -> str:
        """Say what the test wants."""
        return self._why


def staged(why: str) -> tuple[Stager, AtOnce, LateCapture]:
    """Begin to stage a capture that takes its time."""
    link = AtOnce(MemoryStore(), Rank())
    stager = Stager(link, Rank(), ToldClock(), slots=2, overlap=True)  # type: ignore[arg-type]
    capture = LateCapture(why)
    documents = {"documents.r00000.json": capture.documents({})}
    stager.stage(0, CheckpointId(attempt=1, step=1), capture, documents, {})
    return stager, link, capture


def test_the_slot_is_busy_while_it_is_being_filled_and_the_fence_waits() -> None:
    """Nobody takes a slot that is being filled, and the step waits until it is full."""
    stager, _, capture = staged("")
    assert stager.busy_slots == {0}
    assert stager.free_slot() == 1
    waiting = threading.Thread(target=stager.fence)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    capture.go.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert stager.worthless() == []
    assert stager.overlap


def test_a_worthless_copy_is_told_and_overlap_is_given_up() -> None:
    """The snapshot is never handed over, the reason is told once, and from then on everything is copied at once."""
    stager, link, capture = staged("model/w was changed")
    capture.go.set()
    stager.fence()
    (outcome,) = stager.worthless()
    assert outcome.checkpoint == "0000000001-a000001"
    assert outcome.why.startswith("model/w was changed")
    assert not stager.overlap
    assert stager.free_slot() == 0
    assert link.busy_slots == set()
    assert stager.worthless() == []
