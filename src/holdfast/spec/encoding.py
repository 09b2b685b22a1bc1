"""Typed JSON: plain Python data to JSON and back, exactly.

JSON alone turns tuples into lists, int keys into strings, and has no bytes, NaN or infinity. Here whatever JSON cannot
say is written as an object with one key that begins with `$`:

===========================  ==============================================================
`{"$tuple": [...]}`          tuple (also `$set`, `$frozenset`)
`{"$dict": [[k, v], ...]}`   dict whose keys are not all plain strings, in order
`{"$bytes": "base64"}`       bytes (also `$bytearray`)
`{"$float": "nan"}`          nan, inf, -inf
`{"$complex": [re, im]}`     complex
`{"$ordered": [[k, v]]}`     OrderedDict (also `$counter`)
`{"$default": [f, [[k,v]]]}` defaultdict with factory f: list, dict, set, int, float or null
`{"$deque": [max, [...]]}`   deque
`{"$path": "..."}`           pathlib path (a pure one comes back as a concrete one)
`{"$range": [a, b, step]}`   range
`{"$tensor": "name"}`        a tensor, stored as a leaf (also `$array`, `$scalar`; see `state/`)
===========================  ==============================================================

Finite floats are written with the fewest digits that read back as the same float, so they survive bit for bit.
"""

import base64
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeAlias

FACTORIES: dict[str, Callable[[], Any]] = {"list": list, "dict": dict, "set": set, "int": int, "float": float}


class Unstorable(Exception):
    """A value that typed JSON cannot hold, with the path to it. Translated by whoever knows what the value is."""

    def __init__(self, path: str, value: object) -> None:
        super().__init__(path)
        self.path = path
        self.value = value


Foreign: TypeAlias = Callable[[str, object], Any]
"""Called with (path, value) for every value that is not plain; returns JSON, or raises Unstorable."""


def refuse(path: str, value: object) -> Any:
    """The foreign-value handler of data that must be plain."""
    raise Unstorable(path, value)


def pack(value: object, path: str = "", foreign: Foreign = refuse) -> Any:
    """Turn plain data into JSON values. Raises: Unstorable, with the path of the first value that is not plain."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        assert isinstance(value, float)
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return _items(value, path, foreign)
    packer = _PACKERS.get(kind)
    if packer is not None:
        return packer(value, path, foreign)
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    return foreign(path, value)


def unpack(value: Any, foreign: Callable[[str, Any], Any] | None = None) -> Any:
    """Turn JSON values back into plain data.

    `foreign(tag, body)` is asked for tags that are not plain data. Raises: ValueError for an unknown tag.
    """
    if isinstance(value, list):
        return [unpack(item, foreign) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag.startswith("$"):
            unpacker = _UNPACKERS.get(tag)
            if unpacker is not None:
                return unpacker(body, foreign)
            if foreign is not None:
                return foreign(tag, body)
            raise ValueError(f"unknown tag {tag!r} in typed JSON")
    return {key: unpack(item, foreign) for key, item in value.items()}


def dumps(value: Any) -> bytes:
    """Write packed values as UTF-8 JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _items(value: Any, path: str, foreign: Foreign) -> list[Any]:
    return [pack(item, f"{path}[{i}]", foreign) for i, item in enumerate(value)]


def _pairs(value: Mapping[Any, Any], path: str, foreign: Foreign) -> list[list[Any]]:
    return [[pack(k, f"{path}<key>", foreign), pack(v, _join(path, k), foreign)] for k, v in value.items()]


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _pack_dict(value: Any, path: str, foreign: Foreign) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: pack(item, _join(path, key), foreign) for key, item in value.items()}
    return {"$dict": _pairs(value, path, foreign)}


def _pack_set(tag: str) -> Callable[[Any, str, Foreign], Any]:
    def packer(value: Any, path: str, foreign: Foreign) -> Any:
        packed = _items(value, path, foreign)
        return {tag: sorted(packed, key=json.dumps)}

    return packer


def _pack_default(value: Any, path: str, foreign: Foreign) -> Any:
    factory = value.default_factory
    name = next((name for name, known in FACTORIES.items() if known is factory), None)
    if factory is not None and name is None:
        raise Unstorable(path, value)
    return {"$default": [name, _pairs(value, path, foreign)]}


_PACKERS: dict[type, Callable[[Any, str, Foreign], Any]] = {
    dict: _pack_dict,
    tuple: lambda v, p, f: {"$tuple": _items(v, p, f)},
    set: _pack_set("$set"),
    frozenset: _pack_set("$frozenset"),
    bytes: lambda v, p, f: {"$bytes": base64.b64encode(v).decode()},
    bytearray: lambda v, p, f: {"$bytearray": base64.b64encode(v).decode()},
    complex: lambda v, p, f: {"$complex": [pack(v.real), pack(v.imag)]},
    OrderedDict: lambda v, p, f: {"$ordered": _pairs(v, p, f)},
    Counter: lambda v, p, f: {"$counter": _pairs(v, p, f)},
    defaultdict: _pack_default,
    deque: lambda v, p, f: {"$deque": [v.maxlen, _items(v, p, f)]},
    range: lambda v, p, f: {"$range": [v.start, v.stop, v.step]},
}

_Ask: TypeAlias = Callable[[str, Any], Any] | None


def _unpairs(body: Any, foreign: _Ask) -> list[tuple[Any, Any]]:
    return [(unpack(key, foreign), unpack(item, foreign)) for key, item in body]


def _unpack_default(body: Any, foreign: _Ask) -> Any:
    name, pairs = body
    return defaultdict(FACTORIES[name] if name is not None else None, _unpairs(pairs, foreign))


_UNPACKERS: dict[str, Callable[[Any, _Ask], Any]] = {
    "$tuple": lambda b, f: tuple(unpack(item, f) for item in b),
    "$set": lambda b, f: {unpack(item, f) for item in b},
    "$frozenset": lambda b, f: frozenset(unpack(item, f) for item in b),
    "$dict": lambda b, f: dict(_unpairs(b, f)),
    "$ordered": lambda b, f: OrderedDict(_unpairs(b, f)),
    "$counter": lambda b, f: Counter(dict(_unpairs(b, f))),
    "$default": _unpack_default,
    "$deque": lambda b, f: deque((unpack(item, f) for item in b[1]), maxlen=b[0]),
    "$bytes": lambda b, f: base64.b64decode(b, validate=True),
    "$bytearray": lambda b, f: bytearray(base64.b64decode(b, validate=True)),
    "$float": lambda b, f: float(b),
    "$complex": lambda b, f: complex(unpack(b[0]), unpack(b[1])),
    "$range": lambda b, f: range(*b),
    "$path": lambda b, f: Path(b),
}
