"""Manifests read back as they were written, and a sealed document that was touched anywhere is refused."""

import json
from typing import Any

import pytest

from holdfast.errors import Corrupt, NewerFormat
from holdfast.spec.leaves import Leaf
from holdfast.spec.manifest import FORMAT, Blob, Manifest, PartFile, RankManifest, StoredLeaf, seal, unseal
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3

OLDER = CheckpointId(attempt=1, step=100)
THIS = CheckpointId(attempt=2, step=120, again=1)


def rank_manifest() -> RankManifest:
    """Make one with two parts, one leaf of which lies in an older checkpoint's file."""
    leaf = Leaf("weight", "float32", (2, 3))
    return RankManifest(
        checkpoint=THIS,
        rank=0,
        world_size=1,
        step={"step": 120, "reason": "every 20 steps", "metrics": {"loss": 0.1}},
        parts={"model.r00000.safetensors": PartFile(nbytes=4120, header_bytes=4096, header_digest="aa")},
        blobs={"documents.r00000.json": Blob(nbytes=2, digests=("bb",))},
        leaves=(
            StoredLeaf(
                part="model", leaf=leaf, offset=(0, 0), lengths=(2, 3), file=THIS.folder + "model.r00000.safetensors",
                start=4096, digests=("cc",),
            ),
            StoredLeaf(
                part="base", leaf=Leaf("scale", "bfloat16", ()), offset=(), lengths=(),
                file=OLDER.folder + "base.r00000.safetensors", start=4096, digests=("dd",),
            ),
        ),
    )  # fmt: skip


def manifest() -> Manifest:
    """Make the commit of the same checkpoint."""
    return Manifest(checkpoint=THIS, world_size=1, step={"step": 120}, ranks={"rank.r00000.json": "ee"})


def test_manifests_round_trip() -> None:
    """Bytes to value gives the value that was written, older checkpoints' files included."""
    assert RankManifest.from_bytes(rank_manifest().to_bytes(xxh3), "r", xxh3) == rank_manifest()
    assert Manifest.from_bytes(manifest().to_bytes(xxh3), "m", xxh3) == manifest()


def test_a_rank_manifest_names_every_object_it_needs() -> None:
    """Its own files, and the older checkpoint's file that a leaf lies in."""
    assert rank_manifest().objects() == {
        THIS.folder + "model.r00000.safetensors",
        THIS.folder + "documents.r00000.json",
        OLDER.folder + "base.r00000.safetensors",
    }


@pytest.mark.parametrize("raw", [rank_manifest().to_bytes(xxh3), manifest().to_bytes(xxh3)], ids=["rank", "commit"])
def test_any_single_damage_breaks_the_seal(raw: bytes) -> None:
    """Exhaustively: one byte flipped, dropped or doubled, a cut at any place, anything added: always Corrupt."""
    for i in range(len(raw)):
        damaged = [raw[:i] + bytes([raw[i] ^ mask]) + raw[i + 1 :] for mask in (0x01, 0x20, 0xFF)]
        damaged += [raw[:i] + raw[i + 1 :], raw[:i]]
        if raw[i : i + 1] != raw[i - 1 : i]:
            damaged.append(raw[:i] + raw[i : i + 1] + raw[i:])
        for text in damaged:
            with pytest.raises(Corrupt, match="the-name"):
                unseal(text, "the-name", xxh3)
    for text in (raw + b"\n", b" " + raw, raw + raw, b"", bytes(len(raw))):
        with pytest.raises(Corrupt, match="the-name"):
            unseal(text, "the-name", xxh3)


def test_the_seal_is_as_documented() -> None:
    """The last member is `digest`, over all bytes before the comma that precedes it; then a brace and a line end."""
    raw = manifest().to_bytes(xxh3)
    text, _, tail = raw.rpartition(b',"digest":"')
    assert tail == xxh3(text).encode() + b'"}\n'
    assert json.loads(raw)["digest"] == xxh3(text)


def test_a_document_that_holds_a_seal_of_its_own_is_read() -> None:
    """Only the last `,"digest":` counts: text that looks like a seal inside the document does no harm."""
    body = {"format": FORMAT, "note": 'x,"digest":"00"}\n', "inner": {"a": 1, "digest": "00"}}
    assert unseal(seal(body, xxh3), "n", xxh3) == body


@pytest.mark.parametrize("newer", [FORMAT + 1, 999])
def test_a_newer_format_says_so(newer: int) -> None:
    """A whole document of a later format is not called damaged: the message tells to upgrade."""
    with pytest.raises(NewerFormat, match=f"the-name has format {newer}.*Upgrade Holdfast"):
        Manifest.from_bytes(seal({"format": newer}, xxh3), "the-name", xxh3)


@pytest.mark.parametrize("body", [[], {}, {"format": "1"}, {"format": None}, {"format": 1.5}])
def test_a_sealed_document_without_a_format_number_is_corrupt(body: Any) -> None:
    """A seal alone does not make a manifest."""
    with pytest.raises(Corrupt):
        unseal(seal(body, xxh3), "n", xxh3)


def without_digest(raw: bytes) -> dict[str, Any]:
    """Read a sealed document's members."""
    body: dict[str, Any] = json.loads(raw)
    del body["digest"]
    return body


@pytest.mark.parametrize("wrong", ["missing", None, 5, "text", [1]])
def test_a_member_missing_or_of_another_kind_is_corrupt(wrong: Any) -> None:
    """Each member of both manifests, sealed correctly: either it is read as it stands, or it is Corrupt; no crash."""
    for kind, raw in ((RankManifest, rank_manifest().to_bytes(xxh3)), (Manifest, manifest().to_bytes(xxh3))):
        for member in without_digest(raw):
            body = without_digest(raw)
            if wrong == "missing":
                del body[member]
                with pytest.raises(Corrupt):
                    kind.from_bytes(seal(body, xxh3), "n", xxh3)
                continue
            body[member] = wrong
            try:
                kind.from_bytes(seal(body, xxh3), "n", xxh3)
            except (Corrupt, NewerFormat):
                continue
            assert member in ("step", "rank", "world_size", "files"), f"{kind.__name__} takes {member}={wrong!r}"


@pytest.mark.parametrize("change", [
    {"dtype": "float31"}, {"file": 9}, {"shape": [5_000_000, 2]}, {"shape": "x"}, {"digests": []},
    {"digests": ["a", "b"]}, {"start": "x"}, {"offset": None},
])  # fmt: skip
def test_a_leaf_that_makes_no_sense_is_corrupt(change: dict[str, Any]) -> None:
    """Unknown dtypes, files that are not listed, and numbers of digests that do not fit the shape are refused."""
    body = without_digest(rank_manifest().to_bytes(xxh3))
    body["leaves"][0] |= change
    with pytest.raises(Corrupt):
        RankManifest.from_bytes(seal(body, xxh3), "n", xxh3)


def test_another_chunk_size_is_not_misread() -> None:
    """Digests of chunks of another size would all differ; the manifest is refused instead."""
    body = without_digest(rank_manifest().to_bytes(xxh3)) | {"chunk_bytes": 1 << 20}
    with pytest.raises(Corrupt, match="chunk size"):
        RankManifest.from_bytes(seal(body, xxh3), "n", xxh3)
