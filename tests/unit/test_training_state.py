"""The torch side of a checkpoint: what is taken, what is put back, what is refused, and by which name."""

import json
import random
import re
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import StateMismatch, UnknownState, UsageError
from holdfast.spec import encoding
from holdfast.spec.leaves import Leaf
from holdfast.state.training import TrainingState


def _through_bytes(source: TrainingState, target: TrainingState) -> Mapping[str, Any]:
    """Capture one state and restore it into another, by way of bytes, as a checkpoint would."""
    capture = source.capture()
    memory = {part: [memoryview(bytearray(leaf.nbytes)) for leaf in leaves] for part, leaves in capture.parts.items()}
    capture.copy_into(memory)
    documents = json.loads(capture.documents({}))
    plan = target.plan(documents, capture.parts)
    for part, leaves in capture.parts.items():
        for leaf, stored in zip(leaves, memory[part], strict=True):
            place = plan.target(part, leaf)
            place.buffer()[:] = stored
            place.filled()
    plan.load()
    return documents


def _leaves(state: TrainingState) -> dict[str, list[Leaf]]:
    return {part: list(leaves) for part, leaves in state.capture().parts.items()}


class Tied(torch.nn.Module):
    """Two names for one weight, as in a language model's head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 3)
        self.head = torch.nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight


class WithExtra(torch.nn.Module):
    """A module with state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.calls = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()


class TestRoundTrip:
    def test_module_is_restored_into_its_own_memory(self) -> None:
        """Parameters and buffers come back bit for bit, in the very tensors that the optimizer holds."""
        torch.manual_seed(0)
        old, new = (torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)) for _ in range(2))
        old(torch.randn(8, 3))
        pointers = [p.data_ptr() for p in new.parameters()]
        _through_bytes(TrainingState({"model": old}), TrainingState({"model": new}))
        for name, value in old.state_dict().items():
            assert torch.equal(value, new.state_dict()[name]), name
        assert [p.data_ptr() for p in new.parameters()] == pointers

    @pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
    def test_optimizer_state_comes_back_into_a_fresh_optimizer(self, make: Any) -> None:
        """A restored optimizer takes the same next step as the one that was saved."""
        torch.manual_seed(1)
        models = [torch.nn.Linear(3, 2) for _ in range(2)]
        old, new = (make(m.parameters(), lr=0.1) for m in models)
        for _ in range(3):
            _step(models[0], old)
        _through_bytes(
            TrainingState({"m": models[0], "o": old}),
            TrainingState({"m": models[1], "o": new}),
        )
        for model, optimizer in zip(models, (old, new), strict=True):
            torch.manual_seed(2)
            _step(model, optimizer)
        assert torch.equal(models[0].weight, models[1].weight)

    def test_an_optimizer_that_has_moments_is_restored_into_them(self) -> None:
        """No memory is needed twice, and the values are those that were saved."""
        torch.manual_seed(1)
        models = [torch.nn.Linear(3, 2) for _ in range(2)]
        old, new = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in models)
        for model, optimizer in zip(models, (old, new), strict=True):
            _step(model, optimizer)
        moment = new.state[models[1].weight]["exp_avg"]
        _through_bytes(TrainingState({"o": old}), TrainingState({"o": new}))
        assert new.state[models[1].weight]["exp_avg"].data_ptr() == moment.data_ptr()
        assert torch.equal(new.state[models[1].weight]["exp_avg"], old.state[models[0].weight]["exp_avg"])

    def test_tied_weights_are_stored_once_and_stay_tied(self) -> None:
        """Two names of one weight are one leaf."""
        old, new = Tied(), Tied()
        state = TrainingState({"model": old})
        assert [leaf.name for leaf in _leaves(state)["model"]] == ["embed.weight"]
        _through_bytes(state, TrainingState({"model": new}))
        assert torch.equal(new.head.weight, old.embed.weight)
        assert new.head.weight is new.embed.weight

    def test_extra_state_of_a_module_comes_back(self) -> None:
        """A module's get_extra_state is stored, and handed to set_extra_state."""
        old, new = WithExtra(), WithExtra()
        old.calls = 5
        old.weight.data.fill_(3)
        _through_bytes(TrainingState({"m": old}), TrainingState({"m": new}))
        assert new.calls == 5
        assert new.weight.tolist() == [3, 3]

    def test_compiled_module_has_plain_names(self) -> None:
        """torch.compile leaves no mark in the names, so a compiled run and a plain one read each other."""
        old, new = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        state = TrainingState({"m": torch.compile(old, backend="eager")})
        assert {leaf.name for leaf in _leaves(state)["m"]} == {"weight", "bias"}
        assert state.compiled == {"m": True}
        _through_bytes(state, TrainingState({"m": new}))
        assert torch.equal(old.weight, new.weight)

    def test_plain_data_is_replaced_inside_the_users_container(self) -> None:
        """Dicts, lists and deques keep their identity and get the stored contents, tensors and arrays included."""
        old = {"a": 1, "t": torch.arange(3), "n": np.arange(4.0), "s": np.float32(2.5), "nested": {"k": (1, 2)}}
        new: dict[str, Any] = {"stale": True}
        queue: deque[int] = deque(maxlen=3)
        _through_bytes(
            TrainingState({"d": old, "q": deque([1, 2], maxlen=3), "l": [1.5, None]}),
            TrainingState({"d": new, "q": queue, "l": (items := [])}),
        )
        assert new["a"] == 1
        assert new["t"].tolist() == [0, 1, 2]
        assert new["n"].tolist() == [0, 1, 2, 3]
        assert type(new["s"]) is np.float32
        assert new["nested"] == {"k": (1, 2)}
        assert "stale" not in new
        assert list(queue) == [1, 2]
        assert items == [1.5, None]

    def test_lists_and_dicts_of_modules_are_taken_apart(self) -> None:
        """Modules and optimizers may stand in containers; each becomes a part under a dotted name."""
        gan = {"nets": {"g": torch.nn.Linear(1, 1), "d": torch.nn.Linear(1, 1)}}
        assert set(_leaves(TrainingState(gan))) == {"nets.g", "nets.d"}

    def test_tensor_and_array_are_restored_in_place(self) -> None:
        """A bare tensor or array in the state is filled where it is."""
        tensor, array = torch.zeros(3), np.zeros(2)
        _through_bytes(
            TrainingState({"t": torch.tensor([1.0, 2.0, 3.0]), "n": np.array([4.0, 5.0])}),
            TrainingState({"t": tensor, "n": array}),
        )
        assert tensor.tolist() == [1, 2, 3]
        assert array.tolist() == [4, 5]

    def test_generator_goes_on_where_it_was(self) -> None:
        """A user's torch.Generator draws the same numbers after a restore."""
        old, new = torch.Generator().manual_seed(3), torch.Generator()
        torch.rand(5, generator=old)
        _through_bytes(TrainingState({"g": old}), TrainingState({"g": new}))
        assert torch.equal(torch.rand(4, generator=old), torch.rand(4, generator=new))

    def test_global_generators_are_always_included(self) -> None:
        """Python, numpy and torch draw the same numbers after a restore, though nobody named them."""
        state = TrainingState({"l": [1]})
        capture = state.capture()
        documents = json.loads(capture.documents({}))
        drawn = (random.random(), np.random.rand(), torch.rand(1).item())
        random.seed(9)
        np.random.seed(9)
        torch.manual_seed(9)
        TrainingState({"l": [2]}).plan(documents, {}).load()
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn

    def test_capture_draws_no_random_number(self) -> None:
        """Saving leaves the global generators as they were."""
        before = torch.get_rng_state()
        TrainingState({"l": [1]}).capture().documents({})
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "complex64", "complex128", "bool"])
    def test_every_dtype_keeps_its_bits(self, name: str) -> None:
        """Dtypes with and without a name in safetensors come back bit for bit."""
        dtype = getattr(torch, name)
        old = torch.arange(6, dtype=torch.float32).to(dtype).reshape(2, 3)
        new = torch.zeros(2, 3, dtype=dtype)
        _through_bytes(TrainingState({"t": old}), TrainingState({"t": new}))
        assert old.view(torch.uint8).tolist() == new.view(torch.uint8).tolist()

    def test_scalars_and_empty_and_strided_tensors(self) -> None:
        """Zero dimensions, zero elements and transposed memory are no special cases."""
        old = {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 4), "strided": torch.arange(6.0).reshape(2, 3).T}
        new: dict[str, Any] = {}
        _through_bytes(TrainingState({"d": old}), TrainingState({"d": new}))
        for key, value in old.items():
            assert new[key].shape == value.shape
            assert torch.equal(new[key], value)

    def test_a_transposed_parameter_is_restored_in_place(self) -> None:
        """A module's tensor that is not dense in memory is filled through a copy."""
        old, new = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
        new.weight = torch.nn.Parameter(torch.zeros(2, 3).T)
        _through_bytes(TrainingState({"m": old}), TrainingState({"m": new}))
        assert torch.equal(old.weight, new.weight)

    def test_gradients_in_the_middle_of_an_accumulation(self) -> None:
        """With gradients wanted, they are stored by name and put back; parameters without one get none."""
        old, new = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        old.weight.grad = torch.tensor([[1.0, 2.0]])
        new.bias.grad = torch.tensor([7.0])
        source = TrainingState({"m": old})
        source.with_gradients = True
        _through_bytes(source, TrainingState({"m": new}))
        assert new.weight.grad is not None
        assert new.weight.grad.tolist() == [[1, 2]]
        assert new.bias.grad is None


class TestRefusal:
    def test_unknown_state_is_named_with_its_path_and_a_remedy(self) -> None:
        """What cannot be stored is refused with the path to it and what to do."""
        state = TrainingState({"extra": {"good": 1, "deep": [0, {"bad": object()}]}})
        with pytest.raises(UnknownState, match=r"extra\.deep\[1\]\.bad.*object.*plain data"):
            state.capture()

    def test_values_that_cannot_be_put_back_are_refused_at_once(self) -> None:
        """A bare number cannot be restored in place; the error says to put it into a dict."""
        with pytest.raises(UnknownState, match=r"state\[best\] is a float.*into a dict"):
            TrainingState({"best": 0.5})

    @pytest.mark.parametrize("name", ["", "a/b", "rank", "documents", "gradients", ".hidden", 3])
    def test_part_names_that_cannot_be_files_are_refused(self, name: Any) -> None:
        """A part's name becomes a file's name."""
        with pytest.raises(UsageError, match="part called"):
            TrainingState({name: [1]})

    def test_pickle_only_when_allowed_on_both_sides(self) -> None:
        """With allow_pickle an arbitrary object is stored; without it, it is not loaded."""
        old = TrainingState({"d": {"x": OrderedDict(a=1), "y": slice(1, 2)}}, allow_pickle=True)
        new: dict[str, Any] = {}
        _through_bytes(old, TrainingState({"d": new}, allow_pickle=True))
        assert new["y"] == slice(1, 2)
        with pytest.raises(StateMismatch, match="pickle"):
            _through_bytes(old, TrainingState({"d": {}}))

    def test_sparse_tensors_are_refused_by_name(self) -> None:
        """A layout without dense memory is refused, with the layout in the message."""
        with pytest.raises(UnknownState, match=r"d\.x.*sparse"):
            TrainingState({"d": {"x": torch.eye(2).to_sparse()}}).capture()


class TestMismatch:
    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ({"a": [1]}, {"b": [1]}, ["'a' is in the checkpoint, not in the run", "'b' is in the run"]),
            ({"m": torch.nn.Linear(2, 3)}, {"m": torch.nn.Linear(2, 4)}, [r"m/weight is float32\[3, 2\].*\[4, 2\]"]),
            ({"m": torch.nn.Linear(2, 3)}, {"m": torch.nn.Linear(2, 3, bias=False)}, ["m/bias is in the checkpoint"]),
            ({"m": torch.nn.Linear(2, 3, bias=False)}, {"m": torch.nn.Linear(2, 3)}, ["m/bias is in the run"]),
            ({"m": torch.nn.Linear(2, 3)}, {"m": torch.nn.Linear(2, 3).half()}, ["m/bias is float32.*float16"]),
            ({"t": torch.zeros(2)}, {"t": torch.zeros(3)}, [r"t/value is float32\[2\].*float32\[3\]"]),
            ({"m": Tied()}, {"m": torch.nn.Linear(2, 3)}, ["m/embed.weight is in the checkpoint"]),
            ({"x": [1]}, {"x": {"a": 1}}, ["'x' is a list in the checkpoint, a dict in the run"]),
        ],
    )
    def test_every_disagreement_is_named(self, old: Any, new: Any, says: list[str]) -> None:
        """Parts and tensors that are missing, extra, or of another shape or dtype are listed by name."""
        with pytest.raises(StateMismatch) as caught:
            _through_bytes(TrainingState(old), TrainingState(new))
        for pattern in says:
            assert re.search(pattern, str(caught.value)), caught.value

    def test_another_optimizer_is_named(self) -> None:
        """A checkpoint of AdamW does not silently become one of SGD."""
        model = torch.nn.Linear(1, 1)
        old = TrainingState({"o": torch.optim.AdamW(model.parameters())})
        new = TrainingState({"o": torch.optim.SGD(model.parameters())})
        with pytest.raises(StateMismatch, match=r"AdamW.*SGD"):
            _through_bytes(old, new)

    def test_other_parameter_groups_are_named(self) -> None:
        """Parameter groups are compared by number and size."""
        model = torch.nn.Linear(1, 1)
        old = TrainingState({"o": torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}])})
        new = TrainingState({"o": torch.optim.SGD(model.parameters())})
        with pytest.raises(StateMismatch, match="2 parameter groups in the checkpoint, 1 in the run"):
            _through_bytes(old, new)

    def test_nothing_is_touched_by_a_refused_plan(self) -> None:
        """A mismatch is found before a byte of the run's state is written."""
        new = torch.nn.Linear(2, 4)
        before = new.weight.clone()
        with pytest.raises(StateMismatch):
            _through_bytes(TrainingState({"m": torch.nn.Linear(2, 3)}), TrainingState({"m": new}))
        assert torch.equal(before, new.weight)


def test_documents_are_typed_json() -> None:
    """A scheduler's tuples and int keys survive the documents."""
    packed = encoding.pack({1: (2, 3.5)})
    assert encoding.unpack(packed) == {1: (2, 3.5)}
