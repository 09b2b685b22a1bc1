"""The digest is xxh3-128, and takes every buffer there is."""

from holdfast.spec.ports import Digest
from holdfast.storage.digest import xxh3


def test_it_is_xxh3_128() -> None:
    """The published test vector of the empty input, which another reader of the format would get as well."""
    digest: Digest = xxh3
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"


def test_every_kind_of_buffer_gives_the_same_digest() -> None:
    """Bytes, bytearrays and memoryviews of equal content agree, and one changed bit does not."""
    content = bytes(range(256)) * 8
    expected = xxh3(content)
    assert len(expected) == 32
    assert xxh3(bytearray(content)) == expected
    assert xxh3(memoryview(b"__" + content)[2:]) == expected
    assert xxh3(memoryview(content).cast("Q")) == expected
    assert xxh3(content[:-1] + bytes([content[-1] ^ 1])) != expected
