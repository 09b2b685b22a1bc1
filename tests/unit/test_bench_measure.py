"""The benchmark's arithmetic: order, medians, ratios within a round, and the verdict on each target."""

from pathlib import Path

import pytest
from benchmarks import report, targets
from benchmarks.measure import Metric, Record, Results, Spread, there_and_back
from benchmarks.targets import HOLDFAST, MIB, REFERENCE, Verdict

STALL = Metric("save", HOLDFAST, "stall_s")
COPY = Metric("limits", "", "copy_memfd_s")


def record(kind: str, contestant: str, number: int = 0, size: int = 64, **values: float | list[float]) -> Record:
    """Make what one process would have measured."""
    return Record(kind=kind, contestant=contestant, size_mib=size, round=number, values=values)


def verdict(found: list[Record], target: str) -> Verdict:
    """Judge records, and pick the one verdict whose target begins so."""
    (picked,) = (v for v in targets.verdicts(Results(found), slots=2) if v.target.startswith(target))
    return picked


def test_there_and_back() -> None:
    """Every other round runs backwards, so that a steady drift adds the same to everybody."""
    assert list(there_and_back("abc", 3)) == [
        *((0, name) for name in "abc"),
        *((1, name) for name in "cba"),
        *((2, name) for name in "abc"),
    ]


def test_drift_cancels_out() -> None:
    """Over two rounds, the positions of every contestant add up to the same."""
    places: dict[str, int] = {}
    for place, (_, name) in enumerate(there_and_back("abcde", 2)):
        places[name] = places.get(name, 0) + place
    assert len(set(places.values())) == 1


def test_spread() -> None:
    """A spread holds the median and the range of all samples; of none there is no spread."""
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0, 3)
    assert Spread.of([]) is None


def test_spread_in_other_units() -> None:
    """Scaling and shifting move the median and the range alike."""
    assert Spread(1.5, 1.0, 3.0, 4).shifted(-1.0).scaled(100.0) == Spread(50.0, 0.0, 200.0, 4)


def test_samples_are_told_apart() -> None:
    """A metric takes the samples of its own kind, contestant and size only; lists and numbers both count."""
    results = Results(
        [
            record("save", HOLDFAST, 0, stall_s=[1.0, 2.0]),
            record("save", HOLDFAST, 1, stall_s=3.0),
            record("save", HOLDFAST, 0, size=512, stall_s=50.0),
            record("save", REFERENCE, 0, stall_s=60.0),
            record("frozen", HOLDFAST, 0, stall_s=70.0),
            Record(kind="save", contestant=HOLDFAST, size_mib=64, round=2, values={}, error="it failed"),
        ]
    )
    assert results.by_round(STALL, 64) == {0: [1.0, 2.0], 1: [3.0]}
    assert results.spread(STALL, 64) == Spread(2.0, 1.0, 3.0, 3)
    assert results.sizes == [64, 512]
    assert results.contestants("save") == [HOLDFAST, REFERENCE]


def test_ratio_is_taken_within_a_round() -> None:
    """A machine that is ten times slower in one round leaves the ratios as they are."""
    results = Results(
        [
            record("save", HOLDFAST, 0, stall_s=[2.0, 3.0]),
            record("limits", "", 0, copy_memfd_s=1.0),
            record("save", HOLDFAST, 1, stall_s=[20.0, 30.0]),
            record("limits", "", 1, copy_memfd_s=10.0),
            record("save", HOLDFAST, 2, stall_s=999.0),
        ]
    )
    assert results.ratio(STALL, COPY, 64) == Spread(2.5, 2.0, 3.0, 4)


def test_ratio_without_its_limit() -> None:
    """Where the limit was not measured there is no ratio."""
    assert Results([record("save", HOLDFAST, stall_s=1.0)]).ratio(STALL, COPY, 64) is None


@pytest.mark.parametrize(("stall", "reached"), [(1.2, True), (1.21, False)])
def test_ratio_target(stall: float, reached: bool) -> None:
    """A target of a ratio is reached up to its bound, and not beyond."""
    found = [record("save", HOLDFAST, stall_s=stall), record("limits", "", copy_memfd_s=1.0)]
    judged = verdict(found, "stall of a save")
    assert (judged.reached, judged.bound, judged.size_mib) == (reached, 1.2, 64)


@pytest.mark.parametrize(("spare", "reached"), [(64.0, True), (65.0, False)])
def test_memory_target(spare: float, reached: bool) -> None:
    """Memory while saving counts above all slots: 100 MiB of state in two slots may take 264 MiB, no more."""
    found = [record("save", HOLDFAST, state_bytes=100 * MIB, save_extra_bytes=(200 + spare) * MIB)]
    judged = verdict(found, "memory while saving")
    assert judged.measured == Spread(spare, spare, spare, 1)
    assert judged.reached is reached


def test_start_target() -> None:
    """Times at the start are judged in the unit that the target names, whatever the size."""
    judged = verdict([record("startup", HOLDFAST, boundary_s=25e-6)], "boundary")
    assert judged.measured is not None
    assert judged.measured.median == pytest.approx(25.0)
    assert (judged.reached, judged.unit) == (False, "µs")


def test_nothing_measured_reaches_nothing() -> None:
    """A target without figures is not reached."""
    judged = list(targets.verdicts(Results([record("save", HOLDFAST)]), slots=2))
    assert judged
    assert not any(v.reached for v in judged)


def training(peer_saves: float, peer_s: float) -> list[Record]:
    """Training takes 100 s, and 110 s under Holdfast with 40 saves."""
    return [
        record("train", "", train_s=100.0, saves=0.0),
        record("train", HOLDFAST, train_s=110.0, saves=40.0),
        record("train", "peer", train_s=peer_s, saves=peer_saves),
    ]


def test_training_against_a_peer_that_keeps_up() -> None:
    """A peer that saves as often sets the bound."""
    won, lost = verdict(training(40.0, 120.0), "slowdown"), verdict(training(40.0, 105.0), "slowdown")
    assert won.measured is not None
    assert won.measured.median == pytest.approx(10.0)
    assert (won.bound, lost.bound) == (pytest.approx(20.0), pytest.approx(5.0))
    assert (won.reached, lost.reached) == (True, False)


def test_training_against_a_peer_that_saves_seldom() -> None:
    """A peer that makes fewer saves is no measure, and the verdict says so."""
    judged = verdict(training(35.0, 101.0), "slowdown")
    assert judged.reached
    assert judged.note == "no async peer saved as often"


def test_fill_leaves_what_was_written_by_hand() -> None:
    """Only what stands between the marks is replaced, as often as the report is written."""
    document = "by hand\n<!-- measured: a -->\nold\n<!-- end -->\nby hand too\n"
    once = report.fill(document, {"a": "new"})
    assert once == "by hand\n<!-- measured: a -->\n\nnew\n\n<!-- end -->\nby hand too\n"
    assert report.fill(once, {"a": "new"}) == once


def test_fill_wants_every_section() -> None:
    """A document that lacks a section is refused rather than left incomplete."""
    with pytest.raises(report.NoSuchSection):
        report.fill("<!-- measured: a -->\n<!-- end -->\n", {"a": "", "b": ""})


def test_the_document_has_every_section() -> None:
    """docs/benchmarks.md marks exactly the sections that the generator writes, and can be written without figures."""
    document = Path(__file__).parents[2] / "docs" / "benchmarks.md"
    sections = report.sections(Results([]), {}, slots=2, beside="benchmarks")
    assert "Which limit binds" in report.fill(document.read_text(), sections)


@pytest.mark.parametrize(
    ("value", "text"), [(1.5, "1.5 s"), (0.0123, "12.3 ms"), (0.25, "250 ms"), (7e-6, "7 µs"), (123.4, "123 s")]
)
def test_seconds(value: float, text: str) -> None:
    """Times are written with three digits, in the unit that suits them."""
    assert report.seconds(value) == text
