"""In which order checkpoints are tried, and which failures go on to the next."""

import pytest

from holdfast import errors
from holdfast.decide.fallback import Answer, answer, in_order
from holdfast.errors import HoldfastError
from holdfast.spec.names import CheckpointId

SAMPLES: list[tuple[HoldfastError, Answer]] = [
    (errors.Corrupt("file", "why"), Answer.NEXT),
    (errors.Incomplete("file"), Answer.NEXT),
    (errors.NoSuchCheckpoint("wanted", []), Answer.NEXT),
    (errors.NotFound("file", "why"), Answer.NEXT),
    (errors.AccessDenied("file", "why"), Answer.NEXT),
    (errors.Unavailable("file", "why"), Answer.NEXT),
    (errors.AlreadyExists("file", "why"), Answer.NEXT),
    (errors.NoSpace("file", "why"), Answer.NEXT),
    (errors.StateMismatch("checkpoint", ["problem"]), Answer.STOP),
    (errors.ConfigChanged("checkpoint", [("lr", "1", "2")]), Answer.STOP),
    (errors.NewerFormat("file", 2, 1), Answer.STOP),
    (errors.Superseded(1, 2), Answer.STOP),
    (errors.KeeperFailed("why"), Answer.STOP),
    (errors.UnknownState("path", "kind", "remedy"), Answer.STOP),
    (errors.UsageError("why"), Answer.STOP),
    (errors.NotAStore("url", []), Answer.STOP),
    (errors.StoreUnusable("url", "why"), Answer.STOP),
    (errors.NoneUsable("url", []), Answer.STOP),
    (errors.RunHeld("url", "holder"), Answer.STOP),
]


@pytest.mark.parametrize(("error", "expected"), SAMPLES, ids=lambda v: type(v).__name__)
def test_damage_goes_on_and_decisions_stop(error: HoldfastError, expected: Answer) -> None:
    """What an older checkpoint may not have is passed over; what a person must decide is not."""
    assert answer(error, ()) is expected


def test_the_table_is_complete() -> None:
    """Every error that can be raised has its line above."""
    concrete = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, HoldfastError) and not kind.__subclasses__()
    }
    assert concrete == {type(error) for error, _ in SAMPLES}


def test_a_newer_format_is_passed_over_only_when_allowed_by_name() -> None:
    """Going back behind a newer Holdfast's checkpoint loses work, so it has to be said."""
    error = errors.NewerFormat("file", 2, 1)
    assert answer(error, ("format",)) is Answer.NEXT
    assert answer(error, ("formats", "lr")) is Answer.STOP
    assert answer(errors.ConfigChanged("c", [("format", "1", "2")]), ("format",)) is Answer.STOP


def test_newest_first() -> None:
    """By attempt, then step: the branch that an attempt left is older than the attempt."""
    by_age = [
        CheckpointId(attempt=1, step=90),
        CheckpointId(attempt=2, step=50),
        CheckpointId(attempt=2, step=50, again=1),
        CheckpointId(attempt=2, step=60),
    ]
    assert in_order({*by_age}) == by_age[::-1]
