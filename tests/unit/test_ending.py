"""What the verdict says, for every way to leave the block."""

import pytest

from holdfast.decide.ending import judge
from holdfast.errors import NotAStore, Superseded


@pytest.mark.parametrize(
    ("error", "ending", "says"),
    [
        (Superseded(1, 2), "superseded", "attempt 2"),
        (NotAStore("runs/x", ["a"]), "stopped", "runs/x"),
        (SystemExit(3), "exited", "3"),
        (KeyboardInterrupt(), "exited", "KeyboardInterrupt"),
        (ZeroDivisionError("by zero"), "crashed", "ZeroDivisionError: by zero"),
    ],
)
def test_every_ending_has_its_name(error: BaseException, ending: str, says: str) -> None:
    """An exit on purpose is no crash, and a refusal of ours is neither."""
    named, detail = judge(error)
    assert named == ending
    assert says in detail
