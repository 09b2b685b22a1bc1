"""The digest that covers every stored byte: xxh3, 128 bits.

It guards against damage, not against forgery. 128 bits make an accidental match a non-event at any number of chunks,
and xxh3 runs at memory speed, so hashing is never what a save waits for.
"""

import xxhash

from ..spec.ports import Buffer


def xxh3(buffer: Buffer) -> str:
    """Compute the hexadecimal xxh3-128 of the bytes; other threads run meanwhile, the GIL is released."""
    # `update`, not the one-shot function: before xxhash 4 the latter holds the GIL.
    hasher = xxhash.xxh3_128()
    hasher.update(buffer)
    return hasher.hexdigest()
