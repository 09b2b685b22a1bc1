"""One pass over memory writes every byte of every file, and digests every byte.

Rule 1: objects are written once, under their final unique name, and never changed.
"""

import os

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine import commit, write
from holdfast.engine.checkpoint import Checkpoint, open_checkpoint, read_leaf, verify
from holdfast.errors import AlreadyExists
from holdfast.spec import names
from holdfast.spec.leaves import CHUNK_BYTES, Leaf, chunks_of, lay_out
from holdfast.spec.names import CheckpointId
from holdfast.spec.snapshot import Snapshot, Span
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Rank

ID = CheckpointId(attempt=1, step=1)
FILE = names.part_file("model", 0)
leaf_lists = st.lists(
    st.builds(
        Leaf,
        st.text("abc.", min_size=1, max_size=6),
        st.sampled_from(["float64", "float32", "int8", "complex128", "bool"]),
        st.lists(st.sampled_from([0, 1, 3, 7]), max_size=2).map(tuple),
    ),
    unique_by=lambda leaf: leaf.name,
    min_size=1,
    max_size=6,
)


def write_part(leaves: list[Leaf], blob: bytes = b"{}") -> tuple[MemoryStore, Checkpoint, bytes]:
    """Write and commit a checkpoint of one part with rubbish in its leaves; return the part's image too."""
    image = lay_out(leaves)
    content = image.header + os.urandom(image.nbytes - len(image.header))
    snapshot = Snapshot(
        checkpoint=ID,
        slot=0,
        taken_at=0.0,
        parts={"model": Span(FILE, 4096, image.nbytes)},
        blobs=(Span(names.documents_file(0), 4096 + image.nbytes, len(blob)),),
        leaves={"model": tuple(zip(leaves, image.starts, strict=True))},
        step={},
    )
    store = MemoryStore()
    memory = memoryview(bytearray(4096) + content + blob)
    write.write_rank_manifest(store, xxh3, write.write_files(store, xxh3, Rank(), snapshot, memory))
    commit.commit(store, xxh3, ToldClock(), ID, 1)
    return store, open_checkpoint(store, xxh3, ID), content


@given(leaf_lists)
def test_a_file_is_the_image_in_memory(leaves: list[Leaf]) -> None:
    """Whatever the dtypes and shapes, empty leaves among wider and narrower ones included: the file is whole."""
    store, checkpoint, content = write_part(leaves)
    assert store.read(ID.folder + FILE) == content
    assert sum(verify(store, xxh3, checkpoint, deep=True)) == len(b"{}") + sum(leaf.nbytes for leaf in leaves)
    read = dict(safetensors.deserialize(store.read(ID.folder + FILE)))
    for stored in checkpoint.ranks[0].leaves:
        into = memoryview(bytearray(stored.leaf.nbytes))
        read_leaf(store, xxh3, stored, into)
        assert bytes(into) == bytes(read[stored.leaf.name]["data"])


def test_an_empty_leaf_laid_out_before_a_narrower_one() -> None:
    """Both begin at the same byte; the file still ends where the narrower one ends."""
    store, _, content = write_part([Leaf("narrow", "float32", (4,)), Leaf("empty", "float64", (0,))])
    assert store.read(ID.folder + FILE) == content


@pytest.mark.parametrize("nbytes", [CHUNK_BYTES, CHUNK_BYTES + 1])
def test_large_leaves_are_digested_in_chunks(nbytes: int) -> None:
    """A digest per chunk, counted from the leaf's first byte, whatever lies before it in the file."""
    store, checkpoint, content = write_part([Leaf("large", "int8", (nbytes,)), Leaf("wide", "float64", (3,))])
    assert store.read(ID.folder + FILE) == content
    large = next(s for s in checkpoint.ranks[0].leaves if s.leaf.name == "large")
    assert large.digests == tuple(xxh3(content[large.start + a : large.start + b]) for a, b in chunks_of(nbytes))
    for _ in verify(store, xxh3, checkpoint, deep=True):
        pass


def test_a_large_blob_is_digested_in_chunks() -> None:
    """Documents of more than a chunk verify too."""
    store, checkpoint, _ = write_part([Leaf("w", "int8", (1,))], blob=b"x" * (CHUNK_BYTES + 3))
    assert len(checkpoint.ranks[0].blobs[names.documents_file(0)].digests) == 2
    for _ in verify(store, xxh3, checkpoint, deep=True):
        pass


def test_a_header_of_more_than_a_chunk() -> None:
    """A state of very many tensors has a very long header; it is digested as a whole."""
    store, checkpoint, _ = write_part([Leaf("n" * (CHUNK_BYTES + 1), "int8", (1,))])
    for _ in verify(store, xxh3, checkpoint, deep=False):
        pass


def test_nothing_is_overwritten() -> None:
    """Rule 1: a second write of the same checkpoint fails at its first file."""
    store, checkpoint, _ = write_part([Leaf("w", "int8", (1,))])
    with pytest.raises(AlreadyExists):
        write.write_rank_manifest(store, xxh3, checkpoint.ranks[0])


@settings(max_examples=25)
@given(leaf_lists, st.data())
def test_leaves_that_did_not_change_may_lie_in_older_files(leaves: list[Leaf], data: st.DataObject) -> None:
    """Whichever leaves change from save to save: every checkpoint verifies, and reads back what was saved."""
    store = MemoryStore()
    image = lay_out(leaves)
    memory = bytearray(image.header + os.urandom(image.nbytes - len(image.header)))
    previous = None
    saved = []
    for step in (1, 2, 3):
        for leaf, start in zip(leaves, image.starts, strict=True):
            if data.draw(st.booleans(), label=f"{leaf.name} changes before step {step}"):
                memory[start : start + leaf.nbytes] = os.urandom(leaf.nbytes)
        snapshot = Snapshot(
            checkpoint=CheckpointId(attempt=1, step=step),
            slot=0,
            taken_at=0.0,
            parts={"model": Span(FILE, 0, image.nbytes)},
            blobs=(),
            leaves={"model": tuple(zip(leaves, image.starts, strict=True))},
            step={},
        )
        previous = write.write_files(store, xxh3, Rank(), snapshot, memoryview(memory), previous)
        write.write_rank_manifest(store, xxh3, previous)
        commit.commit(store, xxh3, ToldClock(), snapshot.checkpoint, 1)
        saved.append(bytes(memory))
    for step, expected in enumerate(saved, start=1):
        checkpoint = open_checkpoint(store, xxh3, CheckpointId(attempt=1, step=step))
        assert sum(verify(store, xxh3, checkpoint, deep=True)) == sum(leaf.nbytes for leaf in leaves)
        stored = {s.leaf: s for s in checkpoint.ranks[0].leaves}
        assert stored.keys() == set(leaves)
        for leaf, start in zip(leaves, image.starts, strict=True):
            into = memoryview(bytearray(leaf.nbytes))
            read_leaf(store, xxh3, stored[leaf], into)
            assert into == expected[start : start + leaf.nbytes]
        for name in checkpoint.ranks[0].parts:
            safetensors.deserialize(store.read(checkpoint.id.folder + name))


def test_equal_bytes_of_another_kind_are_not_referred_to() -> None:
    """Zeros are zeros, but a tensor that became another dtype or shape is stored as what it is now."""
    store = MemoryStore()
    previous = None
    for step, leaf in enumerate([Leaf("w", "float32", (4,)), Leaf("w", "int32", (4,)), Leaf("w", "int32", (2, 2))]):
        image = lay_out([leaf])
        snapshot = Snapshot(
            checkpoint=CheckpointId(attempt=1, step=step),
            slot=0,
            taken_at=0.0,
            parts={"model": Span(FILE, 0, image.nbytes)},
            blobs=(),
            leaves={"model": ((leaf, image.starts[0]),)},
            step={},
        )
        memory = memoryview(bytearray(image.header) + bytearray(leaf.nbytes))
        previous = write.write_files(store, xxh3, Rank(), snapshot, memory, previous)
        assert [stored.leaf for stored in previous.leaves] == [leaf]
        assert previous.leaves[0].lengths == leaf.shape
