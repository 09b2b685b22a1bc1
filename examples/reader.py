"""Read a Holdfast checkpoint without Holdfast: verify every byte, give back numpy arrays and documents.

    python examples/reader.py runs/digits

Written from docs/format.md alone; needs numpy, safetensors and xxhash.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import xxhash
from safetensors import safe_open

SEAL = b',"digest":"'
NAME = re.compile(r"(\d{10,})(?:\.(\d{2,}))?-a(\d{6,})")
ELEMENT = {"float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
           "uint64": "u8", "uint32": "u4", "uint16": "u2", "uint8": "u1", "bool": "?", "complex64": "c8",
           "complex128": "c16", "bfloat16": "u2"}  # fmt: skip
"""numpy has no bfloat16: its bits are given as uint16; dtypes that are not here are given as bytes."""


class Refused(Exception):
    """This checkpoint is damaged."""


def digest(data):
    return xxhash.xxh3_128_hexdigest(data)


def check(right, what):
    if not right:
        raise Refused(what)


def unseal(raw, name):
    text, mark, tail = raw.rpartition(SEAL)
    check(mark and tail == digest(text).encode() + b'"}\n', f"{name}: seal")
    body = json.loads(text + b"}")
    check(body["format"] == 1, f"{name}: format {body['format']}")
    return body


def chunks(data, size):
    return [data[i : i + size] for i in range(0, max(len(data), 1), size)]


def checkpoints(store):
    """Directories of committed checkpoints, newest first."""
    found = ((NAME.fullmatch(p.parent.name), p.parent) for p in (store / "checkpoints").glob("*/manifest.json"))
    aged = [((int(m[3]), int(m[1]), int(m[2] or 0)), folder) for m, folder in found if m]
    return [folder for _, folder in sorted(aged, reverse=True)]


def read(store, folder):
    """Return (manifest, {part: {name: array}}, documents) of one checkpoint. Raises: Refused."""
    manifest = unseal((folder / "manifest.json").read_bytes(), "manifest.json")
    check(manifest["checkpoint"] == folder.name, "manifest.json: another checkpoint's")
    tensors, documents = {}, []
    for file, expected in sorted(manifest["ranks"].items()):
        raw = (folder / file).read_bytes()
        check(digest(raw) == expected, file)
        rank = unseal(raw, file)
        for name, blob in rank["blobs"].items():
            data = (folder / name).read_bytes()
            check(len(data) == blob["bytes"], f"{name}: length")
            check([digest(c) for c in chunks(data, rank["chunk_bytes"])] == blob["digests"], f"{name}: bytes")
        for name, part in rank["parts"].items():
            with (folder / name).open("rb") as f:
                check(digest(f.read(part["header_bytes"])) == part["header_digest"], f"{name}: header")
            check((folder / name).stat().st_size == part["bytes"], f"{name}: length")
            with safe_open(folder / name, "np") as ordinary:  # any reader of safetensors can open it
                check({leaf["name"] for leaf in rank["leaves"]} >= set(ordinary.keys()), f"{name}: names")
        for leaf in rank["leaves"]:
            kind = np.dtype(ELEMENT.get(leaf["dtype"], "u1"))
            nbytes = kind.itemsize * int(np.prod(leaf["lengths"], dtype=np.int64))
            with (store / rank["files"][leaf["file"]]).open("rb") as f:
                f.seek(leaf["start"])
                data = f.read(nbytes)
            good = [digest(c) for c in chunks(data, rank["chunk_bytes"])] == leaf["digests"]
            check(good, f"{leaf['part']}/{leaf['name']}")
            tensors.setdefault(leaf["part"], {})[leaf["name"]] = np.frombuffer(data, kind).reshape(leaf["lengths"])
        documents.append(json.loads((folder / f"documents.r{rank['rank']:05d}.json").read_bytes()))
    return manifest, tensors, documents


if __name__ == "__main__":
    for candidate in checkpoints(Path(sys.argv[1])):
        try:
            what, parts, _ = read(Path(sys.argv[1]), candidate)
        except (Refused, OSError, ValueError, KeyError) as why:
            print(f"{candidate.name} refused: {why}")
            continue
        print(f"{what['checkpoint']}: step {what['step']['step']}, metrics {what['step']['metrics']}")
        for name, arrays in parts.items():
            print(f"  {name}: {len(arrays)} tensors, {sum(a.nbytes for a in arrays.values())} bytes")
        break
