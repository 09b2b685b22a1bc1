"""The safetensors image: laid out here, readable everywhere."""

import json
import math

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spec.leaves import (
    CHUNK_BYTES,
    ITEM_BYTES,
    PAGE_BYTES,
    SAFETENSORS_DTYPE,
    Leaf,
    chunks_of,
    lay_out,
    leaf_from_json,
)

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
leaf_lists = st.lists(
    st.builds(Leaf, st.text(min_size=1, max_size=8), st.sampled_from(sorted(ITEM_BYTES)), shapes),
    unique_by=lambda leaf: leaf.name,
    min_size=1,
    max_size=8,
).filter(lambda leaves: all(leaf.name != "__metadata__" for leaf in leaves))


@given(leaf_lists)
def test_the_image_is_a_safetensors_file(leaves: list[Leaf]) -> None:
    """The safetensors library reads every leaf's bytes back from where the layout put them, under its name."""
    image = lay_out(leaves)
    content = bytearray(image.nbytes)
    content[: len(image.header)] = image.header
    expected = {}
    for number, (leaf, start) in enumerate(zip(leaves, image.starts, strict=True)):
        expected[leaf.name] = content[start : start + leaf.nbytes] = bytes([number + 1]) * leaf.nbytes
    read = dict(safetensors.deserialize(bytes(content)))
    assert {name: bytes(entry["data"]) for name, entry in read.items()} == expected
    for leaf in leaves:
        extra = [] if leaf.dtype in SAFETENSORS_DTYPE else [ITEM_BYTES[leaf.dtype]]
        assert read[leaf.name]["shape"] == [*leaf.shape, *extra]
        assert read[leaf.name]["dtype"] == SAFETENSORS_DTYPE.get(leaf.dtype, "U8")


@given(leaf_lists)
def test_page_aligned_widest_first_without_holes(leaves: list[Leaf]) -> None:
    """Data starts on a page, each leaf on a multiple of its item size, and the leaves fill the file to its end."""
    image = lay_out(leaves)
    assert len(image.header) % PAGE_BYTES == 0
    placed = sorted(zip(image.starts, (leaf.nbytes for leaf in leaves), leaves, strict=True), key=lambda p: p[:2])
    reached, widest = len(image.header), math.inf
    for start, nbytes, leaf in placed:
        assert start == reached
        assert start % ITEM_BYTES[leaf.dtype] == 0
        if nbytes:
            assert ITEM_BYTES[leaf.dtype] <= widest
            widest = ITEM_BYTES[leaf.dtype]
        reached = start + nbytes
    assert reached == image.nbytes


def test_the_header_is_padded_with_spaces() -> None:
    """The length prefix covers the padding, as the format wants it."""
    image = lay_out([Leaf("w", "float32", (2, 3))])
    length = int.from_bytes(image.header[:8], "little")
    assert 8 + length == len(image.header) == PAGE_BYTES
    table = json.loads(image.header[8:])
    assert table["w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert image.header.endswith(b" ")


@pytest.mark.parametrize("letters", [*range(3980, 4000), 4090, 9000])
def test_a_header_that_fills_its_page_and_more(letters: int) -> None:
    """However long the names are, the data starts on a page: just before, at and after a page's end."""
    image = lay_out([Leaf("n" * letters, "int8", (1,))])
    assert len(image.header) % PAGE_BYTES == 0
    assert len(image.header) - letters < 2 * PAGE_BYTES
    assert image.starts == (len(image.header),)


def test_a_dtype_without_a_name_is_stored_as_bytes() -> None:
    """complex64 gets a last axis of eight bytes, so that other readers at least see its shape."""
    table = json.loads(lay_out([Leaf("c", "complex64", (2,))]).header[8:])
    assert table["c"] == {"dtype": "U8", "shape": [2, 8], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("nbytes", "chunks"),
    [
        (0, [(0, 0)]),
        (1, [(0, 1)]),
        (CHUNK_BYTES, [(0, CHUNK_BYTES)]),
        (CHUNK_BYTES + 1, [(0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES + 1)]),
    ],
)
def test_chunks_cover_everything_once(nbytes: int, chunks: list[tuple[int, int]]) -> None:
    """Chunks count from the leaf's first byte; even an empty leaf has one, so that it has a digest."""
    assert chunks_of(nbytes) == chunks


def test_every_dtype_has_a_size() -> None:
    """Whatever has a safetensors name has an item size too."""
    assert SAFETENSORS_DTYPE.keys() <= ITEM_BYTES.keys()
    assert Leaf("s", "float64", ()).nbytes == 8
    assert Leaf("e", "float64", (3, 0)).nbytes == 0


@pytest.mark.parametrize(
    "entry",
    [{}, {"name": "w", "dtype": "float31", "shape": []}, {"name": "w", "dtype": "int8", "shape": ["x"]},
     {"name": "w", "dtype": "int8", "shape": 3}],
)  # fmt: skip
def test_an_entry_that_is_no_leaf_is_refused(entry: dict[str, object]) -> None:
    """Missing members, unknown dtypes and shapes that are none are errors."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        leaf_from_json(entry)
