"""May the next attempt begin? Every combination of what the last one may have left."""

import itertools
from typing import Any

import pytest

from holdfast.decide.takeover import Action, LastAttempt, judge

TRAINER: dict[str, Any] = {"pid": 1}
KEEPERS: list[dict[str, Any]] = [{"pid": 2}, {"pid": 3}]


def test_the_first_attempt() -> None:
    """Nothing was claimed yet: claim."""
    assert judge(None).action is Action.CLAIM


def expected(alive: bool | None, keepers: list[dict[str, Any]], ended: bool) -> Action:
    """Say in other words what must come out."""
    if alive is True and not ended:
        return Action.REFUSE
    return Action.WAIT if keepers else Action.CLAIM


@pytest.mark.parametrize(
    ("trainer", "alive", "keepers", "ended"),
    list(itertools.product([TRAINER, None], [True, False, None], [[], KEEPERS[:1], KEEPERS], [True, False])),
)
def test_the_table(
    trainer: dict[str, Any] | None, alive: bool | None, keepers: list[dict[str, Any]], ended: bool
) -> None:
    """A living trainer holds the run; a keeper that outlived its trainer is waited for; else the run is free."""
    decision = judge(LastAttempt(trainer=trainer, trainer_alive=alive, keepers_alive=keepers, ended=ended))
    assert decision.action is expected(alive, keepers, ended)
    if decision.action is Action.REFUSE:
        assert decision.holder is trainer
    if decision.action is Action.WAIT:
        assert decision.holder == keepers[-1]


def test_a_trainer_on_another_machine_is_taken_for_gone() -> None:
    """Nobody here can tell whether it lives: fencing, not waiting, protects the run."""
    assert judge(LastAttempt(trainer=TRAINER, trainer_alive=None, keepers_alive=[], ended=False)).action is Action.CLAIM
