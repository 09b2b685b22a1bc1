"""How `Retrying` meets a store that fails for a moment, and one that fails for good."""

from collections.abc import Callable, Sequence

import pytest

from holdfast.errors import AccessDenied, NotFound, StoreError, Unavailable
from holdfast.spec.ports import Store
from holdfast.storage.memory import MemoryStore
from holdfast.storage.retrying import Retrying
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Hindered, Operation

NAME = "folder/a"
CONTENT = b"content"


class Failing:
    """A store whose operations fail with the given errors, one each, before they work; and a clock that notes waits."""

    def __init__(self, errors: Sequence[StoreError]) -> None:
        memory = MemoryStore()
        memory.create(NAME, [CONTENT])
        self.clock = ToldClock()
        self.began_at_s: list[float] = []
        """When each try began, in seconds."""
        self.store: Store = Retrying(Hindered(memory, self._before), self.clock)
        self._errors = list(errors)

    def _before(self, operation: Operation, name: str) -> None:
        self.began_at_s.append(self.clock.monotonic())
        if self._errors:
            raise self._errors.pop(0)


def unavailable(times: int) -> list[StoreError]:
    """Make errors that may pass, each told from the others by its number."""
    return [Unavailable(NAME, f"timeout {number}") for number in range(1, times + 1)]


def read_into(store: Store) -> bytes:
    """Read all but the first byte into memory."""
    into = bytearray(len(CONTENT))
    return bytes(into[: store.read_into(NAME, 1, memoryview(into))])


QUESTIONS = [
    pytest.param(lambda store: store.read(NAME), CONTENT, id="read"),
    pytest.param(read_into, CONTENT[1:], id="read_into"),
    pytest.param(lambda store: store.size(NAME), len(CONTENT), id="size"),
    pytest.param(lambda store: store.list(""), [NAME], id="list"),
    pytest.param(lambda store: store.list("", shallow=True), ["folder/"], id="list-shallow"),
]


@pytest.mark.parametrize(("ask", "answer"), QUESTIONS)
@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_question_is_asked_again_until_it_is_answered(
    ask: Callable[[Store], object], answer: object, times: int
) -> None:
    """Up to three failures that may pass go unnoticed: after 0.2, 1 and 3 seconds the question is asked again."""
    failing = Failing(unavailable(times))
    assert ask(failing.store) == answer
    assert failing.began_at_s == pytest.approx([0.0, 0.2, 1.2, 4.2][: times + 1])


@pytest.mark.parametrize(("ask", "answer"), QUESTIONS)
def test_the_last_error_is_raised_after_the_last_try(ask: Callable[[Store], object], answer: object) -> None:
    """A fourth failure is told, as the store told it, and nobody waits after it; asked later, the store answers."""
    failing = Failing(unavailable(4))
    with pytest.raises(Unavailable, match="timeout 4"):
        ask(failing.store)
    assert failing.began_at_s == pytest.approx([0.0, 0.2, 1.2, 4.2])
    assert failing.clock.monotonic() == failing.began_at_s[-1]
    assert ask(failing.store) == answer


@pytest.mark.parametrize(("ask", "answer"), QUESTIONS)
@pytest.mark.parametrize("kind", [NotFound, AccessDenied])
def test_an_error_that_stays_is_told_at_once(
    ask: Callable[[Store], object], answer: object, kind: type[StoreError]
) -> None:
    """What no waiting changes is raised without any, also where it follows on a failure that passed."""
    failing = Failing([kind(NAME, "for good")])
    with pytest.raises(kind, match="for good"):
        ask(failing.store)
    assert failing.began_at_s == [0.0]
    failing = Failing([*unavailable(1), kind(NAME, "for good")])
    with pytest.raises(kind, match="for good"):
        ask(failing.store)
    assert failing.began_at_s == pytest.approx([0.0, 0.2])
    assert ask(failing.store) == answer


@pytest.mark.parametrize("act", [lambda store: store.create("b", iter([b"x"])), lambda store: store.delete(NAME)])
def test_what_changes_the_store_is_tried_once(act: Callable[[Store], None]) -> None:
    """Neither create nor delete is repeated: the first error is raised, and no time has passed."""
    failing = Failing(unavailable(1))
    with pytest.raises(Unavailable, match="timeout 1"):
        act(failing.store)
    assert failing.began_at_s == [0.0]
    assert failing.clock.monotonic() == 0.0
    assert failing.store.list("") == [NAME]


def test_the_url_is_that_of_the_store_behind() -> None:
    """People are told the real place."""
    assert Failing([]).store.url == MemoryStore().url
