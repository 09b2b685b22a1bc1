"""Names in a store: what is built can be parsed, and nothing else can."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spec import names
from holdfast.spec.names import CheckpointId

ids = st.builds(
    CheckpointId,
    attempt=st.integers(1, 10**7),
    step=st.integers(0, 10**12),
    again=st.integers(0, 300),
)


@given(ids)
def test_a_checkpoints_name_reads_back(checkpoint: CheckpointId) -> None:
    """Whatever the size of the numbers, and whether or not the step was saved before."""
    assert CheckpointId.parse(str(checkpoint)) == checkpoint
    for name in (checkpoint.manifest, checkpoint.folder + "model.r00000.safetensors", checkpoint.folder):
        assert names.checkpoint_of(name) == checkpoint


@given(st.from_regex(r"\d{9,12}(\.\d{1,3})?-a\d{5,8}\n?", fullmatch=True) | st.text())
def test_only_the_canonical_spelling_is_a_name(text: str) -> None:
    """A folder that merely resembles a checkpoint's (other digits, more zeros, a line end) is none."""
    parsed = CheckpointId.parse(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "0000000012", "0000000012-a1", "12-a000001", "0000000012-a000001.bak", "0000000012-a000001\n",
        "00000000012-a000001", "0000000012.00-a000001", "0000000012.1-a000001", "0000000012-a0000001",
        "-000000012-a000001", "٠٠٠٠٠٠٠٠١٢-a000001", " 0000000012-a000001",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_checkpoint_is_none(text: str) -> None:
    """Copies made by hand, shorter numbers and other alphabets' digits are passed over."""
    assert CheckpointId.parse(text) is None
    assert names.checkpoint_of(f"checkpoints/{text}/manifest.json") is None


def test_the_documented_names() -> None:
    """The names are those that the format's document shows."""
    first, second = CheckpointId(attempt=7, step=1200), CheckpointId(attempt=7, step=1200, again=1)
    assert first.manifest == "checkpoints/0000001200-a000007/manifest.json"
    assert second.folder == "checkpoints/0000001200.01-a000007/"
    assert first.pin == "pins/0000001200-a000007.json"
    assert names.part_file("model", 3) == "model.r00003.safetensors"
    assert names.documents_file(0) == "documents.r00000.json"
    assert names.rank_manifest_file(0) == "rank.r00000.json"
    assert names.claim(7) == "attempts/000007.json"
    assert names.keeper(7, 1) == "attempts/000007.keeper-01.json"
    assert names.verdict(7) == "attempts/000007.verdict.json"
    assert names.ledger_segment(7, 1) == "ledger/a000007/00000001.jsonl"


def test_age_is_attempt_then_step_then_order_within_the_step() -> None:
    """A later attempt that went back to an earlier step is newer than everything of the attempt it left."""
    by_age = [
        CheckpointId(attempt=1, step=100),
        CheckpointId(attempt=1, step=900),
        CheckpointId(attempt=2, step=50),
        CheckpointId(attempt=2, step=50, again=1),
        CheckpointId(attempt=2, step=60),
        CheckpointId(attempt=10, step=1),
    ]
    assert sorted(reversed(by_age)) == by_age


@given(ids, ids)
def test_within_an_attempt_a_listing_is_in_order_of_age(a: CheckpointId, b: CheckpointId) -> None:
    """Up to ten-digit steps and two-digit repeats, people see the order of steps in a plain listing."""
    if a.attempt == b.attempt and max(a.step, b.step) < 10**10 and max(a.again, b.again) < 100 and a.step != b.step:
        assert (str(a) < str(b)) == (a < b)


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("attempts/000007.json", 7),
        ("attempts/1000000.json", 1_000_000),
        ("attempts/000007.verdict.json", None),
        ("attempts/000007.keeper-01.json", None),
        ("attempts/.000007.json.12-0.partial", None),
        ("attempts/7.json", None),
        ("ledger/000007.json", None),
    ],
)
def test_claims_are_told_from_their_neighbours(name: str, attempt: int | None) -> None:
    """Verdicts, keepers and the remains of interrupted writes are no claims."""
    assert names.attempt_of_claim(name) == attempt


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (names.claim(7), 7),
        (names.keeper(7, 2), 7),
        (names.verdict(7), 7),
        (CheckpointId(attempt=7, step=1).manifest, 7),
        (CheckpointId(attempt=7, step=1).folder + "model.r00000.safetensors", 7),
        ("attempts/.000009.json.12-0.partial", None),
        ("attempts/README", None),
        ("checkpoints/README", None),
        ("run.json", None),
    ],
)
def test_who_left_an_object(name: str, attempt: int | None) -> None:
    """Whatever an attempt leaves tells its number, so that the number is not used again."""
    assert names.attempt_of(name) == attempt


def test_keepers_are_told_from_their_neighbours() -> None:
    """A keeper's name gives attempt and number; other objects' names give nothing."""
    assert names.keeper_of(names.keeper(7, 12)) == (7, 12)
    assert names.keeper_of(names.keeper(7, 123)) == (7, 123)
    assert names.keeper_of(names.claim(7)) is None
    assert names.keeper_of("attempts/.000007.keeper-01.json.5-0.partial") is None


def test_objects_outside_checkpoints_belong_to_none() -> None:
    """Claims, pins, ledger, and strange things directly below `checkpoints/` belong to no checkpoint."""
    for name in ("run.json", names.claim(1), CheckpointId(attempt=1, step=1).pin, "checkpoints/README", "checkpoints/"):
        assert names.checkpoint_of(name) is None
