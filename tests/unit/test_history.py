"""The metric history: one row per step, each step once, cut back by a resume."""

import csv
import io
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.history import History, metric_at
from holdfast.errors import UsageError


class Scalar:
    """Behaves like a tensor of one element: it can change in place, and is read as late as possible."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads = 0

    def detach(self) -> "Scalar":
        """Share the value."""
        return self

    def clone(self) -> "Scalar":
        """Copy the value."""
        return Scalar(self.value)

    def numel(self) -> int:
        """One."""
        return 1

    def __float__(self) -> float:
        """Wait for the device."""
        self.reads += 1
        return self.value


def test_one_row_per_step() -> None:
    """Reports at one step join one row; a later one of the same name replaces the value."""
    history = History()
    history.report(1, {"loss": 2.0})
    history.report(1, {"accuracy": 0.5, "loss": 1.5})
    history.report(2, {"loss": 1})
    assert history.to_csv() == b"step,loss,accuracy\n1,1.5,0.5\n2,1.0,\n"


def test_nothing_reported_is_an_empty_file() -> None:
    """Before the first report there is not even a header, and going on from that is no error."""
    assert History().to_csv() == b""
    assert History(b"").to_csv() == b""
    assert History().at(0) == {}


def test_a_column_that_comes_later() -> None:
    """Older rows have an empty cell; the columns before it keep their places."""
    history = History()
    history.report(1, {"loss": 2.0})
    history.report(2, {"loss": 1.5, "val": 9.0})
    history.report(3, {"val": 8.0})
    assert history.to_csv() == b"step,loss,val\n1,2.0,\n2,1.5,9.0\n3,,8.0\n"


def test_writing_does_not_close_the_row() -> None:
    """A save in the middle of a step's reports sees what is there, and the rest still joins the same row."""
    history = History()
    history.report(1, {"loss": 2.0})
    assert history.to_csv() == history.to_csv() == b"step,loss\n1,2.0\n"
    history.report(1, {"late": 1.0})
    assert history.to_csv() == b"step,loss,late\n1,2.0,1.0\n"


def test_a_resume_goes_on_from_the_text() -> None:
    """The last row is still open: what the step reports again replaces its cells, and no step appears twice."""
    history = History(b"step,loss,val\n1,2.0,\n2,1.5,9.0\n")
    history.report(2, {"val": 8.0})
    history.report(3, {"loss": 1.0})
    assert history.to_csv() == b"step,loss,val\n1,2.0,\n2,1.5,8.0\n3,1.0,\n"


def test_a_resume_cuts_back_to_its_checkpoint() -> None:
    """What was reported after the checkpoint is gone with it: redone steps are logged once."""
    history = History()
    for step in (1, 2):
        history.report(step, {"loss": 1.0 / step})
    at_checkpoint = history.to_csv()
    history.report(3, {"loss": 99.0})
    resumed = History(at_checkpoint)
    resumed.report(3, {"loss": 0.25})
    assert resumed.to_csv() == b"step,loss\n1,1.0\n2,0.5\n3,0.25\n"


reports = st.lists(
    st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from(["a", "b,c", 'd"e', "f\ng", "h"]), st.floats())),
    max_size=12,
)


@given(reports, st.sets(st.integers(0, 12)))
def test_however_often_it_is_resumed_the_text_is_the_same(
    steps: list[tuple[int, dict[str, float]]], resumes: set[int]
) -> None:
    """A run that was interrupted anywhere, any number of times, has the history of one that was not."""
    straight, broken = History(), History()
    step = 1
    for number, (advance, metrics) in enumerate(steps):
        step += advance
        straight.report(step, metrics)
        if number in resumes:
            broken = History(broken.to_csv())
        broken.report(step, metrics)
    assert broken.to_csv() == straight.to_csv()
    rows = list(csv.DictReader(io.StringIO(straight.to_csv().decode(), newline="")))
    assert all(int(a["step"]) < int(b["step"]) for a, b in pairwise(rows))


def test_tensors_are_held_by_value_and_read_late() -> None:
    """A loss that is overwritten in place afterwards is reported as it was; reporting waits for no device."""
    history = History()
    loss = Scalar(2.0)
    history.report(1, {"loss": loss})
    loss.value = 99.0
    assert loss.reads == 0
    assert history.to_csv() == b"step,loss\n1,2.0\n"


def test_numbers_are_written_exactly() -> None:
    """The text reads back as the same float; NaN and infinities have their names."""
    history = History()
    history.report(1, {"a": 0.1 + 0.2, "b": math.nan, "c": -math.inf, "d": 10**20, "e": True})
    assert history.to_csv() == b"step,a,b,c,d,e\n1,0.30000000000000004,nan,-inf,1e+20,1.0\n"


def test_a_checkpoint_is_told_what_was_reported_for_its_own_step_only() -> None:
    """Finite values of that very step, because the manifest is strict JSON; nothing of an earlier one."""
    history = History()
    history.report(1, {"old": 1.0})
    history.report(2, {"a": 0.5, "b": math.nan, "c": math.inf})
    assert history.at(2) == {"a": 0.5}
    assert history.at(3) == {}


@pytest.mark.parametrize(
    ("metrics", "says"),
    [({"loss": "low"}, "'loss' is a str"), ({"loss": None}, "'loss' is a NoneType"), ({"step": 1}, "first column"),
     ({"loss": torch.ones(3)}, "'loss' is a tensor of 3 elements")],
)  # fmt: skip
def test_what_is_no_metric_is_refused(metrics: dict[str, object], says: str) -> None:
    """With the metric's name; nothing of the report is taken."""
    history = History()
    history.report(1, {"good": 1.0})
    with pytest.raises(UsageError, match=says):
        history.report(2, {"fine": 2.0, **metrics})
    assert history.to_csv() == b"step,good\n1,1.0\n"


def test_every_report_counts() -> None:
    """`revision` tells whether something was reported since: a final save is not skipped then."""
    history = History()
    before = history.revision
    history.report(1, {"loss": 1.0})
    assert history.revision > before


TEXT = b"step,loss,val\n10,2.0,\n20,1.0,0.5\n30,nan,\n40,0.1,0.2\n"


@pytest.mark.parametrize(
    ("metric", "step", "value"),
    [
        ("val", 10, None),
        ("val", 20, 0.5),
        ("val", 30, 0.5),
        ("val", 39, 0.5),
        ("val", 40, 0.2),
        ("val", 10**9, 0.2),
        ("loss", 9, None),
        ("loss", 25, 1.0),
        ("absent", 40, None),
        (None, 40, None),
    ],
)
def test_the_metric_of_a_step(metric: str | None, step: int, value: float | None) -> None:
    """Its own, or else the last one before it; never a later one."""
    assert metric_at(TEXT, metric)(step) == value


def test_a_nan_is_handed_on() -> None:
    """Retention decides what NaN means; an empty history has no value."""
    found = metric_at(TEXT, "loss")(30)
    assert found is not None
    assert math.isnan(found)
    assert metric_at(b"", "loss")(30) is None
