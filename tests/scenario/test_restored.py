"""Everything that can stand in `state` comes back, bit for bit: schedulers, scalers, averages, generators, plain data.

The trainings run in this very process and are interrupted by an exception, twice, once in mid-epoch and once at the end
of an epoch. Each resume builds everything anew under other seeds, so that nothing is right by accident.
"""

import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast
from holdfast import wiring
from holdfast.engine.checkpoint import committed, open_checkpoint

from .kills import Sight
from .torture import differences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata, on recent versions of torch
]

EPOCHS, BATCHES = 3, 8
INTERRUPTED_AFTER = (5, 8, 13)
"""Steps: in mid-epoch, on an epoch's last batch, in mid-epoch."""


class Interruption(Exception):
    """Ends a training in the midst."""


@dataclass
class Training:
    """What a script has at hand."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    state: dict[str, Any]
    loader: Any
    after_step: Callable[[float], None] = lambda loss: None
    scaler: Any = None
    losses: dict[int, Any] = field(default_factory=dict)


def network() -> torch.nn.Module:
    """A small model with randomness and buffers."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )


def data() -> TensorDataset:
    """Always the same samples."""
    made = torch.Generator().manual_seed(11)
    inputs = torch.randn(BATCHES * 4, 6, generator=made)
    return TensorDataset(inputs, inputs.square().mean(1, keepdim=True), torch.arange(BATCHES * 4))


def plain(
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    **extra: Any,
) -> Training:
    """A training with one optimizer and perhaps a scheduler that steps after each batch."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    loader = holdfast.DataLoader(data(), batch_size=4, shuffle=True, seed=2)
    state = {"model": model, "optimizer": optimizer, "data": loader, **extra}
    if make_scheduler is None:
        return Training(model, optimizer, state, loader)
    scheduler = make_scheduler(optimizer)
    takes_loss = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    step = scheduler.step if takes_loss else lambda _: scheduler.step()
    return Training(model, optimizer, {**state, "scheduler": scheduler}, loader, step)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, nesterov=True)


class Warmup:
    """A learning rate rule with a state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        """Count how often it was asked."""
        self.calls += 1
        return min(1.0, (step + 1) / 10) * 0.99**self.calls


def with_scaler() -> Training:
    """Mixed precision with a loss scale that grows."""
    training = plain(sgd)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    training.state["scaler"] = training.scaler
    return training


def with_average() -> Training:
    """An averaged model, and the scheduler that belongs to it."""
    training = plain(sgd, lambda optimizer: swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=6))
    average = swa_utils.AveragedModel(training.model)
    training.state["average"] = average
    schedule = training.after_step

    def after(loss: float) -> None:
        average.update_parameters(training.model)
        schedule(loss)

    training.after_step = after
    return training


def with_generators_and_plain_data() -> Training:
    """Generators in a list, and containers that JSON alone would not bring back."""
    training = plain(sgd)
    generators = [torch.Generator().manual_seed(n) for n in range(2)]
    notes: dict[str, Any] = {
        "pairs": (1, (2.5, "three")),
        "seen": set(),
        "recent": deque(maxlen=3),
        "by step": OrderedDict(),
        "counts": Counter(),
        "lists": defaultdict(list),
        7: {"nested": [None, True, float("inf"), b"bytes"]},
        "array": np.arange(4.0),
        "tensor": torch.zeros(3, dtype=torch.bfloat16),
    }
    running = torch.zeros(2, dtype=torch.float64)
    training.state |= {"generators": generators, "notes": notes, "running": running}

    def after(loss: float) -> None:
        drawn = sum(torch.rand((), generator=generator).item() for generator in generators)
        step = len(notes["by step"])
        notes["seen"].add((step, drawn))
        notes["recent"].append(drawn)
        notes["by step"][step] = loss
        notes["counts"].update([step % 3])
        notes["lists"]["even" if step % 2 == 0 else "odd"].append(loss)
        notes["array"] += drawn
        notes["tensor"] += drawn
        running.add_(drawn)
        for group in training.optimizer.param_groups:
            group["lr"] = 0.01 + 0.01 * notes["recent"][0]

    training.after_step = after
    return training


def with_several_models() -> Training:
    """Models in a dict, optimizers in a list, each with groups of its own."""
    training = plain(sgd)
    critic = torch.nn.Linear(1, 1)
    second = torch.optim.Adam([{"params": [critic.weight], "lr": 0.1}, {"params": [critic.bias]}], amsgrad=True)
    training.state = {
        "models": {"net": training.model, "critic": critic},
        "optimizers": [training.optimizer, second],
        "data": training.loader,
    }

    def after(loss: float) -> None:
        second.zero_grad()
        (critic(torch.tensor([[loss]])) - loss).square().sum().backward()
        second.step()
        for group in training.optimizer.param_groups:
            group["lr"] = 0.05 * abs(critic.weight.item())

    training.after_step = after
    return training


class Exact(torch.optim.Optimizer):
    """Momentum that is kept more exactly than the parameters are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self) -> None:
        """Update in 32 bits, store in 16."""
        for parameter in self.param_groups[0]["params"]:
            momentum = self.state[parameter].setdefault("momentum", torch.zeros(parameter.shape))
            momentum.mul_(0.9).add_(parameter.grad.float())
            parameter.sub_(0.05 * momentum)


class Halved(torch.nn.Module):
    """A network that computes in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 1).bfloat16()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute in 16 bits, answer in 32."""
        return self.inner(inputs.bfloat16()).float()


def wide_optimizer_state() -> Training:
    """Parameters of 16 bits whose optimizer keeps 32; torch's own loading would round that."""
    training = plain(sgd)
    training.model = training.state["model"] = Halved()
    training.optimizer = training.state["optimizer"] = Exact(training.model.parameters())
    return training


def compiled() -> Training:
    """A model that goes through torch.compile."""
    training = plain(sgd)
    training.model = torch.compile(training.model, backend="eager")
    training.state["model"] = training.model
    return training


def stateful_loader() -> Training:
    """A loader that knows its own state."""
    training = plain(sgd)
    training.loader = StatefulDataLoader(data(), batch_size=4, shuffle=True)
    training.state["data"] = training.loader
    return training


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    """One scheduler after another."""
    first, second = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6), lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[6])


RECIPES: dict[str, Callable[[], Training]] = {
    "one cycle": lambda: plain(sgd, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=EPOCHS * BATCHES + 1)),
    "sequential": lambda: plain(sgd, sequential),
    "lambda": lambda: plain(sgd, lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step)),
    "lambda with a state": lambda: plain(sgd, lambda o: lr_scheduler.LambdaLR(o, Warmup())),
    "cosine restarts": lambda: plain(sgd, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2)),
    "plateau": lambda: plain(sgd, lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5)),
    "adagrad": lambda: plain(lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.01)),
    "rmsprop": lambda: plain(lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True)),
    "nadam": lambda: plain(lambda p: torch.optim.NAdam(p, 0.01)),
    "wide optimizer state": wide_optimizer_state,
    "scaler": with_scaler,
    "average": with_average,
    "generators and plain data": with_generators_and_plain_data,
    "several models": with_several_models,
    "compiled": compiled,
    "stateful loader": stateful_loader,
}


def train(store: Path, recipe: Callable[[], Training], *, seed: int, stop_after: int | None = None) -> Training:
    """Train to the end, or into an interruption."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    training = recipe()
    settings = holdfast.Settings(every_steps=1000)
    with holdfast.Run(store, state=training.state, settings=settings) as run:
        for inputs, targets, indices in run.batches(training.loader, epochs=EPOCHS):
            if stop_after == run.step:
                raise Interruption
            training.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(training.model(inputs), targets) * (1 + 0.1 * np.random.rand())
            if training.scaler is None:
                loss.backward()
                training.optimizer.step()
            else:
                training.scaler.scale(loss).backward()
                training.scaler.step(training.optimizer)
                training.scaler.update()
            training.after_step(loss.item())
            training.losses[run.step] = (loss.item(), indices.tolist())
            run.report(loss=loss)
            if run.step + 1 in INTERRUPTED_AFTER:
                run.save()
    return training


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What Holdfast has said so far."""
    caplog.set_level(logging.INFO, "holdfast")
    return lambda: caplog.text


@pytest.mark.parametrize("name", RECIPES)
def test_an_interrupted_training_equals_one_that_was_left_alone(
    tmp_path: Path, name: str, said: Callable[[], str]
) -> None:
    """Every loss, every sample, and in the end every tensor and document of the newest checkpoint."""
    recipe = RECIPES[name]
    wanted = train(tmp_path / "alone", recipe, seed=0).losses
    for number, stop in enumerate(INTERRUPTED_AFTER):
        with pytest.raises(Interruption):
            train(tmp_path / "run", recipe, seed=number and 100 + number, stop_after=stop)
        assert committed(wiring.open_store(tmp_path / "run"))[-1].step == stop
    losses = train(tmp_path / "run", recipe, seed=999).losses
    assert min(losses) == INTERRUPTED_AFTER[-1]
    assert losses == {step: wanted[step] for step in losses}
    assert differences(Sight(tmp_path / "alone"), Sight(tmp_path / "run")) == []
    assert said().count("bit-exact") == len(INTERRUPTED_AFTER)


def test_a_compiled_model_is_stored_under_plain_names_and_fits_one_that_is_not_compiled(
    tmp_path: Path, said: Callable[[], str]
) -> None:
    """Whether a model is compiled is a matter of one launch; the level says that the numbers may differ."""
    with pytest.raises(Interruption):
        train(tmp_path, compiled, seed=0, stop_after=5)
    store = wiring.open_store(tmp_path)
    newest = open_checkpoint(store, wiring.xxh3, committed(store)[-1])
    stored = {leaf.leaf.name for leaf in newest.ranks[0].leaves if leaf.part == "model"}
    assert stored == set(network().state_dict())
    losses = train(tmp_path, lambda: plain(sgd), seed=1).losses
    assert min(losses) == 5
    assert "exact samples, because compiled was ['model'], is []" in said()
