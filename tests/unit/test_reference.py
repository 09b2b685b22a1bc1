"""Which unchanged leaves stay where they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.decide.reference import WORTH, Unchanged, refer_to


@pytest.mark.parametrize(
    ("unchanged", "part_bytes", "referred"),
    [
        ([], 100, ""),
        ([("a", 100, "f")], 100, "a"),
        ([("a", 34, "f")], 100, "a"),
        ([("a", 33, "f")], 100, ""),
        ([("a", 20, "f"), ("b", 20, "f")], 100, "ab"),
        ([("a", 20, "f"), ("b", 20, "g")], 100, ""),
        ([("a", 20, "f"), ("b", 40, "g"), ("c", 14, "f")], 100, "abc"),
        ([("a", 100, "f"), ("e", 0, "f")], 100, "a"),
        ([("e", 0, "f")], 0, ""),
    ],
)
def test_the_share_of_one_older_file_decides(
    unchanged: list[tuple[str, int, str]], part_bytes: int, referred: str
) -> None:
    """A third of the part in one file is worth keeping that file for; empty leaves never are."""
    assert refer_to((Unchanged(*leaf) for leaf in unchanged), part_bytes) == set(referred)


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("fgh")), max_size=9), st.integers(0, 100))
def test_no_file_is_kept_for_less_than_it_is_worth(leaves: list[tuple[int, str]], rest: int) -> None:
    """Whatever the sizes: each file that is referred to holds its share, and only unchanged leaves are referred to."""
    unchanged = [Unchanged(str(i), nbytes, file) for i, (nbytes, file) in enumerate(leaves)]
    part_bytes = rest + sum(leaf.nbytes for leaf in unchanged)
    referred = refer_to(unchanged, part_bytes)
    for file in {leaf.file for leaf in unchanged if leaf.name in referred}:
        assert sum(leaf.nbytes for leaf in unchanged if leaf.file == file) >= WORTH * part_bytes
    assert referred <= {leaf.name for leaf in unchanged}
